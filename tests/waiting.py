"""Waiting on a condition with a deadline, never on time alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.05
WAIT_S_MAX = 60.0
"""Decides no verdict but "it never came"; generous for a machine that is shared."""


async def eventually(
    look: Callable[[], Awaitable[T]],
    holds: Callable[[T], bool] = bool,
    *,
    wait_s: float = WAIT_S_MAX,
) -> T:
    """Look again and again until it holds; fail with the last that was seen."""
    deadline = time.monotonic() + wait_s
    while True:
        seen = await look()
        if holds(seen):
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"it never held; last seen: {seen!r}")
        await asyncio.sleep(POLL_S)
