"""What a channel says, and the two ways to say it (`over_http`, `over_nats`).

The one thing not to break: a `Said` carries its own id and time, so that saying it twice, today or
from a spool file next week, is the same event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from contracts.catalog import EventType, event_model, event_of
from contracts.envelope import Event
from contracts.ledger import Authorization, Authorize
from contracts.types import Wire

EVENT_ID_CHARS_MAX = 256
"""`contracts.types.EventId`."""
DIGEST_CHARS = 32
"""128 bits of a SHA-256: enough for ids that nobody forges against themselves."""
DEADLINE_S = 1.0
"""How long a channel waits for one answer (design.md 2, *Questions*)."""


@dataclass(frozen=True, slots=True)
class Said:
    """One event before it is addressed: the transport adds organization and source."""

    id: str
    time: datetime
    data: Wire

    @property
    def event(self) -> EventType:
        """Its place in the catalogue."""
        return event_of(type(self.data))

    def envelope(self, *, source: str, org: str) -> Event[Any]:
        """The CloudEvent that goes on the wire."""
        model = event_model(type(self.data))
        return model(
            id=self.id,
            source=source,
            type=self.event.full_name,
            time=self.time,
            subject=org,
            data=self.data,
        )


class Verdict(StrEnum):
    """What became of one event."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one event; `reason` and `message` where it was refused."""

    id: str
    verdict: Verdict
    reason: str | None = None
    message: str | None = None


class Transport(Protocol):
    """A way to Rienda. Both ways raise the same errors, so that the client knows neither.

    Errors of both questions: `RiendaUnreachable` (say it again), `CredentialRefused`, and the
    faults of `contracts.errors` for what was understood and refused as a whole.
    """

    async def open(self) -> None:
        """Connect. An unreachable server is `RiendaUnreachable`; later calls try again."""
        ...

    async def close(self) -> None:
        """Let go of the connection."""
        ...

    async def publish(self, events: Sequence[Said]) -> list[Outcome]:
        """Say events and wait until they are stored; one outcome each, in order."""
        ...

    async def authorize(self, question: Authorize, *, timeout_s: float) -> Authorization:
        """Ask whether one request may be sent. A refusal is an answer."""
        ...

    async def void_hold(self, request_id: str, *, timeout_s: float) -> None:
        """Say that a request was not sent. That nothing is held for it is a fault `NotFound`."""
        ...


def derived_id(*parts: str, said: Wire | None = None) -> str:
    """An event id made of its business key and, where given, a digest of what is said.

    Equal words get equal ids and a report that grew gets another one (design.md 2, *Exactly one
    effect*). Keys that are too long for an event id are hashed as a whole.
    """
    words = [*parts]
    if said is not None:
        digest = hashlib.sha256(said.model_dump_json().encode()).hexdigest()
        words.append(digest[:DIGEST_CHARS])
    text = "/".join(words)
    if len(text) <= EVENT_ID_CHARS_MAX:
        return text
    return hashlib.sha256(text.encode()).hexdigest()
