"""The ledger's projection of the directory: organizations, agents, channels."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from contracts.directory import (
    PROACTIVE_LIMIT_NANOUSD,
    AgentArchived,
    AgentPublished,
    ChannelChanged,
    OrganizationChanged,
)
from contracts.types import CapMode, ChannelRight, OnUnreachable, UnpricedPolicy
from services.ledger.domain.caps import Policy
from services.ledger.domain.delegates import Published
from services.ledger.domain.months import Zone
from services.ledger.store.people import EntityKey

if TYPE_CHECKING:
    from shared.db import Connection

ORGANIZATIONS_REMEMBERED_MAX: Final = 1_000
"""States that are read once: each question comes with the same few."""
_ORGANIZATION_COLUMNS: Final = (
    "org",
    "name",
    "monthly_budget_nanousd",
    "cap_revision",
    "cap_mode",
    "unpriced_policy",
    "on_unreachable",
    "billing_timezone",
    "billing_zones",
    "proactive_limit_nanousd",
)


@dataclass(frozen=True, slots=True)
class Organization:
    """What the ledger needs of an organization."""

    org: str
    name: str
    monthly_budget_nanousd: int | None
    cap_revision: int
    policy: Policy
    billing_timezone: str
    zones: tuple[Zone, ...]
    proactive_limit_nanousd: int
    """Of each person's proactive work in a month."""


@dataclass(frozen=True, slots=True)
class Channel:
    """What the ledger needs of a channel."""

    rights: frozenset[ChannelRight]
    revoked_at: datetime | None


async def save_organizations(
    connection: Connection, changes: Mapping[EntityKey, OrganizationChanged]
) -> None:
    """Apply organizations' states where they are newer; both parts of a key are its id."""
    states = list(changes.values())
    await connection.execute(
        """
        INSERT INTO organization (org, name, status, entity_revision, monthly_budget_nanousd,
            cap_revision, cap_mode, unpriced_policy, on_unreachable, billing_timezone,
            billing_zones, changed_at, proactive_limit_nanousd)
        SELECT t.org, t.name, t.status, t.revision, t.budget, t.cap_revision, t.cap_mode,
            t.unpriced, t.unreachable, t.timezone, t.zones::jsonb, t.changed_at, t.proactive
        FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[],
            $6::bigint[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[],
            $12::timestamptz[], $13::bigint[]) AS t (org, name, status, revision, budget,
            cap_revision, cap_mode, unpriced, unreachable, timezone, zones, changed_at, proactive)
        ON CONFLICT (org) DO UPDATE SET name = excluded.name, status = excluded.status,
            entity_revision = excluded.entity_revision,
            monthly_budget_nanousd = excluded.monthly_budget_nanousd,
            cap_revision = excluded.cap_revision, cap_mode = excluded.cap_mode,
            unpriced_policy = excluded.unpriced_policy, on_unreachable = excluded.on_unreachable,
            billing_timezone = excluded.billing_timezone, billing_zones = excluded.billing_zones,
            changed_at = excluded.changed_at,
            proactive_limit_nanousd = excluded.proactive_limit_nanousd
        WHERE organization.entity_revision < excluded.entity_revision
            OR (organization.entity_revision = excluded.entity_revision
                AND organization.proactive_limit_nanousd IS NULL)
        """,
        [org for org, _ in changes],
        [state.name for state in states],
        [state.status for state in states],
        [state.entity_revision for state in states],
        [state.monthly_budget_nanousd for state in states],
        [state.cap_revision for state in states],
        [state.cap_mode.value for state in states],
        [state.unpriced_policy.value for state in states],
        [state.on_unreachable.value for state in states],
        [state.billing_timezone for state in states],
        # As text: a list inside an array would be taken for a further dimension.
        [json.dumps([zone.model_dump() for zone in state.billing_zones]) for state in states],
        [state.changed_at for state in states],
        [state.proactive_limit_nanousd for state in states],
    )


async def save_agents(connection: Connection, changes: Mapping[EntityKey, AgentPublished]) -> None:
    """Apply published versions where they are newer."""
    states = list(changes.values())
    await connection.execute(
        """
        INSERT INTO agent (org, agent_id, version, name, monthly_nanousd, cap_revision,
            published_revision, requests_per_minute, delegates)
        SELECT t.org, t.agent_id, t.version, t.name, t.monthly, t.cap_revision, t.revision,
            t.rate, t.delegates::jsonb
        FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::bigint[],
            $6::bigint[], $7::bigint[], $8::integer[], $9::text[]) AS t (org, agent_id, version,
            name, monthly, cap_revision, revision, rate, delegates)
        ON CONFLICT (org, agent_id) DO UPDATE SET version = excluded.version,
            name = excluded.name, monthly_nanousd = excluded.monthly_nanousd,
            cap_revision = excluded.cap_revision,
            published_revision = excluded.published_revision,
            requests_per_minute = excluded.requests_per_minute, delegates = excluded.delegates
        WHERE agent.published_revision < excluded.published_revision
        """,
        [org for org, _ in changes],
        [agent_id for _, agent_id in changes],
        [state.version for state in states],
        [state.name for state in states],
        [state.budget.monthly_nanousd for state in states],
        [state.cap_revision for state in states],
        [state.entity_revision for state in states],
        [state.budget.requests_per_minute for state in states],
        # As text: a list inside an array would be taken for a further dimension.
        [json.dumps([pin.model_dump() for pin in state.delegates]) for state in states],
    )


