"""Counting trees that questions entered in the sums by slot.

The one thing not to break: what is counted is taken away in the same transaction, so that windows
see a tree once whenever they look. It may be cut short anywhere and run anywhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from services.ledger.store.slots import count_trees
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from shared.db import Database

TREES_MAX: Final = 1_000
"""Trees of one step: as long as it lasts, batches of the same slots wait."""
IDLE_S: Final = 0.5


class TreeCounter:
    """Works off `uncounted_tree`; `run` until cancelled."""

    def __init__(self, *, database: Database) -> None:
        """Several may run: each takes what no other holds."""
        self._database = database

    async def run(self) -> None:
        """Count until cancelled; while the database is away, wait and try again."""
        while True:
            counted = 0
            try:
                counted = await self.step()
            except Exception as error:
                if not is_transient(error):
                    raise
                logger().warning("trees_wait", cause=type(error).__name__)
            if counted < TREES_MAX:
                await asyncio.sleep(IDLE_S)

    async def step(self) -> int:
        """Count some; answer how many."""
        async with self._database.transaction() as connection:
            return await count_trees(connection, limit=TREES_MAX)
