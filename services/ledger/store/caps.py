"""What is spent under caps, read for decisions and for people."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts.directory import PROACTIVE_LIMIT_NANOUSD
from services.ledger.domain.amounts import NOTHING
from services.ledger.domain.books import MonthAmount, MonthKey, RunKey
from services.ledger.domain.holds import CapKey
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
    months = await load_months(connection, [key for key in keys if key[1] != "run"])
    runs = {(key[0], key[2]) for key in keys if key[1] == "run"}
    amounts = await load_shown_amounts(connection, runs) if runs else {}
    spent = {}
    for key in keys:
        if key[1] == "run":
            amount = amounts.get((key[0], key[2]), NOTHING)
            spent[key] = Spent(amount.cost_nanousd, amount.is_partial)
        else:
            month = months.get(key, MonthAmount())
            counted = month.cost_nanousd + month.late_nanousd
            spent[key] = Spent(counted, month.unpriced_count > 0)
    return spent


async def list_set(connection: Connection, org: str, month: str) -> set[tuple[str, str, str]]:
    """Every cap of an organization that binds in a month: organization, scope, id."""
    rows = await connection.fetch(f"SELECT scope, id FROM ({_NARROWER}) AS caps", org, month)
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


async def list_exceeded_goals(connection: Connection, org: str) -> dict[str, int]:
    """Goals that have spent and hold more than they may, with their limits."""
    rows = await connection.fetch(
        """
        SELECT g.goal_id, g.budget_nanousd FROM goal g
        LEFT JOIN month_spend m ON m.org = g.org AND m.scope = 'goal'
            AND m.scope_id = g.goal_id AND m.month = ''
        LEFT JOIN cap_state c ON c.org = g.org AND c.scope = 'goal'
            AND c.scope_id = g.goal_id AND c.month = ''
        WHERE g.org = $1
            AND coalesce(m.cost_nanousd, 0) + coalesce(c.held_nanousd, 0) > g.budget_nanousd
        """,
        org,
    )
    return {row["goal_id"]: row["budget_nanousd"] for row in rows}


_NARROWER = f"""
    SELECT 'department' AS scope, 1 AS rank, department_id AS id, name, monthly_nanousd,
        cap_revision
    FROM department
    WHERE org = $1 AND monthly_nanousd IS NOT NULL AND removed_revision < changed_revision
    UNION ALL
    SELECT 'agent', 2, agent_id, name, monthly_nanousd, cap_revision FROM agent
    WHERE org = $1 AND monthly_nanousd IS NOT NULL AND archived_revision < published_revision
    UNION ALL
    SELECT 'person', 3, w.id, coalesce(p.name, w.id),
        coalesce(o.proactive_limit_nanousd, {PROACTIVE_LIMIT_NANOUSD}), o.cap_revision
    FROM organization o
    CROSS JOIN (
        SELECT scope_id AS id FROM month_spend
        WHERE org = $1 AND scope = 'person' AND month = $2
            AND (cost_nanousd <> 0 OR late_nanousd <> 0 OR unpriced_count <> 0)
        UNION
        SELECT scope_id FROM cap_state
        WHERE org = $1 AND scope = 'person' AND month = $2
            AND (held_nanousd <> 0 OR overrun_nanousd <> 0)
    ) AS w
    LEFT JOIN member p ON p.org = o.org AND p.user_id = w.id
    WHERE o.org = $1
    UNION ALL
    SELECT 'routine', 4, u.routine_id, u.name, u.monthly_nanousd, u.config_revision
    FROM routine u
    LEFT JOIN month_spend m ON m.org = u.org AND m.scope = 'routine'
        AND m.scope_id = u.routine_id AND m.month = $2
    LEFT JOIN cap_state c ON c.org = u.org AND c.scope = 'routine'
        AND c.scope_id = u.routine_id AND c.month = $2
    WHERE u.org = $1 AND u.monthly_nanousd IS NOT NULL AND (u.state <> 'deleted'
        OR m.cost_nanousd <> 0 OR m.late_nanousd <> 0 OR c.held_nanousd <> 0)
"""
"""Of people those that proactive work was done for in the month; of deleted routines those that
spent in it."""


async def list_narrower_caps(
    connection: Connection, org: str, month: str, *, skip: int, limit: int
) -> list[tuple[CapScope, str, str, int, int]]:
    """Caps of departments, then of agents, then of people, then of routines, by id.

    Each: scope, id, name, limit, cap revision.
    """
    rows = await connection.fetch(
        f"{_NARROWER} ORDER BY rank, id OFFSET $3 LIMIT $4", org, month, skip, limit
    )
    return [
        (row["scope"], row["id"], row["name"], row["monthly_nanousd"], row["cap_revision"])
        for row in rows
    ]


async def count_narrower_caps(connection: Connection, org: str, month: str) -> int:
    """How many departments, agents, people and routines have a cap in a month."""
    statement = f"SELECT count(*) FROM ({_NARROWER}) AS caps"
    return int(await connection.fetchval(statement, org, month))


async def list_people(
    connection: Connection, months: Collection[tuple[str, str]]
) -> set[tuple[str, str, str]]:
    """The caps of people whose proactive work counts in these months of organizations, or later."""
    rows = await connection.fetch(
        """
        SELECT s.org, s.scope_id
        FROM unnest($1::text[], $2::text[]) AS t (org, month)
        JOIN (
            SELECT org, scope_id, month FROM month_spend WHERE scope = 'person'
            UNION
            SELECT org, scope_id, month FROM cap_state WHERE scope = 'person'
        ) AS s ON s.org = t.org AND s.month >= t.month
        """,
        [org for org, _ in months],
        [month for _, month in months],
    )
    return {(row["org"], "person", row["scope_id"]) for row in rows}
