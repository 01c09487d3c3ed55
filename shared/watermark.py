"""Up to when a room has handled everything that a stream stored, by the server's own clock.

Handled is what has had its effect, or is kept as a row of the retry table or of the dead letters.
A durable with nothing to come and nothing under way has handled all that was stored until the
server said so. Under load something is always under way: then it is enough that what was stored at
a first look is acknowledged at a later one.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import nats.errors

from contracts.types import parse_instant
from shared.bus import BusUnavailable

if TYPE_CHECKING:
    from contracts.catalog import DurableSpec
    from shared.bus import Bus

ANSWER_S_MAX = 2.0
LOOKS_MAX = 50
LOOK_EVERY_S = 0.2
"""Together ten seconds: a room that does not come to the end of a stream in them is behind."""


@dataclass(frozen=True, slots=True)
class Position:
    """What the server says of a durable at one moment."""

    at: datetime
    """The server's time."""
    pending: int
    """Stored and not delivered yet."""
    unacknowledged: int
    delivered_sequence: int
    handled_sequence: int
    """Everything up to it is acknowledged."""
    seen_s: float = 0.0
    """When it was seen, by this process's count of seconds (`time.monotonic`)."""


async def read_position(bus: Bus, spec: DurableSpec) -> Position:
    """Ask the server where a durable is.

    Raises:
        BusUnavailable: nobody answered, or it is not there.
    """
    subject = f"{bus.js_prefix}.CONSUMER.INFO.{spec.stream}.{spec.durable}"
    try:
        reply = await bus.client.request(subject, b"", timeout=ANSWER_S_MAX)
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusUnavailable(
            "the bus does not say where the durable is", reason=type(error).__name__.lower()
        ) from error
    said = json.loads(reply.data)
    if "error" in said:
        raise BusUnavailable(
            f"there is no durable {spec.durable} of {spec.stream}", reason="durable_missing"
        )
    return Position(
        at=parse_instant(said["ts"]),
        pending=said["num_pending"],
        unacknowledged=said["num_ack_pending"],
        delivered_sequence=said["delivered"]["stream_seq"],
        handled_sequence=said["ack_floor"]["stream_seq"],
        seen_s=time.monotonic(),
    )


def reached(first: Position | None, now: Position) -> Position | None:
    """The position up to whose time all is handled; `first` is one with nothing to come."""
    if now.pending == 0 and now.unacknowledged == 0:
        return now
    if first is not None and now.handled_sequence >= first.delivered_sequence:
        return first
    return None


async def read_watermark(bus: Bus, spec: DurableSpec) -> Position | None:
    """The position up to whose time all is handled; None where the room is behind.

    Raises:
        BusUnavailable: nobody answered.
    """
    first: Position | None = None
    for _ in range(LOOKS_MAX):
        position = await read_position(bus, spec)
        if (mark := reached(first, position)) is not None:
            return mark
        if first is None and position.pending == 0:
            first = position
        await asyncio.sleep(LOOK_EVERY_S)
    return None
