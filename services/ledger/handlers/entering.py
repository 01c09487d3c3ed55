"""Putting runs that questions entered where they belong.

A question that tells of a new run waits for nobody, so it may not see what is learned meanwhile: of
the root that it names, that it was delegated itself, whose it is, or that it was deleted; of who
started it, the departments. The run waits in `unplaced_run`, entered in the same transaction, and
is placed here as a report of it would place it. The one thing not to break: it is taken from there
in the transaction that places it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from services.ledger.domain.books import Books
from services.ledger.domain.months import month_of
from services.ledger.domain.overruns import Moved
from services.ledger.handlers.saying import say_changed_runs
from services.ledger.store import departments, directory, entries, runs
from services.ledger.store.exceeding import note_moved, strict_months
from services.ledger.store.notices import warn_of_caps
from services.ledger.store.placing import place
from services.ledger.store.slots import move_slots
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from collections.abc import Collection

    from services.ledger.domain.books import RunKey
    from shared.clock import Clock
    from shared.db import Connection, Database

RUNS_MAX: Final = 200
"""Runs of one step: as long as it lasts, reports about them wait."""
IDLE_S: Final = 0.5


class RunPlacer:
    """Works off `unplaced_run`; `run` until cancelled."""

    def __init__(self, *, database: Database, clock: Clock) -> None:
        """Several may run: each takes what no other holds."""
        self._database = database
        self._clock = clock

    async def run(self) -> None:
        """Place until cancelled; while the database is away, wait and try again."""
        while True:
            placed = 0
            try:
                placed = await self.step()
            except Exception as error:
                if not is_transient(error):
                    raise
                logger().warning("runs_wait", cause=type(error).__name__)
            if placed < RUNS_MAX:
                await asyncio.sleep(IDLE_S)

    async def step(self) -> int:
        """Place some; answer how many."""
        async with self._database.transaction() as connection:
            keys = await runs.take_unplaced(connection, limit=RUNS_MAX)
            if keys:
                await self._place(connection, keys)
        return len(keys)

    async def _place(self, connection: Connection, keys: Collection[RunKey]) -> None:
        now = self._clock.now()
        orgs = {org for org, _ in keys}
        await departments.share_directories(connection, orgs)
        books = Books()
        books.load(await runs.lock_with_roots(connection, keys))
        await place(connection, books)
        reasons = books.settle()
        await runs.save_runs(connection, [(key[0], run) for key, run in books.changed()])
        sums = runs.Sums(books.own, books.tree, books.signs, books.own_signs)
        await runs.add_to_runs(connection, sums, now=now)
        spent = await entries.add_to_months(connection, books.months)
        await move_slots(connection, books)
        await say_changed_runs(connection, books, reasons, {}, now=now)
        known = await directory.load_organizations(connection, orgs)
        months = {org: month_of(now, each.zones) for org, each in known.items()}
        await warn_of_caps(connection, spent, months, now=now)
        moved = Moved(books, strict_months(known, now), cause="reattributed")
        await note_moved(connection, moved, now=now)
