"""Runs of a transcript as the events that a channel says about them. Pure.

The one thing not to break: an event's id is derived from a line's uuid and a digest of the event's
data, so the same file says the same ids and a longer one adds only what is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from contracts.channel import PriceContext, RunFinished, RunStarted, Tokens, UsageReported
from contracts.types import Surface, Wire
from services.channels.transcripts.records import Usage
from services.channels.transcripts.rules import Request, Run, Session
from services.channels.transport import Said, derived_id

PROVIDER = "anthropic"
DELEGATE_SUFFIX = "/subagent"
WEB_SEARCHES = "web_searches"
"""The price catalogue's name of the count (genai-prices 0.2.3, usage units)."""
BATCH_TIER = "batch"


@dataclass(frozen=True, slots=True)
class Attribution:
    """Whose work it was; a transcript does not say."""

    agent_id: str = "claude-code"
    """The assistant; its delegates are `<agent_id>/subagent`."""
    user_id: str | None = None
    """Null is a statement: nobody."""
    project_id: str | None = None
    """The platform's project that the work belongs to."""


def say_session(session: Session, attribution: Attribution) -> list[Said]:
    """Every event of a session: starts first, ends last, so that a part of it is still sound."""
    runs = (*session.runs, *session.delegated)
    return [
        *(_started(run, attribution) for run in runs),
        *(_used(run, request) for run in runs for request in run.requests),
        *(_finished(run) for run in runs),
    ]


def _said(line_uuid: str, what: str, *, at: datetime, data: Wire) -> Said:
    return Said(id=derived_id(line_uuid, what, said=data), time=at, data=data)


def _started(run: Run, attribution: Attribution) -> Said:
    is_delegated = run.parent_id is not None
    data = RunStarted(
        run_id=run.id,
        root_run_id=run.parent_id or run.id,
        parent_run_id=run.parent_id,
        delegation_id=run.delegation_id,
        agent_id=attribution.agent_id + (DELEGATE_SUFFIX if is_delegated else ""),
        user_id=attribution.user_id,
        started_by_user_id=attribution.user_id,
        surface=Surface.CLI,
        conversation_id=run.session,
        project_id=attribution.project_id,
        provider=PROVIDER,
        started_at=run.started_at,
    )
    return _said(run.line_uuid, "started", at=run.started_at, data=data)


def _used(run: Run, request: Request) -> Said:
    usage = request.usage
    data = UsageReported(
        request_id=request.id,
        run_id=run.id,
        delegation_id=run.delegation_id,
        kind=request.kind,
        model=request.model,
        provider=PROVIDER,
        tokens=tokens_of(usage),
        tool_counts={WEB_SEARCHES: usage.web_searches} if usage.web_searches else {},
        price_context=price_context_of(usage),
        occurred_at=request.occurred_at,
    )
    return _said(request.line_uuid, "usage", at=request.occurred_at, data=data)


def tokens_of(usage: Usage) -> Tokens:
    """A line's counts on the wire; `input` holds the cached tokens, as the contract says."""
    return Tokens(
        input=usage.input,
        output=usage.output,
        cache_read=usage.cache_read,
        cache_write_5m=usage.cache_write_5m,
        cache_write_1h=usage.cache_write_1h,
    )


def price_context_of(usage: Usage) -> PriceContext:
    """The tier of a line; batch is a way of processing, every other word is a tier."""
    if usage.service_tier == BATCH_TIER:
        return PriceContext(processing="batch")
    return PriceContext(service_tier=usage.service_tier)


def _finished(run: Run) -> Said:
    data = RunFinished(
        run_id=run.id,
        status=run.status,
        error=run.error,
        missing_delegates=len(run.missing_delegates),
        ended_at=run.ended_at,
    )
    return _said(run.line_uuid, "finished", at=run.ended_at, data=data)
