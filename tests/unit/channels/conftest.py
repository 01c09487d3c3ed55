"""Fixtures of the tests of `services/channels`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from services.channels.client import Channel
from tests.unit.channels.recording import Lines, RecordingTransport

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def shared_transcripts() -> Path:
    """Real sessions, read where they lie; they are not part of the repository."""
    folder = REPOSITORY.parent / "shared" / "data" / "transcripts"
    if not folder.is_dir():
        pytest.skip(f"no real transcripts in {folder}")
    return folder


@pytest.fixture
def samples() -> Path:
    """The committed sample sessions."""
    return REPOSITORY / "samples"


@pytest.fixture
def lines() -> Callable[..., Lines]:
    return Lines


@pytest.fixture
def transport() -> RecordingTransport:
    return RecordingTransport()


@pytest.fixture
async def channel(transport: Any) -> AsyncIterator[Channel]:
    async with Channel(transport) as opened:
        yield opened
