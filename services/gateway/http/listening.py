"""One look at the database for everybody who waits: polled feeds and open streams.

The one thing not to break: whoever waits holds no database connection. One statement per process
and `POLL_S` serves them all, so two hundred open streams cost what one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from contracts.errors import Retryable, TooMany
from services.gateway.store.heard import Heard, list_since, load_top
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from shared.db import Database

POLL_S: Final = 0.2
AWAY_S: Final = 1.0
ROWS_MAX: Final = 1_000
QUEUE_ROWS_MAX: Final = 500
"""Events that one listener may be behind; one that is further is cut off and connects again."""
RETRY_AFTER_S: Final = 5
LISTENERS_MAX: Final = 2_000
"""In one process."""


@dataclass(slots=True, eq=False)
class Listener:
    """Somebody who waits for what an organization hears."""

    org: str
    start: int
    """What comes after this position is put into `rows`."""
    rows: asyncio.Queue[Heard] = field(
        default_factory=lambda: asyncio.Queue(maxsize=QUEUE_ROWS_MAX)
    )
    is_cut_off: bool = False


class Listening:
    """Looks for what is new and hands it out; `run` until cancelled."""

    def __init__(self, database: Database) -> None:
        """Nobody listens yet."""
        self._database = database
        self._position: int | None = None
        self._listeners: set[Listener] = set()

    @property
    def count(self) -> int:
        """How many listen."""
        return len(self._listeners)

    async def run(self) -> None:
        """Look every `POLL_S`; while the database is away, wait and go on where it was."""
        while True:
            try:
                is_full = await self._look()
            except Exception as error:
                if not is_transient(error):
                    raise
                logger().warning("listening_waits", cause=type(error).__name__)
                await asyncio.sleep(AWAY_S)
                continue
            if not is_full:
                await asyncio.sleep(POLL_S)

    async def _look(self) -> bool:
        pool = await self._database.pool()
        orgs = sorted({each.org for each in self._listeners})
        async with pool.acquire() as connection:
            if self._position is None:
                self._position = await load_top(connection)
            found, position = await list_since(
                connection, orgs, after=self._position, limit=ROWS_MAX
            )
        for listener in self._listeners:
            for row in found:
                if row.org == listener.org and row.position > listener.start:
                    _put(listener, row)
        looked_for = set(orgs)
        if all(each.org in looked_for for each in self._listeners):
            self._position = position
        # Otherwise somebody came while the statement ran: the next look covers the same rows for
        # them, and `start` keeps the others from hearing anything twice.
        return len(found) == ROWS_MAX

    def require_room(self) -> None:
        """Refuse one listener more than there may be.

        Raises:
            TooMany: `LISTENERS_MAX` wait in this process.
            Retryable: the process has only just started.
        """
        if self._position is None:
            raise Retryable("the process is starting: try again", reason="starting")
        if len(self._listeners) >= LISTENERS_MAX:
            raise TooMany("too many streams are open: try again", retry_after_s=RETRY_AFTER_S)

    @contextmanager
    def listen(self, org: str) -> Iterator[Listener]:
        """Listen to an organization until the block ends."""
        listener = Listener(org, self._position or 0)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


def _put(listener: Listener, row: Heard) -> None:
    listener.start = row.position
    try:
        listener.rows.put_nowait(row)
    except asyncio.QueueFull:
        listener.is_cut_off = True
