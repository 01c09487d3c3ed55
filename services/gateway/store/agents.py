"""Agents: one row each with the newest published state, and a frozen copy per version.

The one thing not to break: several agents are locked in the order of their ids, so that two that
pin one another wait and never deadlock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from contracts.directory import AgentPublished

if TYPE_CHECKING:
    from shared.db import Connection

_COLUMNS = "agent_id, entity_revision, published, created_at, archived_at"


@dataclass(frozen=True, slots=True)
class StoredAgent:
    """A row: what was published last, and whether the agent takes runs."""

    agent_id: str
    entity_revision: int
    """Of the newest event, an archiving included."""
    published: AgentPublished
    created_at: datetime
    archived_at: datetime | None


def _read(row: Any) -> StoredAgent:
    fields = dict(row)
    fields["published"] = AgentPublished.model_validate(fields["published"])
    return StoredAgent(**fields)


async def save_new_agent(connection: Connection, org: str, state: AgentPublished) -> bool:
    """Insert an agent at its first version; False where the id is taken."""
    inserted = await connection.fetchval(
        """
        INSERT INTO agent
            (org_id, agent_id, version, entity_revision, published, created_at)
        VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING agent_id
        """,
        org,
        state.agent_id,
        state.version,
        state.entity_revision,
        state.model_dump(mode="json"),
        state.published_at,
    )
    return inserted is not None


async def save_agent(connection: Connection, org: str, state: AgentPublished) -> None:
    """Write the next published state of a row that the caller has locked."""
    await connection.execute(
        """
        UPDATE agent SET version = $3, entity_revision = $4, published = $5
        WHERE org_id = $1 AND agent_id = $2
        """,
        org,
        state.agent_id,
        state.version,
        state.entity_revision,
        state.model_dump(mode="json"),
    )


async def save_version(
    connection: Connection, org: str, state: AgentPublished, *, published_by: str
) -> None:
    """Keep a frozen copy of a version; `published_by` is a pseudonym."""
    await connection.execute(
        """
        INSERT INTO agent_version
            (org_id, agent_id, version, published, published_at, published_by)
        VALUES ($1, $2, $3, $4, $5, $6)
        """,
        org,
        state.agent_id,
        state.version,
        state.model_dump(mode="json"),
        state.published_at,
        published_by,
    )


async def save_archived(
    connection: Connection, org: str, agent_id: str, *, entity_revision: int, at: datetime
) -> None:
    """Mark an agent that the caller has locked as archived."""
    await connection.execute(
        """
        UPDATE agent SET archived_at = $4, entity_revision = $3
        WHERE org_id = $1 AND agent_id = $2
        """,
        org,
        agent_id,
        entity_revision,
        at,
    )


async def load_agent(connection: Connection, org: str, agent_id: str) -> StoredAgent | None:
    """One agent, archived or not."""
    row = await connection.fetchrow(
        f"SELECT {_COLUMNS} FROM agent WHERE org_id = $1 AND agent_id = $2",
        org,
        agent_id,
    )
    return _read(row) if row else None


async def lock_agents(
    connection: Connection, org: str, agent_ids: Collection[str]
) -> dict[str, StoredAgent]:
    """Agents by id, locked until the transaction ends; those that do not exist are absent."""
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM agent WHERE org_id = $1 AND agent_id = ANY($2::text[])
        ORDER BY agent_id FOR UPDATE
        """,
        org,
        sorted(agent_ids),
    )
    return {row["agent_id"]: _read(row) for row in rows}


async def list_agents(
    connection: Connection, org: str, *, include_archived: bool, skip: int, limit: int
) -> tuple[list[StoredAgent], int]:
    """A page by id and the total."""
    total = await connection.fetchval(
        "SELECT count(*) FROM agent WHERE org_id = $1 AND ($2 OR archived_at IS NULL)",
        org,
        include_archived,
    )
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM agent WHERE org_id = $1 AND ($2 OR archived_at IS NULL)
        ORDER BY agent_id OFFSET $3 LIMIT $4
        """,
        org,
        include_archived,
        skip,
        limit,
    )
    return [_read(row) for row in rows], total
