"""When the ledger may judge a run by its silence.

Silence is measured between two readings of one clock, that of the server which stores messages:
when it stored a run's last sign of life, and up to when everything that it stored is handled (the
watermark). It proves nothing while signs of life could not come through: for one threshold after
the start of the judging process, after a lost connection, and after a step of any clock
(ADR 0027).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

STEP_MAX = timedelta(seconds=10)
"""How far a clock may get away from time that passed, between two looks, and be called steady."""
SLOW_MAX = timedelta(minutes=4)
"""A room whose clock is farther back refuses, or is about to refuse, signs of life as of the future
(5 minutes, design.md 3, *Time*)."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the reaper sees when it looks."""

    watermark_at: datetime
    """Up to when, by the server's clock, everything is handled."""
    clock_at: datetime
    """The room's clock at the same moment."""
    passed: timedelta
    """Time that has passed since the process started; no step moves it."""
    connections: int
    """How often the process has connected to the bus."""


@dataclass(frozen=True, slots=True)
class Vigil:
    """Since when nothing kept signs of life from coming through."""

    since: timedelta = timedelta()
    last: Look | None = None

    def after(self, look: Look) -> Vigil:
        """The vigil with one more look; it begins anew where anything was interrupted."""
        if look.watermark_at - look.clock_at > SLOW_MAX:
            steady = False
        elif self.last is None:
            steady = look.connections == 0
        else:
            steady = is_continuous(self.last, look)
        return Vigil(self.since if steady else look.passed, look)

    def may_judge(self, threshold: timedelta) -> bool:
        """Whether it has lasted for longer than one threshold."""
        return self.last is not None and self.last.passed - self.since > threshold


def is_continuous(before: Look, now: Look) -> bool:
    """Whether the connection stood and both clocks went on as time did."""
    passed = now.passed - before.passed
    steps = (
        now.watermark_at - before.watermark_at - passed,
        now.clock_at - before.clock_at - passed,
    )
    return before.connections == now.connections and all(abs(step) <= STEP_MAX for step in steps)
