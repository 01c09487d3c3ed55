"""`POST /runs/{run_id}/authorize` and `POST /authorize`: may this request be sent?

A refusal is an answer, not an error: both are 200 (http.md).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from contracts import ledger
from contracts.channel import TOOL_COUNT_KEYS_MAX, PriceContext
from contracts.errors import Invalid
from contracts.ledger import MEDIA_MAX, CapScope, Media, RefusalCode
from contracts.types import (
    AgentId,
    Count,
    Id,
    Instant,
    ModelName,
    OnUnreachable,
    Revision,
    Surface,
    UsageKind,
    Wire,
)
from services.gateway.domain.permissions import CHANNELS_PUBLISH
from services.gateway.http.asking import AUTHORIZE_S, ask_ledger
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import Body, NoQuery, Usd, UsdIn


class AuthorizeIn(Body):
    """The request's context; keys that may be null have to be there: a null is a statement."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "request_id": "req-1",
                    "root_run_id": "run-17",
                    "agent_id": "researcher",
                    "root_agent_id": "researcher",
                    "user_id": None,
                    "started_by_user_id": "ada",
                    "model": "claude-sonnet-4-5",
                    "provider": "anthropic",
                }
            ]
        }
    )

    request_id: Id
    run_id: Id | None = None
    """Need not be sent; where it is, it is the one of the path."""
    root_run_id: Id | None
    agent_id: AgentId | None
    root_agent_id: AgentId | None
    user_id: Id | None
    started_by_user_id: Id | None
    routine_id: Id | None = None
    goal_id: Id | None = None
    run_budget_usd: UsdIn | None = None
    kind: UsageKind = UsageKind.MODEL
    model: ModelName
    provider: Id | None = None
    price_context: PriceContext = PriceContext()
    input_tokens_max: Count | None = None
    output_tokens_max: Count | None = None
    cost_usd_max: UsdIn | None = None
    request_timeout_s: Annotated[int, Field(ge=1, le=86_400, strict=True)] | None = None
    must_fit: bool = False
    cache_write: Literal["none", "5m", "1h"] | None = None
    """Which cache the input may be written to; where absent the dearest is assumed."""
    media: Annotated[tuple[Media, ...], Field(max_length=MEDIA_MAX)] | None = None
    """What besides words its tokens may be; where absent the dearest is assumed."""
    tool_counts_max: Annotated[dict[Id, Count], Field(max_length=TOOL_COUNT_KEYS_MAX)] = {}
    """How often at most what is charged beside tokens: searches, seconds of audio."""
    surface: Surface | None = None
    """Of the run: `proactive` work is capped by person; where absent, as its start said."""

    def question(self, run_id: str | None) -> ledger.Authorize:
        """As the ledger hears it, money in nano-USD.

        Raises:
            Invalid: `run_mismatch`.
        """
        if self.run_id not in (None, run_id):
            raise Invalid("run_id is another one than in the path", reason="run_mismatch")
        fields = dict(self)
        return ledger.Authorize(
            **{
                **fields,
                "run_id": run_id,
                "run_budget_nanousd": fields.pop("run_budget_usd"),
                "cost_nanousd_max": fields.pop("cost_usd_max"),
            }
        )


class Refusal(Wire):
    """The cap that bound, as data."""

    code: RefusalCode
    scope: CapScope | None
    id: AgentId | None
    name: str | None
    limit_usd: Usd | None
    spent_usd: Usd | None
    held_usd: Usd | None
    """For requests under way, beside what is spent; null in recorded mode."""
    asked_usd: Usd | None
    """The most that this request may cost, where it is known."""
    is_partial: bool
    requests_per_minute: int | None


class CapLeft(Wire):
    """What remains under one cap."""

    scope: CapScope
    id: AgentId
    name: str
    limit_usd: Usd
    spent_usd: Usd
    held_usd: Usd
    remaining_usd: Usd
    is_partial: bool
    cap_revision: Revision | None


class Authorization(Wire):
    """Allowed or refused, and what remains; `on_unreachable` holds for the next silence."""

    request_id: Id
    allowed: bool
    refusal: Refusal | None
    sentence: str
    remaining: tuple[CapLeft, ...]
    partial: bool
    on_unreachable: OnUnreachable
    decided_at: Instant
    hold_id: Id | None
    held_usd: Usd | None
    """Strict mode: what is held for this request until it is reported, voided, or expires."""
    output_tokens_max: int | None
    """The most output that this answer covers: pass it to the provider as its limit."""
    unpriced: bool
    already_settled: bool
    retry_after_s: int | None
    """When to ask again, where `rate_limited`."""


def _shown(decided: ledger.Authorization) -> Authorization:
    refusal = decided.refusal
    return Authorization(
        **{
            **_without_nanousd(decided),
            "held_usd": decided.held_nanousd,
            "refusal": _refusal(refusal) if refusal else None,
            "remaining": tuple(_cap_left(cap) for cap in decided.remaining),
        }
    )


def _refusal(refusal: ledger.Refusal) -> Refusal:
    return Refusal(
        **_without_nanousd(refusal),
        limit_usd=refusal.limit_nanousd,
        spent_usd=refusal.spent_nanousd,
        held_usd=refusal.held_nanousd,
        asked_usd=refusal.asked_nanousd,
    )


def _cap_left(cap: ledger.CapLeft) -> CapLeft:
    return CapLeft(
        **_without_nanousd(cap),
        limit_usd=cap.limit_nanousd,
        spent_usd=cap.spent_nanousd,
        held_usd=cap.held_nanousd,
        remaining_usd=cap.remaining_nanousd,
    )


def _without_nanousd(model: Wire) -> dict[str, Any]:
    return {name: value for name, value in model if not name.endswith("_nanousd")}


async def _authorize(call: Call[NoQuery, AuthorizeIn], run_id: str | None) -> Authorization:
    call.caller.require_publisher()
    decided = await ask_ledger(
        call,
        "authorize",
        call.body.question(run_id),
        answer=ledger.Authorization,
        timeout_s=AUTHORIZE_S,
    )
    return _shown(decided)


@route(
    "POST",
    "/runs/{run_id:str}/authorize",
    Contract(
        summary="Ask before a model request of a run",
        needs=(CHANNELS_PUBLISH,),
        query=NoQuery,
        body=AuthorizeIn,
        answer=Authorization,
        refusals=(409,),
    ),
)
async def authorize_run_request(call: Call[NoQuery, AuthorizeIn]) -> Authorization:
    """Idempotent by `request_id`. 200 with `allowed` true or false; the key is a channel's."""
    return await _authorize(call, call.path_id("run_id"))


@route(
    "POST",
    "/authorize",
    Contract(
        summary="Ask before a request that belongs to no run",
        needs=(CHANNELS_PUBLISH,),
        query=NoQuery,
        body=AuthorizeIn,
        answer=Authorization,
        refusals=(409,),
    ),
)
async def authorize_request(call: Call[NoQuery, AuthorizeIn]) -> Authorization:
    """For ingestion: the request has a cost and no run."""
    return await _authorize(call, None)


ROUTES = (authorize_run_request, authorize_request)
