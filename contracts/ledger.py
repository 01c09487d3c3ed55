"""What the ledger says and answers (events.md 2 and 3).

Money is integer nano-USD here; decimal strings exist at the gateway's edge only. Every sum that
may lack an unpriced request says so beside it (`*_is_partial`): it is a floor.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contracts.channel import TOOL_COUNT_KEYS_MAX, PriceContext
from contracts.types import (
    AgentId,
    ChannelId,
    Count,
    Id,
    Instant,
    Int64,
    ModelName,
    NanoUsd,
    OnUnreachable,
    Revision,
    RunChangeReason,
    RunStatus,
    Sentence,
    SumCount,
    SumNanoUsd,
    Surface,
    UsageKind,
    Wire,
)

PAGE_ROWS_MAX = 100
PAGE_ROWS_DEFAULT = 50
Month = Annotated[str, Field(pattern=r"^\d{4}-\d{2}$")]
CapScope = Literal[
    "run", "routine", "goal", "person", "system_role", "agent", "department", "organization"
]
"""In the order in which caps are checked, narrowest first (design.md 4)."""


Media = Literal["audio_input", "audio_output", "image_input", "video_input"]
"""What tokens may be besides words, where a model charges it apart."""
MEDIA_MAX = 4


class TokenSums(Wire):
    """Sums of `Tokens`; requests with impossible counts add nothing."""

    input: SumCount = 0
    output: SumCount = 0
    cache_read: SumCount = 0
    cache_write_5m: SumCount = 0
    cache_write_1h: SumCount = 0
    reasoning: SumCount = 0
    audio_input: SumCount = 0
    audio_output: SumCount = 0


class Totals(Wire):
    """Sums over entries; negative only where a correction exceeds what it corrects."""

    cost_nanousd: SumNanoUsd
    request_count: Int64
    """Provider requests, each once however often it was reported."""
    unpriced_count: Int64
    missing_delegate_count: Int64
    tokens: TokenSums


# --- said ------------------------------------------------------------------------------------


class RunChanged(Wire):
    """A run's status or totals changed; the newest `run_revision` is the whole truth."""

    run_id: Id
    run_revision: Revision
    status: RunStatus
    previous: RunStatus | None
    reason: RunChangeReason
    surface: Surface | None
    agent_id: AgentId | None
    user_id: Id | None
    started_by_user_id: Id | None
    routine_id: Id | None = None
    parent_run_id: Id | None
    root_run_id: Id
    totals: Totals
    partial: bool
    error: Sentence | None = None
    at: Instant
    deleted: bool = False
    """Its platform deleted it; `parent_run_id` of its delegates is null from then on."""


# --- asked: authorize --------------------------------------------------------------------------


class Authorize(Wire):
    """May this request be sent? Asked before each one; idempotent by `request_id`."""

    request_id: Id
    run_id: Id | None
    """Null for ingestion, which belongs to no run."""
    root_run_id: Id | None
    agent_id: AgentId | None
    root_agent_id: AgentId | None
    user_id: Id | None
    started_by_user_id: Id | None
    routine_id: Id | None = None
    goal_id: Id | None = None
    run_budget_nanousd: NanoUsd | None = None
    kind: UsageKind = UsageKind.MODEL
    model: ModelName
    provider: Id | None = None
    price_context: PriceContext = PriceContext()
    input_tokens_max: Count | None = None
    output_tokens_max: Count | None = None
    cost_nanousd_max: NanoUsd | None = None
    request_timeout_s: Annotated[int, Field(ge=1, le=86_400, strict=True)] | None = None
    must_fit: bool = False
    cache_write: Literal["none", "5m", "1h"] | None = None
    """Which cache its input may be written to; null: not stated, the dearest is assumed."""
    media: Annotated[tuple[Media, ...], Field(max_length=MEDIA_MAX)] | None = None
    """What besides words its tokens may be; null: not stated, the dearest is assumed."""
    tool_counts_max: Annotated[dict[Id, Count], Field(max_length=TOOL_COUNT_KEYS_MAX)] = {}
    """How often at most what is charged beside tokens: searches, seconds of audio."""
    surface: Surface | None = None
    """Of the run: `proactive` work is capped by person. Null: as its start said, or will."""


class CapLeft(Wire):
    """What remains under one cap after what is recorded, and in strict mode held."""

    scope: CapScope
    id: Id | AgentId
    name: str
    limit_nanousd: NanoUsd
    spent_nanousd: SumNanoUsd
    remaining_nanousd: SumNanoUsd
    """Limit minus spent and held, not below 0."""
    is_partial: bool
    cap_revision: Revision | None = None
    held_nanousd: SumNanoUsd = 0


RefusalCode = Literal[
    "budget_exceeded",
    "unpriced_model",
    "authority_lost",
    "delegate_archived",
    "delegate_version_missing",
    "organization_unknown",
    "missing_context",
    "rate_limited",
    "run_deleted",
]


class Refusal(Wire):
    """Why not: the cap that bound, as data (facts.md 2.2, item 4)."""

    code: RefusalCode
    scope: CapScope | None = None
    id: Id | AgentId | None = None
    name: str | None = None
    limit_nanousd: NanoUsd | None = None
    spent_nanousd: SumNanoUsd | None = None
    is_partial: bool = False
    held_nanousd: SumNanoUsd | None = None
    """What is held for requests under way, beside what is spent; null in recorded mode."""
    asked_nanousd: NanoUsd | None = None
    """The most that this request may cost, where it is known."""
    requests_per_minute: Count | None = None
    """The agent's limit, where `rate_limited`."""


