"""What the ledger says of runs: transitions with their batch, totals when they are due.

The one thing not to break: a run's revision grows by one with everything that is said of it, under
its lock, and makes the event's id. So the newest revision is the whole truth, and neither a crash
nor a second process says anything twice. What changed is marked in its own transaction, and the
mark is taken away with what is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from contracts.ledger import RunChanged
from contracts.types import RunChangeReason, RunStatus, Surface
from services.ledger.store import runs
from shared import outbox
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from contracts.envelope import Event
    from services.ledger.domain.books import Books, RunKey
    from services.ledger.domain.runs import Run
    from shared.clock import Clock
    from shared.consume import Received
    from shared.db import Connection, Database

ROOM = "ledger"
DUE_ROWS_MAX = 200
DUE_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be said of one run: as it was, as it is, why."""

    before: Run
    run: Run
    reason: RunChangeReason
    cause: Event[Any] | None = None


async def say_changed_runs(
    connection: Connection,
    books: Books,
    reasons: Mapping[RunKey, RunChangeReason],
    causes: Mapping[RunKey, Received],
    *,
    now: datetime,
) -> None:
    """Say the new state of every run that made a transition in a batch."""
    changes = {
        key: Change(
            before=books.before[key],
            run=books.runs[key],
            reason=reason,
            cause=causes[key].event if key in causes else None,
        )
        for key, reason in reasons.items()
    }
    await say(connection, changes, now=now)


async def say(connection: Connection, changes: Mapping[RunKey, Change], *, now: datetime) -> None:
    """Say runs' new state with their sums as they are now; the runs are held."""
    if not changes:
        return
    amounts = await runs.load_shown_amounts(connection, changes.keys())
    messages = []
    for key, change in changes.items():
        run, before = change.run, change.before
        said = RunChanged(
            run_id=run.run_id,
            run_revision=run.revision,
            status=RunStatus(run.status),
            previous=RunStatus(before.status) if before.revision else None,
            reason=change.reason,
            surface=Surface(run.surface) if run.surface else None,
            agent_id=run.agent_id,
            user_id=run.user_id,
            started_by_user_id=run.started_by_user_id,
            routine_id=run.routine_id,
            parent_run_id=run.shown_parent_run_id,
            root_run_id=run.root_run_id,
            totals=amounts[key].totals,
            partial=amounts[key].is_partial,
            error=run.error,
            at=now,
            deleted=run.deleted_at is not None,
        )
        event_id = outbox.derived_id("run_changed", *key, str(run.revision))
        messages.append(
            outbox.say(said, room=ROOM, org=key[0], event_id=event_id, at=now, cause=change.cause)
        )
    await outbox.save(connection, messages)
    revisions = {key: change.run.revision for key, change in changes.items()}
    await runs.mark_said(connection, revisions, now=now)


class TotalsSayer:
    """Says the totals of runs that changed in nothing else; `run` until cancelled."""

    def __init__(self, *, database: Database, clock: Clock) -> None:
        """Say into the room's own outbox."""
        self._database = database
        self._clock = clock

    async def run(self) -> None:
        """Say what is due; while the database is away, wait and try again."""
        while True:
            said = 0
            try:
                said = await self.say_due()
            except Exception as error:
                if not is_transient(error):
                    raise
                logger().warning("totals_wait", cause=type(error).__name__)
            if said < DUE_ROWS_MAX:
                await asyncio.sleep(DUE_POLL_S)

    async def say_due(self) -> int:
        """Say up to `DUE_ROWS_MAX` runs whose totals are due; answer how many."""
        now = self._clock.now()
        async with self._database.transaction() as connection:
            due = await runs.lock_due(connection, now=now, limit=DUE_ROWS_MAX)
            changes = {
                key: Change(run, replace(run, revision=run.revision + 1), "totals")
                for key, run in due.items()
            }
            await say(connection, changes, now=now)
        return len(due)
