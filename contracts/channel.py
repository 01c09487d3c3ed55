"""What channels say about runs and money (events.md 1, *Runs and money*).

A run id, an agent id or a request id is the channel's platform's own. Token counts may be any
64-bit integer: negative or contradictory ones become an entry at 0 with `bad_usage`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from contracts.types import (
    ENDED_STATUSES,
    AgentId,
    Count,
    Id,
    Instant,
    Int64,
    ModelName,
    Name,
    NanoUsd,
    Revision,
    RunStatus,
    Sentence,
    Surface,
    UsageKind,
    Wire,
)

TOOL_COUNT_KEYS_MAX = 32
PARKED_CALLS_MAX = 100
"""Most calls that one model step parks; no platform lets a model make so many at once."""
PARKED_CONTEXT_KEYS_MAX = 32
ARGUMENTS_CHARS_MAX = 200_000
"""Longest arguments of one call; the whole event is bounded by the envelope."""
GOAL_CHARS_MAX = 20_000
ROUTINE_CHANNELS_MAX = 32
ROUTINE_SOURCES_MAX = 100


class AskedInChat(Wire):
    """The chat account that a run was asked from, where no person is linked to it."""

    platform: Id
    account: Id
    bot: Id


class RunStarted(Wire):
    """A run began; said once, before its first model request."""

    run_id: Id
    root_run_id: Id
    """The run that a person or trigger started; equals `run_id` for a top-level run."""
    parent_run_id: Id | None = None
    delegation_id: Id | None = None
    agent_id: AgentId
    agent_version: Id | None = None
    user_id: Id | None
    """Whom it ran as; null is a statement: nobody."""
    started_by_user_id: Id | None
    """The person who started it; null for schedules, triggers, visitors, unlinked accounts."""
    surface: Surface
    budget_nanousd: NanoUsd | None = None
    """The run's own cap."""
    conversation_id: Id | None = None
    project_id: Id | None = None
    """The platform's project that the work belongs to, as `turn_recorded` names it."""
    environment_id: Id | None = None
    exposure_id: Id | None = None
    routine_id: Id | None = None
    goal_id: Id | None = None
    system_role: Id | None = None
    """Set for work of the platform itself (titles, reviews); not in its agent's month."""
    model: ModelName | None = None
    provider: Id | None = None
    key_id: Id | None = None
    asked_in_chat: AskedInChat | None = None
    started_at: Instant

    @model_validator(mode="after")
    def _a_root_has_no_parent(self) -> Self:
        if (self.parent_run_id is None) != (self.root_run_id == self.run_id):
            raise ValueError("a delegated run names parent_run_id and another root_run_id")
        if self.parent_run_id == self.run_id:
            raise ValueError("a run is not its own parent")
        return self


class RunHeartbeat(Wire):
    """The run's process is alive."""

    run_id: Id
    at: Instant


class ParkedDelegate(Wire):
    """Who acts inside a delegation; an inline specialist is no agent and has a name only."""

    agent_id: AgentId | None = None
    name: Name


class ParkedCall(Wire):
    """One call of a tool that waits for a person."""

    call_id: Id
    tool_id: Id
    tool_name: Name
    arguments: Annotated[str, StringConstraints(max_length=ARGUMENTS_CHARS_MAX)]
    """One JSON text, exactly what will be executed."""
    delegation_id: Id | None = None
    delegate: ParkedDelegate | None = None
    context: Annotated[dict[Id, Sentence], Field(max_length=PARKED_CONTEXT_KEYS_MAX)] = {}
    """Names of what the arguments speak of, as the run's person may see them."""
    deadline_at: Instant | None = None
    idempotent: bool | None = None
    """Whether doing it twice is doing it once; null: not known."""


class RunParked(Wire):
    """The whole run stopped and waits for people; nothing of it runs until it is resumed."""

    run_id: Id
    at: Instant
    state_ref: Id | None = None
    """Where the channel keeps what it needs to go on."""
    calls: Annotated[tuple[ParkedCall, ...], Field(min_length=1, max_length=PARKED_CALLS_MAX)]


class RunResumed(Wire):
    """A parked run goes on, in whatever process claimed it."""

    run_id: Id
    claim_id: Id
    at: Instant


class RunFinished(Wire):
    """A run ended. A later end replaces an earlier one."""

    run_id: Id
    status: RunStatus
    error: Sentence | None = None
    """A controlled sentence; never a provider's text."""
    tools: tuple[Id, ...] = ()
    """The tools of a loop that was stopped; never their arguments."""
    missing_delegates: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 0
    """Delegations that the channel knows of and whose spend it cannot report: a floor."""
    ended_at: Instant

    @model_validator(mode="after")
    def _the_status_is_an_end(self) -> Self:
        if self.status not in ENDED_STATUSES:
            raise ValueError(f"status {self.status.value} does not end a run")
        return self


