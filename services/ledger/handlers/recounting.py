"""Counting trees again whose starter's departments changed after they were counted.

The one thing not to break: a step is small and complete. It moves whole trees by compensation and
notes how far it came in the same transaction, so it may be cut short anywhere and run anywhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from services.ledger.domain.books import Books
from services.ledger.domain.months import month_of
from services.ledger.domain.overruns import Moved
from services.ledger.store import departments, directory, entries, runs
from services.ledger.store.exceeding import note_moved, strict_months
from services.ledger.store.notices import warn_of_caps
from services.ledger.store.placing import count_again
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.clock import Clock
    from shared.db import Connection, Database

TREES_MAX: Final = 200
"""Trees of one step: as long as it lasts, reports about them wait."""
IDLE_S: Final = 0.2
AWAY_S: Final = 1.0


class Recounter:
    """Works off what `department_changed` and `department_removed` left to be counted again."""

    def __init__(self, *, database: Database, clock: Clock, trees_max: int = TREES_MAX) -> None:
        """Several may run: each takes what no other holds."""
        self._database = database
        self._clock = clock
        self._trees_max = trees_max

    async def run(self) -> None:
        """Step until cancelled; while the database is away, wait and try again."""
        while True:
            try:
                went_on = await self.step()
            except Exception as error:
                if not is_transient(error):
                    raise
                logger().warning("recount_waits", cause=type(error).__name__)
                await asyncio.sleep(AWAY_S)
                continue
            if not went_on:
                await asyncio.sleep(IDLE_S)

    async def step(self) -> bool:
        """Count some trees again; False where nothing is left that nobody else works at."""
        async with self._database.transaction() as connection:
            org = await departments.find_recount(connection)
            if org is None:
                return False
            # Before any lock that whoever shares it may hold (`store/departments.py`, *Locks*).
            await departments.share_directories(connection, [org])
            recount = await departments.hold_recount(connection, org)
            if recount is None:
                return False
            roots = await departments.list_roots(connection, recount, limit=self._trees_max)
            if roots:
                await self._count(connection, org, roots)
            is_last = len(roots) < self._trees_max
            await departments.save_recount(connection, recount, None if is_last else roots[-1])
        return True

    async def _count(self, connection: Connection, org: str, roots: Sequence[str]) -> None:
        now = self._clock.now()
        held = await runs.lock_runs(connection, [(org, run_id) for run_id in roots])
        books = Books()
        # One that was delegated after all is counted by whoever learned of it.
        books.load({key: run for key, run in held.items() if run.is_root})
        await count_again(connection, books)
        await runs.save_runs(connection, [(key[0], run) for key, run in books.changed()])
        spent = await entries.add_to_months(connection, books.months)
        known = await directory.load_organizations(connection, [org])
        months = {org: month_of(now, known[org].zones)} if org in known else {}
        if months:
            await warn_of_caps(connection, spent, months, now=now)
            moved = Moved(books, strict_months(known, now), cause="reattributed")
            await note_moved(connection, moved, now=now)
