"""Connections that stay at hand: never one that is lost, none left when the pool is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from shared.db import CONNECT_S_MAX, Database, is_transient
from tests.servers import RoomDatabase, Servers
from tests.waiting import eventually

pytestmark = pytest.mark.integration
AT_HAND = 2
LOST = (asyncpg.PostgresError, asyncpg.InterfaceError)


@pytest.fixture
async def made(servers: Servers) -> AsyncIterator[RoomDatabase]:
    database = await servers.new_database("ledger")
    yield database
    await servers.drop_database(database)


@pytest.fixture
async def database(made: RoomDatabase) -> AsyncIterator[Database]:
    opened = Database(
        made.url("ledger"), schema="ledger", connections_max=AT_HAND, at_hand_max=AT_HAND
    )
    yield opened
    await opened.close()


async def backend(database: Database) -> int:
    async with database.connection() as connection:
        return int(await connection.fetchval("SELECT pg_backend_pid()"))


async def both(database: Database) -> set[int]:
    """Use both connections at once, so that both are at hand afterwards."""
    together = asyncio.Barrier(AT_HAND)

    async def one() -> int:
        async with database.connection() as connection:
            await together.wait()
            return int(await connection.fetchval("SELECT pg_backend_pid()"))

    return set(await asyncio.gather(*(one() for _ in range(AT_HAND))))


async def cut(made: RoomDatabase) -> None:
    """End every connection of the room, as a restart of the server does, and see them gone."""
    admin = await asyncpg.connect(made.admin_url)
    try:
        mine = "FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()"
        pids = [row["pid"] for row in await admin.fetch(f"SELECT pid {mine}", made.name)]
        await admin.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", pids)
        # The pool opens its smallest number anew at once: others than these may be there.
        gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ANY ($1)"

        async def left() -> bool:
            return bool(await admin.fetchval(gone, pids))

        await eventually(left)
    finally:
        await admin.close()


async def test_what_is_at_hand_is_used_again(database: Database) -> None:
    assert len({await backend(database) for _ in range(5)}) == 1
    pids = await both(database)
    assert len(pids) == AT_HAND
    assert await both(database) == pids


async def test_a_connection_that_was_lost_at_hand_is_replaced_unnoticed(
    database: Database, made: RoomDatabase
) -> None:
    """The pool has taken it back by then: whoever asks next gets another, and no error."""
    for _ in range(3):
        before = await both(database)
        await cut(made)
        # The end of a connection is heard of in a turn of the loop, not in a reply.
        await eventually(lambda: _is(not _at_hand_stand(database)))
        after = await both(database)
        assert len(after) == AT_HAND
        assert not before & after


async def test_one_that_is_lost_in_the_middle_fails_its_user_alone(
    database: Database, made: RoomDatabase
) -> None:
    async def use() -> None:
        async with database.connection() as connection:
            await cut(made)
            await connection.fetchval("SELECT 1")

    with pytest.raises(LOST) as caught:
        await use()
    assert is_transient(caught.value)
    assert len(await both(database)) == AT_HAND


async def test_a_transaction_whose_connection_is_lost_between_two_statements_may_work_later(
    database: Database, made: RoomDatabase
) -> None:
    """The driver says of it what it says of one that was given back: it is no bug of a handler."""

    async def use() -> None:
        async with database.transaction() as connection:
            await connection.fetchval("SELECT 1")
            await cut(made)
            await eventually(lambda: _is(not _stands(connection)))
            await connection.fetchval("SELECT 1")

    with pytest.raises(LOST) as caught:
        await use()
    assert is_transient(caught.value)


async def test_one_that_is_lost_after_its_last_statement_is_not_kept(
    database: Database, made: RoomDatabase
) -> None:
    async with database.connection() as connection:
        before = await connection.fetchval("SELECT pg_backend_pid()")
        await cut(made)
        await eventually(lambda: _is(not _stands(connection)))
    assert database._at_hand == []
    assert await backend(database) != before


async def test_whoever_gives_up_in_the_middle_leaves_no_transaction_behind(
    database: Database,
) -> None:
    begun = asyncio.Event()

    async def hold() -> None:
        async with database.connection() as connection, connection.transaction():
            await connection.execute("SELECT 1")
            begun.set()
            await asyncio.Event().wait()

    for _ in range(AT_HAND + 1):
        begun.clear()
        holding = asyncio.create_task(hold())
        await begun.wait()
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
    for _ in range(AT_HAND):
        async with database.connection() as connection:
            assert not connection.is_in_transaction()


async def test_closing_waits_for_who_is_in_the_middle_and_keeps_nothing(
    database: Database, made: RoomDatabase
) -> None:
    await both(database)
    used, ends = asyncio.Event(), asyncio.Event()

    async def use() -> int:
        async with database.connection() as connection:
            used.set()
            await ends.wait()
            return int(await connection.fetchval("SELECT 1"))

    using = asyncio.create_task(use())
    await used.wait()
    closing = asyncio.create_task(database.close())
    await eventually(lambda: _is(database._pool is None))
    ends.set()
    assert await using == 1
    began = asyncio.get_running_loop().time()
    await closing
    assert database._at_hand == []
    # Cut short, it would have taken all the time that closing has.
    assert asyncio.get_running_loop().time() - began < CONNECT_S_MAX
    admin = await asyncpg.connect(made.admin_url)
    left = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()"
    await eventually(lambda: _none(admin, left, made.name))
    await admin.close()


async def _none(admin: asyncpg.Connection, statement: str, name: str) -> bool:
    return bool(await admin.fetchval(statement, name) == 0)


def _at_hand_stand(database: Database) -> bool:
    return any(map(_stands, database._at_hand))


def _stands(connection: asyncpg.pool.PoolConnectionProxy) -> bool:
    return connection._con is not None and not connection.is_closed()


async def _is(condition: bool) -> bool:
    return condition
