"""How often an agent may be allowed a request: never more than its limit in any minute.

A window slides by whole seconds: 61 of them are counted, so that any 60 s lie inside. Memory and
cost do not depend on the limit. Pure; seconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW_S: Final = 61
"""A minute and the second that it begins in."""


@dataclass(frozen=True, slots=True)
class RequestRate:
    """What was allowed lately: `counts[0]` in `second`, `counts[1]` before it, and so on."""

    second: int = 0
    counts: tuple[int, ...] = ()

    def at(self, second: int) -> RequestRate:
        """The same, seen from a later second; clocks that step back count on where they were."""
        passed = second - self.second
        if passed <= 0:
            return self
        counts = ((0,) * min(passed, WINDOW_S) + self.counts)[:WINDOW_S]
        return RequestRate(second, counts)

    def allow(self, second: int) -> RequestRate:
        """With one request more."""
        now = self.at(second)
        counts = now.counts or (0,)
        return RequestRate(now.second, (counts[0] + 1, *counts[1:]))

    def wait_s(self, second: int, limit: int) -> int:
        """Seconds until another request is allowed; 0: now."""
        now = self.at(second)
        total = sum(now.counts)
        if total < limit:
            return 0
        # The oldest leave first: as many must go as make room for one.
        for age in range(len(now.counts) - 1, -1, -1):
            total -= now.counts[age]
            if total < limit:
                return WINDOW_S - age + max(now.second - second, 0)
        return WINDOW_S
