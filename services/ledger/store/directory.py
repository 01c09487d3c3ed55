"""The ledger's projection of the directory: organizations, agents, channels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from contracts.directory import (
    AgentArchived,
    AgentPublished,
    ChannelChanged,
    OrganizationChanged,
)
from contracts.types import CapMode, ChannelRight, OnUnreachable, UnpricedPolicy
from services.ledger.domain.caps import Policy
from services.ledger.domain.months import Zone

if TYPE_CHECKING:
    from shared.db import Connection


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


@dataclass(frozen=True, slots=True)
class Channel:
    """What the ledger needs of a channel."""

    rights: frozenset[ChannelRight]
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent's name and cap; an agent that nobody published has neither."""

    agent_id: str
    name: str | None
    monthly_nanousd: int | None
    cap_revision: int | None


async def save_organization(connection: Connection, org: str, change: OrganizationChanged) -> None:
    """Apply an organization's state if it is newer."""
    await connection.execute(
        """
        INSERT INTO organization (org, name, status, entity_revision, monthly_budget_nanousd,
            cap_revision, cap_mode, unpriced_policy, on_unreachable, billing_timezone,
            billing_zones, changed_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
        ON CONFLICT (org) DO UPDATE SET name = excluded.name, status = excluded.status,
            entity_revision = excluded.entity_revision,
            monthly_budget_nanousd = excluded.monthly_budget_nanousd,
            cap_revision = excluded.cap_revision, cap_mode = excluded.cap_mode,
            unpriced_policy = excluded.unpriced_policy, on_unreachable = excluded.on_unreachable,
            billing_timezone = excluded.billing_timezone, billing_zones = excluded.billing_zones,
            changed_at = excluded.changed_at
        WHERE organization.entity_revision < excluded.entity_revision
        """,
        org,
        change.name,
        change.status,
        change.entity_revision,
        change.monthly_budget_nanousd,
        change.cap_revision,
        change.cap_mode.value,
        change.unpriced_policy.value,
        change.on_unreachable.value,
        change.billing_timezone,
        [zone.model_dump() for zone in change.billing_zones],
        change.changed_at,
    )


async def save_agent(connection: Connection, org: str, change: AgentPublished) -> None:
    """Apply a published version if it is newer."""
    await connection.execute(
        """
        INSERT INTO agent (org, agent_id, version, name, monthly_nanousd, cap_revision,
            published_revision)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT (org, agent_id) DO UPDATE SET version = excluded.version,
            name = excluded.name, monthly_nanousd = excluded.monthly_nanousd,
            cap_revision = excluded.cap_revision,
            published_revision = excluded.published_revision
        WHERE agent.published_revision < excluded.published_revision
        """,
        org,
        change.agent_id,
        change.version,
        change.name,
        change.budget.monthly_nanousd,
        change.cap_revision,
        change.entity_revision,
    )


async def save_archived(connection: Connection, org: str, change: AgentArchived) -> None:
    """Note that an agent was archived; may come before its last version."""
    await connection.execute(
        """
        INSERT INTO agent (org, agent_id, archived_revision) VALUES ($1, $2, $3)
        ON CONFLICT (org, agent_id) DO UPDATE
            SET archived_revision = greatest(agent.archived_revision, excluded.archived_revision)
        """,
        org,
        change.agent_id,
        change.entity_revision,
    )


async def save_channel(connection: Connection, org: str, change: ChannelChanged) -> None:
    """Apply a channel's state if it is newer."""
    await connection.execute(
        """
        INSERT INTO channel (org, channel_id, name, rights, revoked, entity_revision, changed_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT (org, channel_id) DO UPDATE SET name = excluded.name,
            rights = excluded.rights, revoked = excluded.revoked,
            entity_revision = excluded.entity_revision, changed_at = excluded.changed_at
        WHERE channel.entity_revision < excluded.entity_revision
        """,
        org,
        change.channel_id,
        change.name,
        [right.value for right in change.rights],
        change.revoked,
        change.entity_revision,
        change.changed_at,
    )


async def load_organizations(
    connection: Connection, orgs: Collection[str]
) -> dict[str, Organization]:
    """The known ones among these organizations."""
    rows = await connection.fetch(
        """
        SELECT org, name, monthly_budget_nanousd, cap_revision, cap_mode, unpriced_policy,
            on_unreachable, billing_timezone, billing_zones
        FROM organization WHERE org = ANY($1::text[])
        """,
        list(orgs),
    )
    return {
        row["org"]: Organization(
            org=row["org"],
            name=row["name"],
            monthly_budget_nanousd=row["monthly_budget_nanousd"],
            cap_revision=row["cap_revision"],
            policy=Policy(
                CapMode(row["cap_mode"]),
                UnpricedPolicy(row["unpriced_policy"]),
                OnUnreachable(row["on_unreachable"]),
            ),
            billing_timezone=row["billing_timezone"],
            zones=tuple(
                Zone(zone["from_month"], zone["timezone"]) for zone in row["billing_zones"]
            ),
        )
        for row in rows
    }


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


async def load_agents(
    connection: Connection, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], Agent]:
    """The published ones among these (organization, agent) pairs."""
    rows = await connection.fetch(
        """
        SELECT a.org, a.agent_id, a.name, a.monthly_nanousd, a.cap_revision FROM agent a
        JOIN unnest($1::text[], $2::text[]) AS t (org, agent_id) USING (org, agent_id)
        """,
        [org for org, _ in keys],
        [agent_id for _, agent_id in keys],
    )
    return {
        (row["org"], row["agent_id"]): Agent(
            row["agent_id"], row["name"], row["monthly_nanousd"], row["cap_revision"]
        )
        for row in rows
    }
