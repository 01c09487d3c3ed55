"""Field types that every event and question shares.

The one thing not to break: a value that passes here can be stored. Postgres refuses NUL, a 64-bit
column refuses a larger integer and a naive time has no meaning, so all three are refused on the
wire (design.md 2, *Envelope*), where the sender can still be told.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

BIGINT_MAX = 2**63 - 1
"""Largest integer of a Postgres BIGINT; money and counts are stored in one."""
BIGINT_MIN = -(2**63)
NANOUSD_PER_USD = 1_000_000_000

ID_CHARS_MAX = 128
TEXT_CHARS_MAX = 4_096
DETAILS_DEPTH_MAX = 32
YEAR_MIN = 2_000
"""Nothing that is told of here is older; a clock that was never set says 1970."""
YEAR_MAX = 9_000
"""Far enough from the last year that a time zone or a window can be added."""
SENTENCE_CHARS_MAX = 1_000

RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})\Z", re.ASCII
)

NEARLY_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class Wire(BaseModel):
    """A value on the wire: immutable, and tolerant of fields that a newer sender added."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null")


def parse_instant(value: object) -> datetime:
    """Read an RFC 3339 time with offset (or an aware datetime) as an aware UTC datetime.

    Raises:
        ValueError: the time has no offset, is no RFC 3339 text, or does not exist.
    """
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, str) and RFC3339.match(value):
        # A ninth digit is legal in RFC 3339; Python keeps six, as Postgres does.
        moment = datetime.fromisoformat(value.upper())
    elif isinstance(value, str) and NEARLY_RFC3339.match(value):
        raise ValueError("naive time: write RFC 3339 with an offset, e.g. 2026-11-30T12:00:00Z")
    else:
        raise ValueError("no time: write RFC 3339 with an offset, e.g. 2026-11-30T12:00:00Z")
    if moment.tzinfo is None:
        raise ValueError("naive time: write RFC 3339 with an offset, e.g. 2026-11-30T12:00:00Z")
    if not YEAR_MIN <= moment.year <= YEAR_MAX:
        raise ValueError(f"time outside the years {YEAR_MIN} to {YEAR_MAX}")
    return moment.astimezone(UTC)