async def save_archived(connection: Connection, changes: Mapping[EntityKey, AgentArchived]) -> None:
    """Note that agents were archived; may come before their last version."""
    await connection.execute(
        """
        INSERT INTO agent (org, agent_id, archived_revision)
        SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
        ON CONFLICT (org, agent_id) DO UPDATE
            SET archived_revision = greatest(agent.archived_revision, excluded.archived_revision)
        """,
        [org for org, _ in changes],
        [agent_id for _, agent_id in changes],
        [state.entity_revision for state in changes.values()],
    )


async def save_channels(
    connection: Connection, changes: Mapping[EntityKey, ChannelChanged]
) -> None:
    """Apply channels' states where they are newer."""
    # Rights are a list, and arrays of lists of unlike length do not exist in Postgres.
    await connection.executemany(
        """
        INSERT INTO channel (org, channel_id, name, rights, revoked, entity_revision, changed_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT (org, channel_id) DO UPDATE SET name = excluded.name,
            rights = excluded.rights, revoked = excluded.revoked,
            entity_revision = excluded.entity_revision, changed_at = excluded.changed_at
        WHERE channel.entity_revision < excluded.entity_revision
        """,
        [
            (
                org,
                channel_id,
                state.name,
                [right.value for right in state.rights],
                state.revoked,
                state.entity_revision,
                state.changed_at,
            )
            for (org, channel_id), state in changes.items()
        ],
    )


_REVISIONS = {
    "organization": "SELECT entity_revision FROM organization WHERE org = $1 AND org = $2",
    "department": """
        SELECT greatest(changed_revision, removed_revision) FROM department
        WHERE org = $1 AND department_id = $2
    """,
    "agent": """
        SELECT greatest(published_revision, archived_revision) FROM agent
        WHERE org = $1 AND agent_id = $2
    """,
}


async def load_revision(connection: Connection, org: str, kind: str, entity_id: str) -> int:
    """The newest revision that was applied; 0 where the entity is not known."""
    return int(await connection.fetchval(_REVISIONS[kind], org, entity_id) or 0)


async def load_organizations(
    connection: Connection, orgs: Collection[str]
) -> dict[str, Organization]:
    """The known ones among these organizations."""
    rows = await connection.fetch(
        """
        SELECT org, name, monthly_budget_nanousd, cap_revision, cap_mode, unpriced_policy,
            on_unreachable, billing_timezone, billing_zones::text, proactive_limit_nanousd
        FROM organization WHERE org = ANY($1::text[])
        """,
        list(orgs),
    )
    return {row["org"]: organization_of(row) for row in rows}


def organization_of(row: Any) -> Organization:
    """Read an organization out of a row's columns, which hold its zones as text."""
    return _organization(*(row[column] for column in _ORGANIZATION_COLUMNS))


@lru_cache(ORGANIZATIONS_REMEMBERED_MAX)
def _organization(*columns: Any) -> Organization:
    org, name, budget, cap_revision, cap_mode, *policies, timezone, zones, proactive = columns
    unpriced, unreachable = policies
    return Organization(
        org=org,
        name=name,
        monthly_budget_nanousd=budget,
        cap_revision=cap_revision,
        policy=Policy(CapMode(cap_mode), UnpricedPolicy(unpriced), OnUnreachable(unreachable)),
        billing_timezone=timezone,
        zones=tuple(Zone(zone["from_month"], zone["timezone"]) for zone in json.loads(zones)),
        proactive_limit_nanousd=PROACTIVE_LIMIT_NANOUSD if proactive is None else proactive,
    )


async def load_channels(
    connection: Connection, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], Channel]:
    """The known ones among these (organization, channel) pairs."""
    rows = await connection.fetch(
        """
        SELECT c.org, c.channel_id, c.rights, c.revoked, c.changed_at FROM channel c
        JOIN unnest($1::text[], $2::text[]) AS t (org, channel_id) USING (org, channel_id)
        """,
        [org for org, _ in keys],
        [channel_id for _, channel_id in keys],
    )
    known = {right.value for right in ChannelRight}
    return {
        (row["org"], row["channel_id"]): Channel(
            # A newer directory may name rights that this code does not know yet.
            frozenset(ChannelRight(right) for right in row["rights"] if right in known),
            row["changed_at"] if row["revoked"] else None,
        )
        for row in rows
    }


async def load_published(
    connection: Connection, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], Published]:
    """The known ones among these (organization, agent) pairs."""
    rows = await connection.fetch(
        """
        SELECT a.org, a.agent_id, a.name, a.version, a.delegates,
            a.archived_revision > a.published_revision AS is_archived
        FROM agent a
        JOIN unnest($1::text[], $2::text[]) AS t (org, agent_id) USING (org, agent_id)
        """,
        [org for org, _ in keys],
        [agent_id for _, agent_id in keys],
    )
    return {
        (row["org"], row["agent_id"]): Published(
            row["agent_id"],
            row["name"],
            row["version"],
            row["is_archived"],
            {pin["agent_id"]: pin["version"] for pin in row["delegates"]},
        )
        for row in rows
    }
