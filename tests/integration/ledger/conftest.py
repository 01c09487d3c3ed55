"""A ledger room on a database of its own."""

from __future__ import annotations

import pytest

from tests.admission_checker import Checker
from tests.factories import Feed
from tests.ledger_room import LedgerRoom


@pytest.fixture
async def room(room_database):
    database = await room_database("ledger")
    room = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    yield room
    await room.close()


@pytest.fixture
def feed():
    return Feed()


@pytest.fixture
async def checker(room: LedgerRoom):
    checker = Checker(room.database._dsn)
    yield checker
    await checker.look()
