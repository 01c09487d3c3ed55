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
    Count,
    Details,
    Id,
    Instant,
    Name,
    NanoUsd,
    OnUnreachable,
    OrgId,
    Revision,
    RoleName,
    UnpricedPolicy,
    Wire,
)

Version = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
"""Of a published spec; a Postgres INTEGER."""
RequestsPerMinute = Annotated[int, Field(ge=1, le=100_000, strict=True)]
TimeZoneName = Annotated[str, Field(min_length=1, max_length=64)]
PROACTIVE_LIMIT_NANOUSD = 1_000_000_000
"""What a person's proactive work may cost where nothing else is said: 1 USD (http.md)."""
DEPARTMENT_INTERVALS_MAX = 1_000
"""Memberships in one `department_changed`, past ones included: it stays below the body's limit."""
GRANTS_MAX = 200
ENVIRONMENTS_MAX = 50


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
    proactive_limit_nanousd: NanoUsd = PROACTIVE_LIMIT_NANOUSD
    """The cap of each person's proactive work in a month."""
    public_live_data: bool = False
    changed_at: Instant


class MemberChanged(Wire):
    """A person of an organization after a change; their address is the gateway's alone."""

    entity_revision: Revision
    user_id: Id
    name: Name
    role: RoleName
    changed_at: Instant


class MemberRemoved(Wire):
    """A person left the organization: nothing is theirs any more, what they did stays."""

    entity_revision: Revision
    user_id: Id
    removed_at: Instant


class Membership(Wire):
    """That a person belongs to a department: from `effective_at` on, before `ends_at`."""

    user_id: Id
    effective_at: Instant
    ends_at: Instant | None
    """Null is a statement: they still belong."""


class DepartmentChanged(Wire):
    """A department's whole state after a change, memberships that are over included."""

    entity_revision: Revision
    department_id: Id
    name: Name
    lead_user_id: Id | None
    monthly_budget_nanousd: NanoUsd | None
    """The department's cap per month; null is a statement: uncapped."""
    cap_revision: Revision
    members: Annotated[tuple[Membership, ...], Field(max_length=DEPARTMENT_INTERVALS_MAX)]
    changed_at: Instant


class DepartmentRemoved(Wire):
    """A department is gone; what was spent under it stays."""

    entity_revision: Revision
    department_id: Id
    removed_at: Instant


class AgentBudget(Wire):
    """The budget part of a published spec."""

    monthly_nanousd: Annotated[NanoUsd, Field(gt=0)] | None = None
    requests_per_minute: RequestsPerMinute | None = None
    """Requests that the ledger allows it in any minute; null: as many as it asks for."""


class PinnedDelegate(Wire):
    """A delegate at the version that the publisher saw."""

    agent_id: AgentId
    version: Version


class AgentGrant(Wire):
    """What a person or a department may do with one agent beyond their role."""

    kind: Literal["user", "department"]
    id: Id
    permissions: Annotated[tuple[str, ...], Field(min_length=1, max_length=16)]
    """`agents:view`, `agents:run` …; none implies another."""


class AgentEnvironment(Wire):
    """A named environment and the version that runs in it."""

    name: Name
    version: Revision


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
    grants: Annotated[tuple[AgentGrant, ...], Field(max_length=GRANTS_MAX)] = ()
    environments: Annotated[tuple[AgentEnvironment, ...], Field(max_length=ENVIRONMENTS_MAX)] = ()
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


class GetDirectory(Wire):
    """One page of everything that the directory holds, tombstones included."""

    cursor: str | None = None


class DirectoryEntry(Wire):
    """One entity as its event would say it now."""

    org: OrgId
    event: str
    """Name of the event; one that the asker does not know is left out by it."""
    version: Annotated[int, Field(ge=1, strict=True)]
    data: Details


class DirectoryPage(Wire):
    """`cursor` is null only when nothing follows."""

    entries: tuple[DirectoryEntry, ...]
    cursor: str | None


class GetApplied(Wire):
    """How far the ledger has come with an entity of the directory."""

    kind: Literal["organization", "department", "agent"]
    id: AgentId


class Applied(Wire):
    """The newest revision that decisions rest on; 0: the ledger does not know the entity."""

    entity_revision: Count
