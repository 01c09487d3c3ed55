"""Connections for statements that look one thing up by its key, on the path of every request.

A pool hands a connection back in a task of its own, which costs a quarter of such a lookup
(`make bench`, *request with an API key*). The one thing not to break: a connection that was left in
the middle of something is never used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg

from contracts.errors import Fault
from shared.db import BY_KEY_ONLY, CONNECT_S_MAX, POOL_CONNECTIONS_MAX, open_connection

if TYPE_CHECKING:
    from shared.db import Connection


class Lookups:
    """A few connections that are opened when they are needed and stay open."""

    def __init__(
        self, dsn: str, *, schema: str, connections_max: int = POOL_CONNECTIONS_MAX
    ) -> None:
        """Remember where to connect; `schema` becomes the search path."""
        self._dsn = dsn
        self._schema = schema
        # The one given back last goes out first: a few stay warm, the others idle.
        self._free: asyncio.LifoQueue[asyncpg.Connection[asyncpg.Record] | None] = (
            asyncio.LifoQueue()
        )
        for _ in range(connections_max):
            self._free.put_nowait(None)
        self._connections_max = connections_max

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One connection, outside any transaction.

        Raises:
            TimeoutError: all are in use for too long.
        """
        if self._free.empty():
            async with asyncio.timeout(CONNECT_S_MAX):
                connection = await self._free.get()
        else:
            connection = self._free.get_nowait()
        is_sound = False
        try:
            if connection is None or connection.is_closed():
                connection = await open_connection(self._dsn, self._schema, BY_KEY_ONLY)
            try:
                yield connection
                is_sound = True
            except Fault:
                # A refusal of the caller's own: the statement before it was answered.
                is_sound = True
                raise
        finally:
            if not is_sound and connection is not None:
                connection.terminate()
                connection = None
            self._free.put_nowait(connection)

    async def close(self) -> None:
        """Close what is open; a connection that is in use is cut when it is given back."""
        for _ in range(self._free.qsize()):
            connection = self._free.get_nowait()
            if connection is not None and not connection.is_closed():
                connection.terminate()
            self._free.put_nowait(None)
