"""A gateway with its own database, for a module's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.gateway.running import Gateway
from tests.servers import RoomProcess, Servers


@pytest.fixture(scope="module")
async def bootstrap(servers: Servers) -> AsyncIterator[RoomProcess]:
    """The process that makes the bus users of channels."""
    process = await servers.start_bootstrap()
    yield process
    await process.kill()


@pytest.fixture(scope="module")
async def gateway(servers: Servers, bootstrap: RoomProcess) -> AsyncIterator[Gateway]:
    """A gateway for a module's tests; each makes organizations of its own."""
    database = await servers.new_database("gateway")
    process = await servers.start_room("gateway", "http", database)
    running = Gateway(process, database)
    yield running
    await running.close()
    await process.kill()
    await servers.drop_database(database)