def instant_text(moment: datetime) -> str:
    """Write a time as RFC 3339 in UTC; microseconds only where there are any."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


Instant = Annotated[
    datetime,
    BeforeValidator(parse_instant),
    PlainSerializer(instant_text, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""An aware UTC time; on the wire RFC 3339 with offset."""

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:@-]{1,128}$")]
"""An id of the platform that the thing comes from (design.md 3, *Ids*)."""
AgentId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:@/-]{1,128}$")]
"""As `Id`, and `/`: delegates are named after the agent that they belong to (ADR 0006)."""
OrgId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
"""One token of a subject; also a DNS label."""
ChannelId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
EventId = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7E]{1,256}$")]
"""CloudEvents `id`: printable ASCII without blanks."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]
RoleName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z_-]{0,31}$")]
"""A role of the gateway's catalogue; one that a hearer does not know holds nothing."""
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Sentence = Annotated[str, StringConstraints(max_length=SENTENCE_CHARS_MAX)]
Text = Annotated[str, StringConstraints(max_length=TEXT_CHARS_MAX)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Int64 = Annotated[int, Field(ge=BIGINT_MIN, le=BIGINT_MAX, strict=True)]
Count = Annotated[int, Field(ge=0, le=BIGINT_MAX, strict=True)]
NanoUsd = Annotated[int, Field(ge=0, le=BIGINT_MAX, strict=True)]
"""Nano-dollars, 1 USD = 10**9 (design.md 3, *Money*)."""
SumNanoUsd = Annotated[int, Field(strict=True)]
"""A sum of money; NUMERIC in tables, since a sum of 64-bit amounts may pass 64 bits."""
SumCount = Annotated[int, Field(strict=True)]
Revision = Annotated[int, Field(ge=1, le=BIGINT_MAX, strict=True)]


def storable_details(value: dict[str, Any]) -> dict[str, Any]:
    """Let a free object pass if a database and another language can hold it.

    Raises:
        ValueError: an integer beyond BIGINT, a number that is none, or nesting deeper than
            `DETAILS_DEPTH_MAX`.
    """
    stack: list[tuple[object, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > DETAILS_DEPTH_MAX:
            raise ValueError(f"nested deeper than {DETAILS_DEPTH_MAX} levels")
        if isinstance(item, dict):
            stack.extend((inner, depth + 1) for inner in item.values())
        elif isinstance(item, list | tuple):
            stack.extend((inner, depth + 1) for inner in item)
        elif isinstance(item, float) and not isfinite(item):
            raise ValueError("a number that is not finite")
        elif isinstance(item, int) and not BIGINT_MIN <= item <= BIGINT_MAX:
            raise ValueError("an integer beyond 64 bits: write it as text")
    return value


Details = Annotated[dict[str, Any], AfterValidator(storable_details)]
"""A free object: numbers of 64 bits, nested at most `DETAILS_DEPTH_MAX` deep."""


class Surface(StrEnum):
    """Where a run was started (events.md, *Surfaces*)."""

    WEB = "web"
    EMBED = "embed"
    API = "api"
    SLACK = "slack"
    TELEGRAM = "telegram"
    MATTERMOST = "mattermost"
    TEAMS = "teams"
    SMS = "sms"
    SCHEDULE = "schedule"
    EVENT = "event"
    PROACTIVE = "proactive"
    EVAL = "eval"
    VOICE = "voice"
    WORKFLOW = "workflow"
    CLI = "cli"
    OTEL = "otel"


class RunStatus(StrEnum):
    """The life of a run (facts.md 3.1)."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    AWAITING_APPROVAL = "awaiting_approval"
    BUDGET_EXCEEDED = "budget_exceeded"
    GUARDRAIL_BLOCKED = "guardrail_blocked"
    LOOP_STOPPED = "loop_stopped"


ENDED_STATUSES = frozenset(RunStatus) - {RunStatus.RUNNING, RunStatus.AWAITING_APPROVAL}
"""Statuses that a `run_finished` may carry."""


RunChangeReason = Literal[
    "started",
    "finished",
    "parked",
    "resumed",
    "reaped",
    "reopened",
    "reattributed",
    "totals",
    "deleted",
]
"""`reaped`: no sign of life for too long; `reopened`: it spoke again after that; `deleted`: its
platform deleted it."""


class UsageKind(StrEnum):
    """What a provider was asked for (events.md 1)."""

    MODEL = "model"
    EMBEDDING = "embedding"
    IMAGE = "image"
    AUDIO = "audio"
    COMPACTION = "compaction"
    REVIEWER = "reviewer"
    JUDGE = "judge"
    INGESTION = "ingestion"


class EntryKind(StrEnum):
    """What an entry is for: a kind of request, or a correction of another entry."""

    MODEL = "model"
    EMBEDDING = "embedding"
    IMAGE = "image"
    AUDIO = "audio"
    COMPACTION = "compaction"
    REVIEWER = "reviewer"
    JUDGE = "judge"
    INGESTION = "ingestion"
    CORRECTION = "correction"


class CapMode(StrEnum):
    """How a cap is enforced (design.md 4)."""

    RECORDED = "recorded"
    STRICT = "strict"


class UnpricedPolicy(StrEnum):
    """What a request to a model without a price may do under a cap."""

    ALLOW_AS_FLOOR = "allow_as_floor"
    REFUSE = "refuse"


class OnUnreachable(StrEnum):
    """What a channel does with a request when nobody answers."""

    REFUSE = "refuse"
    ALLOW = "allow"


class ChannelRight(StrEnum):
    """What a channel may do beyond publishing of the present."""

    BACKFILL = "backfill"
    """Report usage that is older than `USAGE_AGE_MAX`."""
