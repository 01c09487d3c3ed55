"""What a channel may say over HTTP, and what the gateway stamps on it.

The one thing not to break: organization, source and channel come from the credential. A body that
names another organization is refused, never silently rewritten (design.md 2, *Who may do what*).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from contracts.catalog import EventType, find_event
from contracts.channel import (
    GoalStarted,
    IngestionReported,
    RoutineChanged,
    RunDeleted,
    RunFinished,
    RunHeartbeat,
    RunParked,
    RunResumed,
    RunStarted,
    UsageReported,
)
from contracts.envelope import Event, decode, encode, message_id
from contracts.errors import Invalid
from contracts.subjects import Address, event_subject, token_of
from contracts.types import ChannelRight
from contracts.upcast import upcast
from services.gateway.domain.json_text import refuse_unstorable

AHEAD_MAX: Final = timedelta(minutes=5)
"""How far a publisher's clock may run ahead (design.md 3, *Time*)."""
USAGE_AGE_MAX: Final = timedelta(hours=72)
"""Older usage needs the right `backfill` (design.md 3, *Time*)."""
_TYPE: Final = re.compile(r"rienda\.([a-z_]{1,64})\.v([1-9][0-9]{0,3})\Z")
_INSTANT_OF: Final = {
    "run_started": "started_at",
    "run_heartbeat": "at",
    "run_parked": "at",
    "run_resumed": "at",
    "run_finished": "ended_at",
    "run_deleted": "deleted_at",
    "usage_reported": "occurred_at",
    "ingestion_reported": "occurred_at",
}
"""The field that `time` is taken from where it is absent: a retry must say the same words. States
that tell of no instant need `time` itself."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """The channel that a key belongs to."""

    org: str
    channel_id: str
    rights: frozenset[ChannelRight]

    @property
    def source(self) -> str:
        """The CloudEvents `source` of everything it says."""
        return f"channel/{self.channel_id}"


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event ready to be published."""

    event_id: str
    subject: str
    message_id: str
    body: bytes


def stamp(item: object, publisher: Publisher, *, now: datetime) -> Stamped:
    """Check one CloudEvent of a channel and stamp who says it.

    Fills `specversion`, `datacontenttype` and `time` where absent; overwrites `source`.

    Raises:
        Invalid: `not_an_object`, what `refuse_unstorable` refuses, `wrong_organization`,
            `unknown_event`, `not_for_channels`, `oversized`, `naive_time`, `invalid_field`,
            `time_in_future`, `usage_too_old`.
    """
    refuse_unstorable(item)
    if not isinstance(item, dict):
        raise Invalid("an event is a JSON object (CloudEvents 1.0)", reason="not_an_object")
    _refuse_foreign(item, publisher)
    event_type, version = _type_of(item.get("type"))
    address = Address(publisher.org, "channel", publisher.channel_id, event_type, version)
    body = json.dumps(_stamped(item, publisher, event_type), ensure_ascii=False).encode()
    if version != event_type.version:
        body = upcast(body, address)
    event = decode(body, event_type.event_model)
    _refuse_untimely(event, publisher, now)
    encoded = encode(event)
    subject = event_subject(
        event_type,
        publisher.org,
        channel_id=publisher.channel_id,
        token=_token_of(event),
    )
    return Stamped(event.id, subject, message_id(subject, event.source, event.id, encoded), encoded)


def _token_of(event: Event[Any]) -> str | None:
    """The last token of a pulse's subject; other events have none."""
    if isinstance(event.data, RunHeartbeat):
        return token_of("run", event.data.run_id)
    return None


def _refuse_foreign(item: Mapping[str, Any], publisher: Publisher) -> None:
    claimed = item.get("subject")
    if claimed is not None and claimed != publisher.org:
        raise Invalid(
            f"the key belongs to {publisher.org}, the event's subject names another organization: "
            "leave subject out or name your own",
            reason="wrong_organization",
        )


def _type_of(name: object) -> tuple[EventType, int]:
    match = _TYPE.match(name) if isinstance(name, str) else None
    if match is None:
        raise Invalid(
            "type names no event: write rienda.<event>.v<version>, e.g. rienda.run_started.v1",
            reason="unknown_event",
        )
    event, version = find_event(match[1]), int(match[2])
    if version > event.version:
        raise Invalid(
            f"{event.name} is known up to version {event.version}", reason="unknown_event"
        )
    if event.producer != "channel":
        raise Invalid(f"a channel does not say {event.name}", reason="not_for_channels")
    return event, version


def _stamped(
    item: Mapping[str, Any], publisher: Publisher, event_type: EventType
) -> dict[str, Any]:
    stamped = {
        "specversion": "1.0",
        **item,
        "source": publisher.source,
        "subject": publisher.org,
    }
    kind = item.get("datacontenttype", "application/json")
    if isinstance(kind, str) and kind.split(";")[0].strip().lower() == "application/json":
        stamped["datacontenttype"] = "application/json"
    data = item.get("data")
    if item.get("time") is None and isinstance(data, dict):
        instant = _INSTANT_OF.get(event_type.name)
        stamped["time"] = data.get(instant) if instant is not None else None
    return stamped


def _refuse_untimely(event: Event[Any], publisher: Publisher, now: datetime) -> None:
    match event.data:
        case RunStarted(started_at=at) | RunFinished(ended_at=at) | RunDeleted(deleted_at=at):
            pass
        case RunHeartbeat(at=at) | RunParked(at=at) | RunResumed(at=at):
            pass
        case UsageReported(occurred_at=at) | IngestionReported(occurred_at=at):
            if now - at > USAGE_AGE_MAX and ChannelRight.BACKFILL not in publisher.rights:
                raise Invalid(
                    "usage older than 72 hours needs the channel's right backfill",
                    reason="usage_too_old",
                )
        case RoutineChanged() | GoalStarted():
            at = event.time
        case _:
            raise TypeError(f"no rule says when {event.type} happened")
    if max(at, event.time) - now > AHEAD_MAX:
        raise Invalid(
            "the event lies more than 5 minutes ahead: set the publisher's clock",
            reason="time_in_future",
        )
