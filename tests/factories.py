"""Small builders of events, with defaults that are valid."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from contracts.catalog import event_of
from contracts.channel import (
    IngestionReported,
    ParkedCall,
    RunDeleted,
    RunFinished,
    RunHeartbeat,
    RunParked,
    RunResumed,
    RunStarted,
    Tokens,
    UsageReported,
)
from contracts.directory import (
    AgentBudget,
    AgentPublished,
    BillingZone,
    ChannelChanged,
    DepartmentChanged,
    Membership,
    OrganizationChanged,
)
from contracts.envelope import encode
from contracts.subjects import event_subject, token_of
from contracts.types import (
    CapMode,
    ChannelRight,
    OnUnreachable,
    RunStatus,
    Surface,
    UnpricedPolicy,
    Wire,
)
from shared.consume import Delivery

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MODEL = "claude-opus-4-6"


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


class Feed:
    """Makes deliveries as a stream would, with growing sequences."""

    def __init__(self) -> None:
        self._sequence = 0

    def channel(
        self,
        data: Wire,
        *,
        org: str = "acme",
        channel_id: str = "c1",
        event_id: str | None = None,
        at: datetime | None = None,
        stored_at: datetime | None = None,
    ) -> Delivery:
        """A channel's event; its id is made unique unless one is given."""
        self._sequence += 1
        kind = event_of(type(data))
        body = encode(
            kind.event_model(
                id=event_id or f"e{self._sequence}",
                source=f"channel/{channel_id}",
                type=kind.full_name,
                time=at or NOON,
                subject=org,
                data=data,
            )
        )
        subject = event_subject(kind, org, channel_id=channel_id, token="t")
        return Delivery(subject, body, kind.stream, self._sequence, at=stored_at)

    def directory(self, data: Wire, entity_id: str, *, org: str = "acme") -> Delivery:
        """An entry of the directory."""
        self._sequence += 1
        kind = event_of(type(data))
        body = encode(
            kind.event_model(
                id=f"d{self._sequence}",
                source="gateway",
                type=kind.full_name,
                time=NOON,
                subject=org,
                data=data,
            )
        )
        subject = event_subject(kind, org, token=token_of(kind.name, entity_id))
        return Delivery(subject, body, kind.stream, self._sequence)


def organization(**changes: Any) -> OrganizationChanged:
    values: dict[str, Any] = {
        "entity_revision": 1,
        "name": "Acme",
        "monthly_budget_nanousd": 100_000_000_000,
        "cap_revision": 1,
        "cap_mode": CapMode.RECORDED,
        "unpriced_policy": UnpricedPolicy.ALLOW_AS_FLOOR,
        "on_unreachable": OnUnreachable.REFUSE,
        "billing_timezone": "UTC",
        "billing_zones": (BillingZone(from_month="0001-01", timezone="UTC"),),
        "changed_at": NOON,
    }
    return OrganizationChanged(**(values | changes))


def agent(agent_id: str, monthly_nanousd: int | None = None, **changes: Any) -> AgentPublished:
    values: dict[str, Any] = {
        "entity_revision": 1,
        "agent_id": agent_id,
        "version": 1,
        "name": agent_id.title(),
        "owner_user_id": None,
        "budget": AgentBudget(monthly_nanousd=monthly_nanousd),
        "cap_revision": 1,
        "published_at": NOON,
    }
    return AgentPublished(**(values | changes))


def channel(channel_id: str = "c1", *rights: ChannelRight, **changes: Any) -> ChannelChanged:
    values: dict[str, Any] = {
        "entity_revision": 1,
        "channel_id": channel_id,
        "name": channel_id,
        "rights": rights,
        "revoked": False,
        "changed_at": NOON,
    }
    return ChannelChanged(**(values | changes))


def started(run_id: str, **changes: Any) -> RunStarted:
    values: dict[str, Any] = {
        "run_id": run_id,
        "root_run_id": run_id,
        "agent_id": "coder",
        "user_id": "user-1",
        "started_by_user_id": "user-1",
        "surface": Surface.CLI,
        "started_at": NOON,
    }
    return RunStarted(**(values | changes))


def finished(run_id: str, **changes: Any) -> RunFinished:
    values: dict[str, Any] = {
        "run_id": run_id,
        "status": RunStatus.COMPLETED,
        "ended_at": NOON + minutes(10),
    }
    return RunFinished(**(values | changes))


def parked(run_id: str, at: datetime, **changes: Any) -> RunParked:
    call = ParkedCall(call_id="call-1", tool_id="mail", tool_name="send_mail", arguments="{}")
    return RunParked(**({"run_id": run_id, "at": at, "calls": (call,)} | changes))


def resumed(run_id: str, at: datetime, claim_id: str = "claim-1") -> RunResumed:
    return RunResumed(run_id=run_id, claim_id=claim_id, at=at)


def deleted(run_id: str, at: datetime = NOON) -> RunDeleted:
    return RunDeleted(run_id=run_id, deleted_at=at)


def heartbeat(run_id: str, at: datetime = NOON) -> RunHeartbeat:
    return RunHeartbeat(run_id=run_id, at=at)


def usage(request_id: str, run_id: str, **changes: Any) -> UsageReported:
    values: dict[str, Any] = {
        "request_id": request_id,
        "run_id": run_id,
        "model": MODEL,
        "provider": "anthropic",
        "tokens": Tokens(input=1_000, output=100),
        "occurred_at": NOON + minutes(1),
    }
    return UsageReported(**(values | changes))


def ingestion(request_id: str, ingestion_id: str = "i1", **changes: Any) -> IngestionReported:
    values: dict[str, Any] = {
        "request_id": request_id,
        "ingestion_id": ingestion_id,
        "model": MODEL,
        "provider": "anthropic",
        "tokens": Tokens(input=1_000, output=100),
        "occurred_at": NOON + minutes(1),
    }
    return IngestionReported(**(values | changes))


def department(
    department_id: str,
    *members: Membership,
    revision: int = 1,
    cap: int | None = None,
    **changes: Any,
) -> DepartmentChanged:
    values: dict[str, Any] = {
        "entity_revision": revision,
        "department_id": department_id,
        "name": department_id.title(),
        "lead_user_id": None,
        "monthly_budget_nanousd": cap,
        "cap_revision": revision,
        "members": members,
        "changed_at": NOON,
    }
    return DepartmentChanged(**(values | changes))


def belongs(
    user_id: str, since: datetime = NOON - timedelta(days=30), until: datetime | None = None
) -> Membership:
    return Membership(user_id=user_id, effective_at=since, ends_at=until)