class RunDeleted(Wire):
    """The platform deleted a run: nobody sees it any more. What it spent stays in the bill."""

    run_id: Id
    deleted_at: Instant


class RoutineChanged(Wire):
    """A routine's whole state after a change; the newest `config_revision` holds."""

    routine_id: Id
    kind: Literal["schedule", "event", "watch"]
    name: Name
    owner_user_id: Id
    agent_id: AgentId
    version_pin: Id | None = None
    state: Literal["active", "paused", "expired", "deleted"]
    ends_at: Instant | None = None
    monthly_budget_nanousd: NanoUsd | None = None
    """The cap of its runs per month; null: uncapped."""
    notification_channels: Annotated[tuple[Id, ...] | None, Field(max_length=ROUTINE_CHANNELS_MAX)]
    """Null is a statement: as its owner is told of other things."""
    failures_max: Annotated[int, Field(ge=1, le=20, strict=True)] | None
    """Null is a statement: failures never pause it."""
    result_mode: Literal["report", "inbox"]
    conversation_id: Id | None = None
    config_revision: Revision
    source_revisions: Annotated[dict[Id, Count], Field(max_length=ROUTINE_SOURCES_MAX)] = {}
    """Of what it reads, by source."""


class GoalStarted(Wire):
    """A goal that several trees of runs work at; said once."""

    goal_id: Id
    project_id: Id
    session_id: Id
    channel: Id | None = None
    conversation_id: Id | None = None
    agent_id: AgentId
    user_id: Id
    goal: Annotated[str, StringConstraints(min_length=1, max_length=GOAL_CHARS_MAX)]
    turns_max: Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
    budget_nanousd: NanoUsd | None = None
    """What all of it may cost, in whatever months; null: uncapped. Said again, the least holds."""
    threshold_tokens: Count | None = None


class Tokens(Wire):
    """Counts of one request as its provider reported them."""

    input: Int64 = 0
    """Uncached + cache_read + cache_write_5m + cache_write_1h."""
    output: Int64 = 0
    cache_read: Int64 = 0
    cache_write_5m: Int64 = 0
    cache_write_1h: Int64 = 0
    reasoning: Int64 = 0
    """Part of `output`."""
    audio_input: Int64 = 0
    """Part of `input`."""
    audio_output: Int64 = 0
    """Part of `output`."""


class PriceContext(Wire):
    """What else the price depends on."""

    service_tier: Id | None = None
    processing: Literal["batch"] | None = None


class ProviderCost(Wire):
    """What the provider itself says that the request cost; beats the catalogue."""

    amount: Annotated[str, StringConstraints(max_length=64)]
    """A decimal number; an amount that is none falls back to the catalogue."""
    currency: Annotated[str, StringConstraints(max_length=16)]


class IngestionReported(Wire):
    """A provider request that belongs to no run was paid for: documents were made searchable.

    Request ids are those of `usage_reported` as well: one request is one amount, whoever says it.
    """

    ingestion_id: Id
    """The piece of work that the request was made for."""
    request_id: Id
    document_id: Id | None = None
    collection_id: Id | None = None
    model: ModelName
    provider: Id | None = None
    key_id: Id | None = None
    tokens: Tokens
    tool_counts: Annotated[dict[Id, Int64], Field(max_length=TOOL_COUNT_KEYS_MAX)] = {}
    price_context: PriceContext = PriceContext()
    provider_cost: ProviderCost | None = None
    hold_id: Id | None = None
    interrupted: bool = False
    unauthorized_reason: Sentence | None = None
    started_at: Instant | None = None
    occurred_at: Instant


class UsageReported(Wire):
    """One provider request was paid for. A report that grew is a new event with a new id."""

    request_id: Id
    run_id: Id
    """The nearest row that sent it."""
    billed_run_id: Id | None = None
    """The nearest ancestor with a row of its own, where it is not `run_id`."""
    delegation_id: Id | None = None
    turn_id: Id | None = None
    kind: UsageKind = UsageKind.MODEL
    model: ModelName
    provider: Id | None = None
    key_id: Id | None = None
    tokens: Tokens
    tool_counts: Annotated[dict[Id, Int64], Field(max_length=TOOL_COUNT_KEYS_MAX)] = {}
    price_context: PriceContext = PriceContext()
    provider_cost: ProviderCost | None = None
    hold_id: Id | None = None
    context_window_tokens: Int64 | None = None
    interrupted: bool = False
    unauthorized_reason: Sentence | None = None
    started_at: Instant | None = None
    occurred_at: Instant
