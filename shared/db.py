"""Postgres: one pool per process, one schema per room, and what counts as "may work later".

The one thing not to break: a handler's effect is one transaction (`Database.transaction`), taken by
the caller and passed down.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import orjson

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[asyncpg.Record] | asyncpg.Connection[asyncpg.Record]

POOL_CONNECTIONS_MAX = 8
"""More than 8 connections on a hot row make it slower (measured, dependencies.md 6)."""
STATEMENT_S_MAX = 30
LOCK_S_MAX = 10
CONNECT_S_MAX = 5
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
BY_KEY_ONLY: Final = MappingProxyType(
    {
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }
)
"""For statements that find rows by their keys: planned once per connection, which takes longer than
running them. Never a scan of a table, so that a plan made while it was empty stays right."""

_TRANSIENT = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.CrashShutdownError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InternalClientError,
    ConnectionError,
    TimeoutError,
    OSError,
)


def is_transient(error: BaseException) -> bool:
    """Whether the database may answer later: it is down, starting, or somebody held a lock."""
    if isinstance(error, asyncpg.InterfaceError):
        # The same class tells of a connection that was lost and of a mistake in the calling code.
        # One that is lost between two statements is said to have been given back to its pool.
        return any(words in str(error) for words in ("clos", "released back to the pool"))
    return isinstance(error, _TRANSIENT)


def _stands(connection: PoolConnectionProxy[asyncpg.Record]) -> bool:
    """Whether one that was taken can be used: when it is lost the pool takes it back at once."""
    return getattr(connection, "_con", None) is not None and not connection.is_closed()


class _Connection(asyncpg.Connection):
    """Leaves out the reset statement: nothing here sets session state, it costs a round trip."""

    def get_reset_query(self) -> str:
        return ""


def _json_text(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        # Sums may pass 64 bits, which orjson refuses to write.
        return json.dumps(value)


async def _prepare(connection: Connection) -> None:
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(
            kind,
            encoder=_json_text,
            decoder=json.loads,
            schema="pg_catalog",
        )


def _options(dsn: str, schema: str, settings: Mapping[str, str]) -> dict[str, Any]:
    return {
        "connection_class": _Connection,
        "timeout": CONNECT_S_MAX,
        "command_timeout": STATEMENT_S_MAX,
        # TCP to a wheel without OpenSSL; an unreadable HOME must not matter.
        "ssl": False if "sslmode" not in dsn else None,
        "server_settings": {
            "search_path": schema,
            "timezone": "UTC",
            # A plan that was made while a table was empty scans it for ever.
            "plan_cache_mode": "force_custom_plan",
            "jit": "off",
            "application_name": f"rienda {schema}",
            "lock_timeout": f"{LOCK_S_MAX}s",
            "statement_timeout": f"{STATEMENT_S_MAX}s",
            "idle_in_transaction_session_timeout": f"{STATEMENT_S_MAX}s",
            **settings,
        },
    }


async def open_connection(
    dsn: str, schema: str, settings: Mapping[str, str]
) -> asyncpg.Connection[asyncpg.Record]:
    """One connection beside the pool, with the same settings but for these."""
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(
        dsn, **_options(dsn, schema, settings)
    )
    await _prepare(connection)
    return connection


class Database:
    """The room's pool. Connects lazily, so that a room starts while Postgres is away."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str,
        connections_max: int = POOL_CONNECTIONS_MAX,
        at_hand_max: int = 0,
        settings: Mapping[str, str] = NO_SETTINGS,
    ) -> None:
        """Remember where to connect; `schema` becomes the search path.

        `at_hand_max`: connections that stay taken between two uses of `connection`, for whoever
        uses nothing else. `settings`: the server's, beside those that every room has.
        """
        self._dsn = dsn
        self._schema = schema
        self._settings = settings
        self._connections_max = connections_max
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._opening = asyncio.Lock()
        self._at_hand_max = at_hand_max
        self._at_hand: list[PoolConnectionProxy[asyncpg.Record]] = []

    @property
    def schema(self) -> str:
        """The room's schema."""
        return self._schema

    async def pool(self) -> asyncpg.Pool[asyncpg.Record]:
        """The pool, opened at the first call that finds Postgres up."""
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await asyncpg.create_pool(
                        self._dsn,
                        min_size=1,
                        max_size=self._connections_max,
                        init=_prepare,
                        **_options(self._dsn, self._schema, self._settings),
                    )
        return self._pool

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One connection, outside any transaction: each statement is one of its own."""
        pool = await self.pool()
        # The pool's own acquiring and releasing costs a fifth of a statement (ADR 0040).
        connection = await self._take(pool)
        try:
            yield connection
        except BaseException:
            await pool.release(connection)
            raise
        # A pool that is closing waits for those that are in use.
        if pool is self._pool and len(self._at_hand) < self._at_hand_max and _stands(connection):
            self._at_hand.append(connection)
        else:
            await pool.release(connection)

    async def _take(
        self, pool: asyncpg.Pool[asyncpg.Record]
    ) -> PoolConnectionProxy[asyncpg.Record]:
        while self._at_hand:
            connection = self._at_hand.pop()
            if _stands(connection):
                return connection
            await pool.release(connection)
        return await pool.acquire(timeout=CONNECT_S_MAX)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One transaction: committed at the end, rolled back by any exception."""
        pool = await self.pool()
        async with pool.acquire(timeout=CONNECT_S_MAX) as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """One snapshot for several statements; writes nothing."""
        pool = await self.pool()
        async with (
            pool.acquire(timeout=CONNECT_S_MAX) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield connection

    async def is_up(self) -> bool:
        """Whether a trivial statement is answered."""
        try:
            pool = await self.pool()
            async with pool.acquire(timeout=1) as connection:
                return bool(await connection.fetchval("SELECT true", timeout=1))
        except Exception as error:
            if is_transient(error):
                return False
            raise

    async def close(self) -> None:
        """Close the pool; a connection that does not end in time is cut."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            at_hand, self._at_hand = self._at_hand, []
            for connection in at_hand:
                await pool.release(connection)
            try:
                async with asyncio.timeout(CONNECT_S_MAX):
                    await pool.close()
            except TimeoutError:
                pool.terminate()
