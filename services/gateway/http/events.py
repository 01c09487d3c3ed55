"""`POST /events`: what channels say over HTTP, each event answered on its own.

The one thing not to break: `accepted` means that the stream has acknowledged. Where the bus is away
the whole request is answered 503; sending it again does no harm, because the ids are the same.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, RootModel

from contracts.envelope import AnswerError
from contracts.errors import Fault, Invalid
from contracts.types import Details, EventId, Instant, Wire
from services.gateway.domain.events import Stamped, stamp
from services.gateway.domain.json_text import parse
from services.gateway.domain.permissions import CHANNELS_PUBLISH
from services.gateway.http.contract import JSON, Call, Contract, require_media, route
from services.gateway.http.fields import NoBody, NoQuery
from shared.bus import Ack, BusUnavailable
from shared.outbox import Message

EVENTS_MAX: Final = 100
ONE: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
Outcome = Literal["accepted", "duplicate", "refused"]


class CloudEventIn(Wire):
    """A CloudEvent of a channel; `source` is overwritten, `subject` may only be one's own."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "run-17/started",
                    "type": "rienda.run_started.v1",
                    "data": {
                        "run_id": "run-17",
                        "root_run_id": "run-17",
                        "agent_id": "researcher",
                        "user_id": None,
                        "started_by_user_id": None,
                        "surface": "api",
                        "started_at": "2026-11-30T12:00:00Z",
                    },
                }
            ]
        }
    )

    id: EventId
    type: Annotated[str, Field(pattern=r"^rienda\.[a-z_]+\.v[0-9]+$")]
    data: Details
    specversion: Literal["1.0"] = "1.0"
    time: Instant | None = None
    """Absent: the instant in `data` that says when it happened."""
    subject: str | None = None
    datacontenttype: Literal["application/json"] = "application/json"
    correlationid: str | None = None
    causationid: str | None = None
    traceparent: str | None = None


class EventsIn(RootModel[CloudEventIn | tuple[CloudEventIn, ...]]):
    """One event, or an array of at most 100."""


class EventAnswer(Wire):
    """What became of one event."""

    id: str | None
    """As sent; null where it is no text."""
    status: Outcome
    error: AnswerError | None = None


class EventAnswers(Wire):
    """One answer per event, in the order of the request, and the counts."""

    items: tuple[EventAnswer, ...]
    accepted: int
    duplicate: int
    refused: int


@route(
    "POST",
    "/events",
    Contract(
        summary="Publish events of a channel",
        needs=(CHANNELS_PUBLISH,),
        query=NoQuery,
        body=NoBody,
        answer=EventAnswers,
        status=202,
        documented_body=EventsIn,
    ),
)
async def publish_events(call: Call[NoQuery, NoBody]) -> EventAnswers:
    """One CloudEvent or an array of at most 100; a refused one does not harm its neighbours.

    The key has to belong to a channel. 202 is answered after the stream's acknowledgement.
    """
    publisher = call.caller.require_publisher()
    now = call.ports.clock.now()
    checked: list[Stamped | Invalid] = []
    items = await _items_of(call)
    for item in items:
        try:
            checked.append(stamp(item, publisher, now=now))
        except Invalid as refusal:
            checked.append(refusal)
    acks = await _publish(call, [event for event in checked if isinstance(event, Stamped)])
    return _answers(items, checked, acks)


async def _items_of(call: Call[Any, Any]) -> list[object]:
    media = require_media(call.request, (JSON, ONE, BATCH))
    value = parse(await call.request.body())
    if isinstance(value, list) and media != ONE:
        if len(value) > EVENTS_MAX:
            raise Invalid(
                f"{len(value)} events at once: send at most {EVENTS_MAX}",
                reason="too_many_events",
            )
        return value
    if isinstance(value, list) or media == BATCH:
        raise Invalid(f"the body does not fit its media type {media}", reason="media_mismatch")
    return [value]


async def _publish(call: Call[Any, Any], events: list[Stamped]) -> list[Ack]:
    if not events:
        return []
    bus = call.ports.bus
    if not bus.is_up:
        raise BusUnavailable("the bus is away: send the events again", reason="bus_away")
    outcomes = await asyncio.gather(
        *(bus.publish(Message(event.subject, event.message_id, event.body)) for event in events),
        return_exceptions=True,
    )
    acks: list[Ack] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        acks.append(outcome)
    return acks


def _answers(
    items: list[object], checked: list[Stamped | Invalid], acks: list[Ack]
) -> EventAnswers:
    acknowledged = iter(acks)
    answers: list[EventAnswer] = []
    for item, outcome in zip(items, checked, strict=True):
        if isinstance(outcome, Stamped):
            status: Outcome = "duplicate" if next(acknowledged).duplicate else "accepted"
            answers.append(EventAnswer(id=outcome.event_id, status=status))
        else:
            error = _error_of(outcome)
            answers.append(EventAnswer(id=_id_of(item), status="refused", error=error))
    counts = {
        status: sum(answer.status == status for answer in answers)
        for status in ("accepted", "duplicate", "refused")
    }
    return EventAnswers(items=tuple(answers), **counts)


def _error_of(fault: Fault) -> AnswerError:
    return AnswerError(
        code=fault.code, reason=fault.reason, message=fault.message, details=fault.details
    )


def _id_of(item: object) -> str | None:
    claimed = item.get("id") if isinstance(item, dict) else None
    if not isinstance(claimed, str):
        return None
    return claimed[:256].encode("utf-8", "replace").decode()


ROUTES = (publish_events,)
