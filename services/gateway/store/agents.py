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
from services.gateway.domain.permissions import AGENTS_VIEW, Scope

if TYPE_CHECKING:
    from services.gateway.domain.access import Asking
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


async def load_pins(
    connection: Connection, org: str, versions: Collection[tuple[str, int]]
) -> set[tuple[str, int]]:
    """What these versions pin, as (agent, version)."""
    rows = await connection.fetch(
        """
        SELECT DISTINCT pin->>'agent_id' AS agent_id, (pin->>'version')::integer AS version
        FROM agent_version v
        JOIN unnest($2::text[], $3::integer[]) AS t (agent_id, version)
            ON t.agent_id = v.agent_id AND t.version = v.version,
            jsonb_array_elements(v.published->'delegates') AS pin
        WHERE v.org_id = $1
        """,
        org,
        [agent_id for agent_id, _ in versions],
        [version for _, version in versions],
    )
    return {(row["agent_id"], row["version"]) for row in rows}


_SEEN = """
    org_id = $1 AND ($2 OR archived_at IS NULL) AND (
        $3 OR ($4 AND published->>'visibility' = 'org')
        OR ($5 AND published->>'owner_user_id' = $6)
        OR EXISTS (
            SELECT 1 FROM jsonb_array_elements(coalesce(published->'grants', '[]')) AS g
            WHERE g->'permissions' ? 'agents:view'
                AND (g->>'kind' = 'user' AND g->>'id' = $6
                    OR g->>'kind' = 'department' AND g->>'id' = ANY($7::text[]))
        )
    )
"""


async def list_agents(
    connection: Connection,
    org: str,
    *,
    asking: Asking,
    include_archived: bool,
    skip: int,
    limit: int,
) -> tuple[list[StoredAgent], int]:
    """A page by id of the agents that may be seen, and their total."""
    scope = asking.held.get(AGENTS_VIEW, Scope.NONE)
    seen = (
        org,
        include_archived,
        scope >= Scope.ALL,
        scope >= Scope.SHARED,
        scope >= Scope.OWN,
        asking.user_id,
        sorted(asking.departments),
    )
    total = await connection.fetchval(f"SELECT count(*) FROM agent WHERE {_SEEN}", *seen)
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM agent WHERE {_SEEN} ORDER BY agent_id OFFSET $8 LIMIT $9
        """,
        *seen,
        skip,
        limit,
    )
    return [_read(row) for row in rows], total
