"""Asking another room for a caller: the actor is stamped here and nowhere else."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from contracts.catalog import DEPLOYMENT
from contracts.types import Wire
from services.gateway.http.contract import Call
from shared.bus import BusUnavailable

T = TypeVar("T", bound=Wire)
READING_S: Final = 3.0
"""How long a reading question may take; asked twice at most."""
AUTHORIZE_S: Final = 1.0
"""The client's deadline (design.md 2, *Questions*)."""
CREDENTIAL_S: Final = 2.0
"""The bootstrap process writes a file and has the server read it."""


async def ask_ledger(
    call: Call[Any, Any],
    question: str,
    data: Wire,
    *,
    answer: type[T],
    timeout_s: float = READING_S,
) -> T:
    """Ask the ledger about the caller's organization.

    Raises:
        BusUnavailable: the bus is away; said at once instead of waiting for the deadline.
        NobodyAnswers: the ledger is.
        Fault: what the ledger answered.
    """
    _require_bus(call)
    return await call.ports.asker.ask(
        "ledger",
        question,
        data,
        answer,
        org=call.org,
        actor=call.caller.actor(),
        timeout_s=timeout_s,
    )


async def ask_bootstrap(call: Call[Any, Any], question: str, data: Wire, *, answer: type[T]) -> T:
    """Ask the bootstrap process; it belongs to the deployment.

    Raises:
        BusUnavailable, NobodyAnswers, Fault: as `ask_ledger`.
    """
    _require_bus(call)
    return await call.ports.asker.ask(
        "bootstrap",
        question,
        data,
        answer,
        org=DEPLOYMENT,
        actor=call.caller.actor(),
        timeout_s=CREDENTIAL_S,
    )


def _require_bus(call: Call[Any, Any]) -> None:
    if not call.ports.bus.is_up:
        raise BusUnavailable("the bus is away: try again", reason="bus_away")
