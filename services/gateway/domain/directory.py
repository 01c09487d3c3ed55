"""How the directory's entities change: from one whole state to the next.

The one thing not to break: every change raises `entity_revision` by one, a change of the monthly
cap raises `cap_revision` too, and nothing changed means no new revision (events.md 2).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from contracts.directory import (
    AgentPublished,
    ChannelChanged,
    DepartmentChanged,
    MemberChanged,
    OrganizationChanged,
)
from contracts.types import Details, Wire
from services.gateway.domain.permissions import APPROVALS_DECIDE, BUDGETS_MANAGE, ORG_SETTINGS
from services.gateway.domain.zones import change_zone, first_zones

Permission = str
W = TypeVar("W", bound=Wire)

ORGANIZATION_FIELDS: Final[Mapping[str, Permission]] = {
    "name": ORG_SETTINGS,
    "monthly_budget_nanousd": BUDGETS_MANAGE,
    "cap_mode": BUDGETS_MANAGE,
    "unpriced_policy": BUDGETS_MANAGE,
    "on_unreachable": BUDGETS_MANAGE,
    "billing_timezone": BUDGETS_MANAGE,
    "proactive_limit_nanousd": BUDGETS_MANAGE,
    "chat_may_waive_approvals": APPROVALS_DECIDE,
    "public_live_data": ORG_SETTINGS,
}
"""What may be changed, and which permission it takes (http.md, *Who may change what*)."""
_LONG: Final = frozenset({"spec", "members"})
_STAMPS: Final = frozenset({"entity_revision", "cap_revision", "changed_at", "published_at"})


def new_organization(fields: Mapping[str, Any], *, now: datetime) -> OrganizationChanged:
    """The first state of an organization.

    Units: `fields` are those of `ORGANIZATION_FIELDS`, money in nano-USD (None: uncapped).

    Raises:
        Invalid: `timezone_unknown`.
    """
    return OrganizationChanged(
        **fields,
        entity_revision=1,
        cap_revision=1,
        billing_zones=first_zones(fields["billing_timezone"]),
        changed_at=now,
    )


def change_organization(
    current: OrganizationChanged, fields: Mapping[str, Any], *, now: datetime
) -> OrganizationChanged | None:
    """The next state, or None where nothing changes.

    Raises:
        Invalid: `timezone_unknown`.
    """
    changed = dict(fields)
    if "billing_timezone" in fields:
        changed["billing_zones"] = change_zone(
            current.billing_zones, fields["billing_timezone"], now
        )
    return _next(current, changed, stamp="changed_at", now=now)


def publish_agent(
    current: AgentPublished | None, spec: Mapping[str, Any], *, now: datetime
) -> AgentPublished:
    """The next published version of an agent; `spec` is whole, money in nano-USD."""
    if current is None:
        return AgentPublished(
            **spec, entity_revision=1, cap_revision=1, version=1, published_at=now
        )
    said = AgentPublished(
        **{**spec, "agent_id": current.agent_id},
        # Both belong to the agent, whatever its version.
        grants=current.grants,
        environments=current.environments,
        entity_revision=current.entity_revision + 1,
        cap_revision=current.cap_revision,
        version=current.version + 1,
        published_at=now,
    )
    if said.budget != current.budget:
        said = said.model_copy(update={"cap_revision": current.cap_revision + 1})
    return said


def change_agent(
    current: AgentPublished, fields: Mapping[str, Any], *, now: datetime
) -> AgentPublished | None:
    """Another name, owner, visibility, grant or environment; None where nothing changes."""
    return _next(current, fields, stamp=None, now=now)


def change_member(
    current: MemberChanged, fields: Mapping[str, Any], *, now: datetime
) -> MemberChanged | None:
    """Another name or role; None where nothing changes."""
    return _next(current, fields, stamp="changed_at", now=now)


def change_department(
    current: DepartmentChanged, fields: Mapping[str, Any], *, now: datetime
) -> DepartmentChanged | None:
    """Another name, lead, cap or members; None where nothing changes."""
    return _next(current, fields, stamp="changed_at", now=now)


def revoke_channel(current: ChannelChanged, *, now: datetime) -> ChannelChanged | None:
    """The tombstone of a channel; None where it is revoked already."""
    return _next(current, {"revoked": True}, stamp="changed_at", now=now)


def changes(before: Wire | None, after: Wire) -> Details:
    """Old and new values of what changed, for the audit entry; stamps are left out."""
    new = _settings(after)
    if before is None:
        return new
    old = _settings(before)
    return {
        name: {"from": old.get(name), "to": value}
        for name, value in new.items()
        if old.get(name) != value
    }


def _settings(state: Wire) -> Details:
    settings = state.model_dump(mode="json", exclude=set(_STAMPS))
    for name in _LONG & settings.keys():
        # Long and of any content: the entry says whether it changed, the event holds it.
        text = json.dumps(settings[name], sort_keys=True, ensure_ascii=False)
        settings[name] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return settings


def missing_pins(pins: Sequence[tuple[str, int]], published: Mapping[str, int]) -> tuple[str, ...]:
    """Which pinned delegates are not there: `published` has the newest version of live agents."""
    return tuple(
        f"{agent_id}@{version}"
        for agent_id, version in pins
        if version > published.get(agent_id, 0)
    )


def _next(current: W, fields: Mapping[str, Any], *, stamp: str | None, now: datetime) -> W | None:
    state = dict(current)
    changed = {name: value for name, value in fields.items() if state[name] != value}
    if not changed:
        return None
    update: dict[str, Any] = {**changed, "entity_revision": state["entity_revision"] + 1}
    if "monthly_budget_nanousd" in changed:
        update["cap_revision"] = state["cap_revision"] + 1
    if stamp is not None:
        update[stamp] = now
    return current.model_copy(update=update)
