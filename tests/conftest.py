"""Fixtures of the whole suite: real servers, one pair per test process (xdist workers included)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from shared.bus import BusAddress
    from tests.servers import RoomDatabase, RoomProcess, Servers

    RoomDatabaseFactory = Callable[..., Awaitable[RoomDatabase]]
    RoomStarter = Callable[..., Awaitable[RoomProcess]]


LONGEST_FIRST = ("tests/simulation/", "tests/e2e/", "tests/unit/test_new_room.py")
"""Files that take longest: begun last they would keep one processor while the other has nothing.
Workers keep this order with `--no-loadscope-reorder` only; else files of few tests come last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files; the others keep their order."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST_FIRST))


@pytest.fixture(scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    """PostgreSQL and nats-server, prepared as for a deployment; ended with the session."""
    # Imported here: tests without servers start without drivers and migrations.
    from tests.servers import Servers

    running = Servers(tmp_path_factory.mktemp("servers") / "data", flushes=False)
    try:
        await running.start()
        yield running
    finally:
        await running.stop()


@pytest.fixture
async def fresh_streams(servers: Servers) -> None:
    """Empty streams and durables at their start, for tests that look at what flows."""
    await servers.fresh_streams()


@pytest.fixture
async def room_database(servers: Servers) -> AsyncIterator[RoomDatabaseFactory]:
    """`await room_database("ledger", …)`: a database of this test, dropped after it."""
    made: list[RoomDatabase] = []

    async def make(*rooms: str) -> RoomDatabase:
        made.append(await servers.new_database(*rooms))
        return made[-1]

    yield make
    for database in made:
        await servers.drop_database(database)


@pytest.fixture(scope="session")
def bus_address(servers: Servers) -> Callable[[str], BusAddress]:
    """`bus_address("ledger")`: how a room logs in to the bus."""
    return servers.bus_address


@pytest.fixture
async def rienda_process(servers: Servers) -> AsyncIterator[RoomStarter]:
    """`await rienda_process("ledger", "ingest", database)`: a ready process, killed afterwards."""
    try:
        yield servers.start_room
    finally:
        await servers.end_processes()