class Authorization(Wire):
    """The answer. A refusal is an answer, not an error."""

    request_id: Id
    allowed: bool
    refusal: Refusal | None = None
    sentence: Sentence
    remaining: tuple[CapLeft, ...] = ()
    partial: bool = False
    """True when a figure among `remaining` is a floor."""
    on_unreachable: OnUnreachable
    decided_at: Instant
    hold_id: Id | None = None
    """Strict mode: what is held for this request; it is the request's own id."""
    held_nanousd: NanoUsd | None = None
    output_tokens_max: Count | None = None
    """The most output that this answer covers: granted where the question named no limit."""
    unpriced: bool = False
    """Allowed although nobody knows its price: held is what the asker states, spent is a floor."""
    already_settled: bool = False
    """The request was reported before: it is paid for, and nothing is held."""
    retry_after_s: Count | None = None
    """When to ask again, where `rate_limited`."""


# --- asked: reading ----------------------------------------------------------------------------


class RunFilter(Wire):
    """What narrows `/runs`, its page and its count alike (facts.md 3.4)."""

    agent_id: AgentId | None = None
    project_id: Id | None = None
    statuses: tuple[RunStatus, ...] = ()
    started_from: Instant | None = None
    started_to: Instant | None = None
    """Inclusive both."""
    parent_run_id: Id | None = None
    """Children of that run; beats `include_delegations`."""
    include_delegations: bool = False


RunOrder = Literal["started_at", "duration", "cost", "tokens"]


class ListRuns(Wire):
    """One page of runs with the exact total of the filter."""

    filter: RunFilter = RunFilter()
    order_by: RunOrder = "started_at"
    descending: bool = True
    skip: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX, strict=True)] = PAGE_ROWS_DEFAULT


class RunRow(Wire):
    """A run as the history shows it. `totals`: its whole tree for a root, else its own."""

    run_id: Id
    root_run_id: Id
    parent_run_id: Id | None
    delegation_id: Id | None
    channel_id: ChannelId
    agent_id: AgentId | None
    agent_name: str | None
    agent_version: Id | None
    user_id: Id | None
    started_by_user_id: Id | None
    surface: Surface | None
    status: RunStatus
    provisional: bool
    """Its start has not arrived; `started_at` is the earliest sign of it so far."""
    started_at: Instant | None
    ended_at: Instant | None
    error: Sentence | None
    model: ModelName | None
    provider: Id | None
    key_id: Id | None
    conversation_id: Id | None
    environment_id: Id | None
    project_id: Id | None = None
    budget_nanousd: NanoUsd | None
    totals: Totals
    own: Totals
    """Without delegated runs that have rows of their own."""
    is_partial: bool
    delegation_count: Count
    last_sign_at: Instant | None
    parked_at: Instant | None = None
    """Since when it waits for people; null unless it does."""
    reaped_at: Instant | None = None
    """When it was failed for its silence; null unless that verdict holds."""


class RunPage(Wire):
    """A page and the total of everything that the filter selects."""

    items: tuple[RunRow, ...]
    total: Count


class GetRun(Wire):
    """One run."""

    run_id: Id


class GetSpend(Wire):
    """The cost screen's figures for runs that started in a window (facts.md 2.5)."""

    started_from: Instant
    started_to: Instant | None
    """Inclusive both; null: up to now."""


class SpendLine(Wire):
    """One row of a breakdown."""

    cost_nanousd: SumNanoUsd
    run_count: Count
    is_partial: bool


class AgentSpend(SpendLine):
    """Top-level runs only: the rows add up to the bill."""

    agent_id: AgentId | None
    agent_name: str | None
    partial_run_count: Count
    month_to_date_nanousd: SumNanoUsd
    """Delegated runs included: the agent's own month."""
    month_to_date_is_partial: bool
    monthly_cap_nanousd: NanoUsd | None


class ProviderSpend(SpendLine):
    """By the entries' own provider; null: not recorded."""

    provider: Id | None


class KeySpend(SpendLine):
    """By the entries' own key; null: not recorded."""

    key_id: Id | None


class PersonSpend(SpendLine):
    """By who started the tree; null: nobody did (schedules, visitors), or nobody said so yet."""

    user_id: Id | None
    partial_run_count: Count


class DaySpend(SpendLine):
    """By the run's day in the billing time zone; zeros present."""

    day: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class IngestionSpend(Wire):
    """What belongs to no run, by when it occurred; in every breakdown but `by_agent`."""

    cost_nanousd: SumNanoUsd = 0
    request_count: Int64 = 0
    is_partial: bool = False


class Spend(Wire):
    """Every breakdown of one window adds up to `cost_nanousd`; `by_agent` with `ingestion`."""

    started_from: Instant
    started_to: Instant | None
    billing_timezone: str
    cost_nanousd: SumNanoUsd
    run_count: Count
    partial_run_count: Count
    is_partial: bool
    month: Month
    month_to_date_nanousd: SumNanoUsd
    month_to_date_is_partial: bool
    by_agent: tuple[AgentSpend, ...]
    by_provider: tuple[ProviderSpend, ...]
    by_key: tuple[KeySpend, ...]
    by_day: tuple[DaySpend, ...]
    ingestion: IngestionSpend = IngestionSpend()
    by_person: tuple[PersonSpend, ...] = ()
    deleted: SpendLine = SpendLine(cost_nanousd=0, run_count=0, is_partial=False)
    """Trees whose root was deleted. `cost_nanousd` = top-level runs + this + ingestion."""
