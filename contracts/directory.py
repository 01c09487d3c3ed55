"""What the directory says: whole new states with an `entity_revision` (events.md 2).

A projection applies only a greater revision, so that any order and any repetition ends alike.
Removals are tombstones: the entity stays, marked.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contracts.types import (
    AgentId,
    CapMode,
    ChannelId,
    ChannelRight,
    Details,
    Id,
    Instant,
    Name,
    NanoUsd,
    OnUnreachable,
    Revision,
    UnpricedPolicy,
    Wire,
)

Version = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
"""Of a published spec; a Postgres INTEGER."""
TimeZoneName = Annotated[str, Field(min_length=1, max_length=64)]


class BillingZone(Wire):
    """The time zone of an organization's months, from the first of a month on."""

    from_month: Annotated[str, Field(pattern=r"^\d{4}-\d{2}$")]
    """`YYYY-MM`; the first zone holds from `0001-01`."""
    timezone: TimeZoneName


class OrganizationChanged(Wire):
    """An organization's whole state after a change."""

    entity_revision: Revision
    name: Name
    status: Literal["active", "closed"] = "active"
    monthly_budget_nanousd: NanoUsd | None
    """The organization's cap per month; null is a statement: uncapped."""
    cap_revision: Revision
    """Grows when the cap changes; warnings are said once per cap revision."""
    cap_mode: CapMode
    unpriced_policy: UnpricedPolicy
    on_unreachable: OnUnreachable
    billing_timezone: TimeZoneName
    billing_zones: tuple[BillingZone, ...]
    chat_may_waive_approvals: bool = True
    changed_at: Instant


class AgentBudget(Wire):
    """The budget part of a published spec."""

    monthly_nanousd: Annotated[NanoUsd, Field(gt=0)] | None = None


class PinnedDelegate(Wire):
    """A delegate at the version that the publisher saw."""

    agent_id: AgentId
    version: Version


class AgentPublished(Wire):
    """The governance part of an agent's newest published version."""

    entity_revision: Revision
    agent_id: AgentId
    version: Version
    name: Name
    owner_user_id: Id | None
    visibility: Literal["org", "private"] = "org"
    budget: AgentBudget
    cap_revision: Revision
    delegates: Annotated[tuple[PinnedDelegate, ...], Field(max_length=100)] = ()
    max_steps: Annotated[int, Field(ge=1, le=10_000, strict=True)] | None = None
    max_depth: Annotated[int, Field(ge=0, le=100, strict=True)] | None = None
    max_fanout: Annotated[int, Field(ge=1, le=1_000, strict=True)] | None = None
    spec: Details = {}
    """The rest of the published spec (approval, alerts, reviewers); read by later rooms."""
    published_at: Instant


class AgentArchived(Wire):
    """An agent takes no new runs; its history stays."""

    entity_revision: Revision
    agent_id: AgentId
    archived_at: Instant


class ChannelChanged(Wire):
    """A channel was created, renamed, given rights, or revoked."""

    entity_revision: Revision
    channel_id: ChannelId
    name: Name
    rights: tuple[ChannelRight, ...]
    revoked: bool
    changed_at: Instant
