"""A room's database and a bus connection for the floor's own tests."""

from __future__ import annotations

import pytest

from shared.bus import Bus
from shared.db import Database


@pytest.fixture
async def database(room_database):
    made = await room_database("ledger")
    database = Database(made.url("ledger"), schema="ledger")
    yield database
    await database.close()


@pytest.fixture
async def ledger_bus(servers, fresh_streams):
    bus = Bus(servers.bus_address("ledger"))
    await bus.start()
    yield bus
    await bus.stop()
