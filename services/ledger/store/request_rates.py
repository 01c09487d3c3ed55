"""How often agents were allowed a request: one row each, locked in key order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from services.ledger.domain.request_rates import RequestRate

if TYPE_CHECKING:
    from shared.db import Connection

AgentKey = tuple[str, str]
"""Organization and agent."""


async def lock(connection: Connection, keys: Collection[AgentKey]) -> dict[AgentKey, RequestRate]:
    """Load what agents were allowed lately and hold it; made where there is nothing yet."""
    if not keys:
        return {}
    ordered = sorted(keys)
    rows = await connection.fetch(
        """
        INSERT INTO request_rate AS r (org, agent_id, second, counts)
        SELECT t.org, t.agent_id, 0, '{}' FROM unnest($1::text[], $2::text[]) AS t (org, agent_id)
        ON CONFLICT (org, agent_id) DO UPDATE SET second = r.second
        RETURNING org, agent_id, second, counts
        """,
        [org for org, _ in ordered],
        [agent_id for _, agent_id in ordered],
    )
    return {
        (row["org"], row["agent_id"]): RequestRate(row["second"], tuple(row["counts"]))
        for row in rows
    }


async def save(connection: Connection, rates: Mapping[AgentKey, RequestRate]) -> None:
    """Write rows that are held."""
    await connection.executemany(
        "UPDATE request_rate SET second = $3, counts = $4 WHERE org = $1 AND agent_id = $2",
        [(*key, rate.second, list(rate.counts)) for key, rate in sorted(rates.items())],
    )
