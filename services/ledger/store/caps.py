"""What is spent under caps, read for decisions and for people."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.ledger.domain.amounts import NOTHING
from services.ledger.domain.books import MonthAmount, MonthKey, RunKey
from services.ledger.domain.holds import RUN_MONTH, CapKey
from services.ledger.store.runs import load_shown_amounts

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


@dataclass(frozen=True, slots=True)
class Spent:
    """What is spent under a cap, as the cap counts."""

    nanousd: int
    is_partial: bool


async def load_spent(connection: Connection, keys: Collection[CapKey]) -> dict[CapKey, Spent]:
    """What is spent under caps, months' and runs' own, every one of them."""
    months = await load_months(connection, [key for key in keys if key[3] != RUN_MONTH])
    runs = {(key[0], key[2]) for key in keys if key[3] == RUN_MONTH}
    amounts = await load_shown_amounts(connection, runs) if runs else {}
    spent = {}
    for key in keys:
        if key[3] == RUN_MONTH:
            amount = amounts.get((key[0], key[2]), NOTHING)
            spent[key] = Spent(amount.cost_nanousd, amount.is_partial)
        else:
            month = months.get(key, MonthAmount())
            counted = month.cost_nanousd + month.late_nanousd
            spent[key] = Spent(counted, month.unpriced_count > 0)
    return spent


async def list_set(connection: Connection, org: str) -> set[tuple[str, str, str]]:
    """Every cap of an organization that has a month: organization, scope, id."""
    rows = await connection.fetch(f"SELECT scope, id FROM ({_NARROWER}) AS caps", org)
    return {(org, "organization", org)} | {(org, row["scope"], row["id"]) for row in rows}


async def list_run_caps(connection: Connection, org: str) -> dict[RunKey, int]:
    """Runs with a cap of their own that are under way or have exceeded it, with their limits."""
    rows = await connection.fetch(
        """
        SELECT run_id, budget_nanousd FROM run
        WHERE org = $1 AND budget_nanousd IS NOT NULL AND (ended_at IS NULL OR budget_nanousd
            < CASE WHEN run_id = root_run_id THEN tree_cost_nanousd ELSE own_cost_nanousd END)
        """,
        org,
    )
    return {(org, row["run_id"]): row["budget_nanousd"] for row in rows}


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
