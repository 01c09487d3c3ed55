"""What the ledger says after a batch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from contracts.channel import RunStarted
from contracts.ledger import RunChanged
from contracts.types import RunStatus, Surface
from services.ledger.store import runs
from shared import outbox

if TYPE_CHECKING:
    from services.ledger.domain.books import Books, RunKey
    from shared.consume import Received
    from shared.db import Connection

ROOM = "ledger"


async def say_changed_runs(
    connection: Connection, books: Books, causes: Mapping[RunKey, Received], *, now: datetime
) -> None:
    """Say the new state of every run whose start or end was taken in."""
    if not causes:
        return
    amounts = await runs.load_shown_amounts(connection, causes.keys())
    messages = []
    for key, cause in causes.items():
        run, before = books.runs[key], books.before[key]
        started = isinstance(cause.event.data, RunStarted)
        reason: Literal["started", "finished"] = "started" if started else "finished"
        said = RunChanged(
            run_id=run.run_id,
            run_revision=run.revision,
            status=RunStatus(run.status),
            previous=RunStatus(before.status) if before.revision else None,
            reason=reason,
            surface=Surface(run.surface) if run.surface else None,
            agent_id=run.agent_id,
            user_id=run.user_id,
            started_by_user_id=run.started_by_user_id,
            routine_id=run.routine_id,
            parent_run_id=run.parent_run_id,
            root_run_id=run.root_run_id,
            totals=amounts[key].totals,
            partial=amounts[key].is_partial,
            error=run.error,
            at=now,
        )
        # From its cause, so that a replay of the stream says the same words under the same id.
        event_id = outbox.derived_id(
            "run_changed", key[0], cause.address.producer_key, cause.event.source, cause.event.id
        )
        messages.append(
            outbox.say(said, room=ROOM, org=key[0], event_id=event_id, at=now, cause=cause.event)
        )
    await outbox.save(connection, messages)
