"""The envelope: CloudEvents 1.0 as structured JSON, and the questions' frame.

`Event[T]` is what handlers see. `encode` and `decode` are the only ways onto and off the wire; what
`decode` lets through can be stored, belongs to the subject that it came on, and has the newest
shape.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from contracts.errors import Invalid
from contracts.types import ChannelId, Details, EventId, Instant, OrgId, Wire

BODY_BYTES_MAX = 256 * 1024
"""Largest event or question, encoded (design.md 2, *Envelope*)."""
FIELD_ERRORS_MAX = 8
"""How many field errors one refusal names."""
TYPE_PREFIX = "rienda."
Source = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7E]{1,256}$")]
TraceParent = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")
]
"""W3C Trace Context, `traceparent`."""
CorrelationId = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7E]{1,256}$")]

T = TypeVar("T", bound=Wire)


class Event(Wire, Generic[T]):
    """One CloudEvent. `subject` is the organization, `_` for the deployment."""

    specversion: Literal["1.0"] = "1.0"
    id: EventId
    source: Source
    type: str
    time: Instant
    subject: OrgId | Literal["_"]
    datacontenttype: Literal["application/json"] = "application/json"
    correlationid: CorrelationId | None = None
    causationid: CorrelationId | None = None
    traceparent: TraceParent | None = None
    data: T

    @property
    def org(self) -> str:
        """The organization that the event belongs to."""
        return self.subject


class Actor(Wire):
    """Who asks, as the gateway stamped it; accepted from the gateway only."""

    pseudonym: str
    permissions: tuple[str, ...] = ()
    channel_id: ChannelId | None = None
    """The channel that the caller's key is bound to; it owns the runs that it says first."""


class Ask(Wire, Generic[T]):
    """The frame of a question."""

    data: T
    actor: Actor | None = None
    correlation_id: CorrelationId | None = None
    timeout_ms: Annotated[int, Field(ge=1, le=60_000, strict=True)] = 1_000
    """How long the asker waits; an answer after it is work for nobody."""


class AnswerError(Wire):
    """A fault on its way back to the asker."""

    code: str
    reason: str
    message: str
    details: Details = {}


class Answer(Wire, Generic[T]):
    """Exactly one of `data` and `error`."""

    data: T | None = None
    error: AnswerError | None = None


def type_name(name: str, version: int) -> str:
    """`rienda.run_started.v1`: the CloudEvents type of an event."""
    return f"{TYPE_PREFIX}{name}.v{version}"


def encode(event: Event[Any]) -> bytes:
    """Write an event for the wire.

    Raises:
        Invalid: `oversized` beyond `BODY_BYTES_MAX`, `nul_character`, `lone_surrogate`.
    """
    try:
        body = event.model_dump_json(exclude_none=False).encode()
    except (UnicodeEncodeError, ValueError) as error:
        raise Invalid(
            "the event holds a lone surrogate: send text that is valid Unicode",
            reason="lone_surrogate",
        ) from error
    _refuse_oversized(body)
    _refuse_nul(body)
    return body


def decode(body: bytes, model: type[Event[T]]) -> Event[T]:
    """Read an event of a known type.

    Raises:
        Invalid: `oversized`, `nul_character`, `not_json`, `naive_time` or `invalid_field`, with
            the fields' names in `details["fields"]`; the values are never repeated.
    """
    _refuse_oversized(body)
    _refuse_nul(body)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid_from(error) from None


def decode_mapping(value: Mapping[str, Any], model: type[T]) -> T:
    """As `decode`, from JSON that was parsed already (after an upcast; items of a batch)."""
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise invalid_from(error) from None
    except (TypeError, UnicodeEncodeError, ValueError) as error:
        raise Invalid("the body is no JSON object", reason="not_json") from error


def invalid_from(error: ValidationError) -> Invalid:
    """Turn pydantic's errors into one refusal that names fields and never repeats values."""
    fields = [
        {
            "field": ".".join(str(part) for part in item["loc"]) or "(body)",
            "message": item["msg"].removeprefix("Value error, "),
        }
        for item in error.errors(include_input=False, include_url=False, include_context=False)
    ]
    first = fields[0]
    if any(item["message"].startswith("naive time") for item in fields):
        reason = "naive_time"
    elif error.errors(include_input=False)[0]["type"] == "json_invalid":
        reason = "not_json"
    else:
        reason = "invalid_field"
    return Invalid(
        f"{first['field']}: {first['message']}", reason=reason, fields=fields[:FIELD_ERRORS_MAX]
    )


def message_id(subject: str, source: str, event_id: str, body: bytes) -> str:
    """`Nats-Msg-Id`: a hash of subject, source, id and body.

    The stream's window of duplicates is one for all its publishers, so an id alone would let two
    channels that both say `1` shadow one another (design.md 2, *Exactly one effect*).
    """
    digest = hashlib.sha256()
    for part in (subject.encode(), source.encode(), event_id.encode(), body):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return digest.hexdigest()


def _refuse_oversized(body: bytes) -> None:
    if len(body) > BODY_BYTES_MAX:
        raise Invalid(
            f"the body has {len(body)} bytes, at most {BODY_BYTES_MAX} are taken",
            reason="oversized",
            bytes=len(body),
            bytes_max=BODY_BYTES_MAX,
        )


def _refuse_nul(body: bytes) -> None:
    if b"\\u0000" not in body:
        return
    # An escaped backslash before `u0000` is harmless text: only a parse can tell.
    try:
        value = json.loads(body)
    except ValueError:
        return
    except RecursionError:
        raise Invalid("the body is nested too deep", reason="not_json") from None
    if _holds_nul(value):
        raise Invalid(
            "a text holds a NUL character, which no database stores: remove it",
            reason="nul_character",
        )


def _holds_nul(value: object) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if "\x00" in item:
                return True
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return False
