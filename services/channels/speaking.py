"""What a run and a request need of their channel, and how last words survive a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from contracts.ledger import Authorization, Authorize
from services.channels.transport import Said
from shared.clock import Clock

T = TypeVar("T")


class Voice(Protocol):
    """A channel as its runs see it (`services.channels.client.Channel`)."""

    clock: Clock
    heartbeat_s: float
    requests_unknown: int

    async def say(self, event: Said) -> None:
        """Say it now, or keep it; raises when neither worked."""
        ...

    async def pulse(self, event: Said) -> None:
        """Say what is worth nothing later."""
        ...

    async def ask(self, question: Authorize) -> Authorization | None:
        """Ask; nothing when nobody answered and the organization allows that."""
        ...

    async def void(self, request_id: str) -> None:
        """Let go of what is held for a request that was not sent; raises nothing."""
        ...


async def despite_cancellation(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that must end, even when the waiting task is cancelled; then obey.

    `work` has to bound itself in time.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    failure = task.exception()
    if cancelled is not None:
        if failure is not None:
            cancelled.add_note(str(failure))
        raise cancelled from failure
    return task.result()
