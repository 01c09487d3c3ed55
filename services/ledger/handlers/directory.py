"""The directory's entries; each applies only if it is newer than what is there.

The one thing not to break: many entries are saved together, the newest of each entity alone, so
that a room which starts empty is at work within a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from services.ledger.domain.departments import changed_spans
from services.ledger.domain.months import month_of
from services.ledger.store import caps, departments, directory, people
from services.ledger.store.exceeding import note_caps_set, strict_months
from services.ledger.store.notices import warn_of_caps

if TYPE_CHECKING:
    from datetime import datetime

    from contracts.directory import (
        AgentArchived,
        AgentPublished,
        ChannelChanged,
        DepartmentChanged,
        DepartmentRemoved,
        MemberChanged,
        MemberRemoved,
        OrganizationChanged,
    )
    from services.ledger.store.directory import Organization
    from services.ledger.store.notices import CapKey
    from services.ledger.store.people import EntityKey
    from shared.consume import Batch
    from shared.db import Connection


async def on_batch(connection: Connection, batch: Batch) -> None:
    """Project a batch of directory entries."""
    said = ((item.event.org, item.address.event.name, item.event.data) for item in batch.received)
    await project(connection, said, now=batch.now)


async def project(
    connection: Connection, said: Iterable[tuple[str, str, Any]], *, now: datetime
) -> None:
    """Apply states, given as (organization, event name, data), where they are newer."""
    newest: dict[str, dict[EntityKey, Any]] = {}
    for org, name, data in said:
        states = newest.setdefault(name, {})
        key = (org, getattr(data, ID_FIELDS[name], org))
        known = states.get(key)
        if known is None or known.entity_revision < data.entity_revision:
            states[key] = data
    await departments.hold_directories(
        connection, {org for name in COUNT_BY & newest.keys() for org, _ in newest[name]}
    )
    touched = {key for name in DEPARTMENTS & newest.keys() for key in newest[name]}
    members = await departments.load_members(connection, touched)
    orgs = {org for org, _ in newest.get("organization_changed", ())}
    before = await directory.load_organizations(connection, orgs) if orgs else {}
    for name, states in newest.items():
        # In one order, so that two batches at once wait for one another and never deadlock.
        await HEARS[name](connection, dict(sorted(states.items())))
    spans = changed_spans(members, await departments.load_members(connection, touched))
    await departments.ask_recount(connection, spans)
    changed = {
        (org, scope, entity_id)
        for name, scope in CAPS.items()
        for org, entity_id in newest.get(name, ())
    }
    if changed:
        await _warn_of(connection, changed, before, now)


async def _warn_of(
    connection: Connection,
    changed: set[CapKey],
    before: Mapping[str, Organization],
    now: datetime,
) -> None:
    """A cap that was lowered may be near at once, or exceeded."""
    known = await directory.load_organizations(connection, {org for org, _, _ in changed})
    months = {org: month_of(now, each.zones) for org, each in known.items()}
    limited = {(org, months[org]) for org, scope, _ in changed & _whole(known, before)}
    if limited:
        changed = changed | await caps.list_people(connection, limited)
    keys = {(*key, months[key[0]]) for key in changed if key[0] in months}
    spent = await caps.load_months(connection, keys)
    await warn_of_caps(connection, spent, months, now=now)
    strict = strict_months(known, now)
    switched = strict.keys() - strict_months(before, now).keys()
    by_org = {org: {cap for cap in changed if cap[0] == org} for org in strict}
    switched &= {org for org, scope, _ in changed if scope == "organization"}
    await note_caps_set(connection, by_org, switched, strict, now=now)


def _whole(known: Mapping[str, Organization], before: Mapping[str, Organization]) -> set[CapKey]:
    """Organizations that limit people's proactive work otherwise than before."""
    return {
        (org, "organization", org)
        for org, now in known.items()
        for was in [before.get(org)]
        if was is None or was.proactive_limit_nanousd != now.proactive_limit_nanousd
    }


async def on_organization_changed(
    connection: Connection, changes: Mapping[EntityKey, OrganizationChanged]
) -> None:
    """Keep organizations' caps and policies."""
    await directory.save_organizations(connection, changes)


async def on_agent_published(
    connection: Connection, changes: Mapping[EntityKey, AgentPublished]
) -> None:
    """Keep agents' caps."""
    await directory.save_agents(connection, changes)


async def on_agent_archived(
    connection: Connection, changes: Mapping[EntityKey, AgentArchived]
) -> None:
    """Note that agents were archived."""
    await directory.save_archived(connection, changes)


async def on_channel_changed(
    connection: Connection, changes: Mapping[EntityKey, ChannelChanged]
) -> None:
    """Keep what channels may report."""
    await directory.save_channels(connection, changes)


async def on_member_changed(
    connection: Connection, changes: Mapping[EntityKey, MemberChanged]
) -> None:
    """Keep who belongs to organizations."""
    await people.save_members(connection, changes)


async def on_member_removed(
    connection: Connection, changes: Mapping[EntityKey, MemberRemoved]
) -> None:
    """Note who left."""
    await people.save_members_removed(connection, changes)


async def on_department_changed(
    connection: Connection, changes: Mapping[EntityKey, DepartmentChanged]
) -> None:
    """Keep departments' caps and who belongs to them since when."""
    await people.save_departments(connection, changes)


async def on_department_removed(
    connection: Connection, changes: Mapping[EntityKey, DepartmentRemoved]
) -> None:
    """Note that departments are gone."""
    await people.save_departments_removed(connection, changes)


HEARS: dict[str, Callable[[Connection, Mapping[EntityKey, Any]], Awaitable[None]]] = {
    "organization_changed": on_organization_changed,
    "agent_published": on_agent_published,
    "agent_archived": on_agent_archived,
    "channel_changed": on_channel_changed,
    "member_changed": on_member_changed,
    "member_removed": on_member_removed,
    "department_changed": on_department_changed,
    "department_removed": on_department_removed,
}
CAPS = {
    "organization_changed": "organization",
    "agent_published": "agent",
    "department_changed": "department",
}
"""Events that set a cap, and whose."""
DEPARTMENTS = {"department_changed", "department_removed"}
COUNT_BY = DEPARTMENTS | CAPS.keys()
"""Events that amounts are counted or warned by: nobody counts while they are applied."""
ID_FIELDS = {
    "organization_changed": "org",
    "agent_published": "agent_id",
    "agent_archived": "agent_id",
    "channel_changed": "channel_id",
    "member_changed": "user_id",
    "member_removed": "user_id",
    "department_changed": "department_id",
    "department_removed": "department_id",
}
"""The field that holds an entity's id; an organization's is that of the event itself."""
