"""Time comes from here, so that rules get it passed in and tests can set it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
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


class SteppedClock:
    """The machine's clock, moved by what a file says; for tests of clock steps."""

    def __init__(self, file: Path) -> None:
        """Read seconds to add from `file` at each look; a missing file moves nothing."""
        self._file = file

    def now(self) -> datetime:
        """The machine's time plus the file's seconds."""
        try:
            step_s = float(self._file.read_text())
        except (FileNotFoundError, ValueError):
            step_s = 0.0
        return datetime.now(UTC) + timedelta(seconds=step_s)


def room_clock(test_clock: Path | None) -> Clock:
    """The clock that a room goes by: the machine's, unless a setting names a file of steps."""
    return SteppedClock(test_clock) if test_clock is not None else SystemClock()


class FixedClock:
    """A clock that stands where it was put; for tests."""

    def __init__(self, at: datetime) -> None:
        """Stand at `at`, an aware time."""
        self.at = at

    def now(self) -> datetime:
        """The time that was set."""
        return self.at
