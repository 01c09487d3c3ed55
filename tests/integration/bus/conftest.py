"""A house of its own for each test of isolation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.bus.house import House


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """The accounts of a deployment on a server of their own (20 ms)."""
    made = House(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
