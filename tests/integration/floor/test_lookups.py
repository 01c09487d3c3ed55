"""Connections for lookups: kept, bounded, never used again when left in the middle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from contracts.errors import Invalid
from shared.lookups import Lookups
from tests.servers import Servers

pytestmark = pytest.mark.integration
CONNECTIONS_MAX = 3


@pytest.fixture
async def lookups(servers: Servers) -> AsyncIterator[Lookups]:
    database = await servers.new_database("ledger")
    made = Lookups(database.url("ledger"), schema="ledger", connections_max=CONNECTIONS_MAX)
    yield made
    await made.close()
    await servers.drop_database(database)


async def backend(lookups: Lookups) -> int:
    async with lookups.connection() as connection:
        return int(await connection.fetchval("SELECT pg_backend_pid()"))


async def test_one_after_the_other_share_a_connection_in_the_rooms_schema(
    lookups: Lookups,
) -> None:
    assert len({await backend(lookups) for _ in range(5)}) == 1
    async with lookups.connection() as connection:
        assert await connection.fetchval("SHOW search_path") == "ledger"
        assert await connection.fetchval("SHOW enable_seqscan") == "off"


async def test_many_at_once_never_take_more_than_the_bound(lookups: Lookups) -> None:
    async def ask() -> int:
        async with lookups.connection() as connection:
            await connection.fetchval("SELECT pg_sleep(0.01)")
            return int(await connection.fetchval("SELECT pg_backend_pid()"))

    used = await asyncio.gather(*(ask() for _ in range(40)))
    assert len(set(used)) <= CONNECTIONS_MAX


async def test_a_refusal_of_the_caller_keeps_the_connection(lookups: Lookups) -> None:
    async def refuse() -> None:
        async with lookups.connection() as connection:
            await connection.fetchval("SELECT 1")
            raise Invalid("refused", reason="test")

    before = await backend(lookups)
    with pytest.raises(Invalid):
        await refuse()
    assert await backend(lookups) == before


async def test_what_was_left_in_the_middle_is_not_used_again(lookups: Lookups) -> None:
    before = await backend(lookups)

    async def wait() -> None:
        async with lookups.connection() as connection:
            await connection.fetchval("SELECT pg_sleep(30)")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    second = await backend(lookups)
    assert second != before

    async def fail() -> None:
        async with lookups.connection() as connection:
            await connection.fetchval("SELECT 1 / 0")

    with pytest.raises(asyncpg.DivisionByZeroError):
        await fail()
    assert await backend(lookups) != second


async def test_a_connection_that_the_server_ended_is_opened_again(
    lookups: Lookups, servers: Servers
) -> None:
    pid = await backend(lookups)
    async with lookups.connection(), lookups.connection() as other:
        await other.execute("SELECT pg_terminate_backend($1)", pid)
    found = None
    for _ in range(2):
        # The first to use it may be told; the next one is not.
        with contextlib.suppress(Exception):
            found = await backend(lookups)
    assert found is not None
    assert found != pid
