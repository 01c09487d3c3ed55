"""What is spent under caps, read for decisions and for people."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from services.ledger.domain.books import MonthAmount, MonthKey

if TYPE_CHECKING:
    from contracts.ledger import CapScope
    from shared.db import Connection


async def load_months(
    connection: Connection, keys: Collection[MonthKey]
) -> dict[MonthKey, MonthAmount]:
    """What is spent so far; months without an entry are left out."""
    rows = await connection.fetch(
        """
        SELECT m.org, m.scope, m.scope_id, m.month, m.cost_nanousd, m.unpriced_count,
            m.late_nanousd
        FROM month_spend m
        JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[])
            AS t (org, scope, scope_id, month) USING (org, scope, scope_id, month)
        """,
        *([key[n] for key in keys] for n in range(4)),
    )
    return {
        (row["org"], row["scope"], row["scope_id"], row["month"]): MonthAmount(
            int(row["cost_nanousd"]), int(row["unpriced_count"]), int(row["late_nanousd"])
        )
        for row in rows
    }


_NARROWER = """
    SELECT 'department' AS scope, 1 AS rank, department_id AS id, name, monthly_nanousd,
        cap_revision
    FROM department
    WHERE org = $1 AND monthly_nanousd IS NOT NULL AND removed_revision < changed_revision
    UNION ALL
    SELECT 'agent', 2, agent_id, name, monthly_nanousd, cap_revision FROM agent
    WHERE org = $1 AND monthly_nanousd IS NOT NULL AND archived_revision < published_revision
"""


async def list_narrower_caps(
    connection: Connection, org: str, *, skip: int, limit: int
) -> list[tuple[CapScope, str, str, int, int]]:
    """Caps of departments, then of agents, by id: scope, id, name, limit, cap revision."""
    rows = await connection.fetch(
        f"{_NARROWER} ORDER BY rank, id OFFSET $2 LIMIT $3", org, skip, limit
    )
    return [
        (row["scope"], row["id"], row["name"], row["monthly_nanousd"], row["cap_revision"])
        for row in rows
    ]


async def count_narrower_caps(connection: Connection, org: str) -> int:
    """How many departments and agents have a cap."""
    return int(await connection.fetchval(f"SELECT count(*) FROM ({_NARROWER}) AS caps", org))
