"""Time comes from here, so that rules get it passed in and tests can set it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Something that tells the time."""

    def now(self) -> datetime:
        """The time as an aware UTC datetime."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The time as an aware UTC datetime."""
        return datetime.now(UTC)


class FixedClock:
    """A clock that stands where it was put; for tests."""

    def __init__(self, at: datetime) -> None:
        """Stand at `at`, an aware time."""
        self.at = at

    def now(self) -> datetime:
        """The time that was set."""
        return self.at


def process_start_token() -> str:
    """Name this process among others: its pid and the moment that it asked."""
    return f"{os.getpid()}-{datetime.now(UTC).timestamp():.6f}"
