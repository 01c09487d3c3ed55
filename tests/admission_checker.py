"""Looks at holds, entries, caps and overruns from outside: a connection of its own, one snapshot.

It shares no code with the ledger and reads none of the sums that the ledger keeps: what is spent is
added up from entries, what is held from rows of holds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import asyncpg

_FIGURES = """
    WITH cap AS (
        SELECT org, 'organization' AS scope, org AS id, monthly_budget_nanousd AS limit_nanousd
        FROM ledger.organization
        WHERE cap_mode = 'strict' AND monthly_budget_nanousd IS NOT NULL
        UNION ALL
        SELECT a.org, 'agent', a.agent_id, a.monthly_nanousd FROM ledger.agent a
        JOIN ledger.organization o USING (org)
        WHERE o.cap_mode = 'strict' AND a.monthly_nanousd IS NOT NULL
        UNION ALL
        SELECT d.org, 'department', d.department_id, d.monthly_nanousd FROM ledger.department d
        JOIN ledger.organization o USING (org)
        WHERE o.cap_mode = 'strict' AND d.monthly_nanousd IS NOT NULL
            AND d.removed_revision < d.changed_revision
        UNION ALL
        SELECT o.org, 'person', p.user_id, coalesce(o.proactive_limit_nanousd, 1000000000)
        FROM ledger.organization o
        JOIN (SELECT DISTINCT org, user_id FROM ledger.run WHERE surface = 'proactive') AS p
            USING (org)
        WHERE o.cap_mode = 'strict' AND p.user_id IS NOT NULL
        UNION ALL
        SELECT u.org, 'routine', u.routine_id, u.monthly_nanousd FROM ledger.routine u
        JOIN ledger.organization o USING (org)
        WHERE o.cap_mode = 'strict' AND u.monthly_nanousd IS NOT NULL
        UNION ALL
        SELECT g.org, 'goal', g.goal_id, g.budget_nanousd FROM ledger.goal g
        JOIN ledger.organization o USING (org)
        WHERE o.cap_mode = 'strict'
        UNION ALL
        SELECT r.org, 'run', r.run_id, r.budget_nanousd FROM ledger.run r
        JOIN ledger.organization o USING (org)
        WHERE o.cap_mode = 'strict' AND r.budget_nanousd IS NOT NULL AND r.run_id = r.root_run_id
    )
    SELECT c.org, c.scope, c.id, c.limit_nanousd,
        (SELECT coalesce(sum(e.cost_nanousd), 0) FROM ledger.entry e
            LEFT JOIN ledger.run r ON r.org = e.org AND r.run_id = e.billed_run_id
            LEFT JOIN ledger.run t ON t.org = r.org AND t.run_id = r.root_run_id
            WHERE e.org = c.org AND CASE c.scope
                WHEN 'organization' THEN $1 IN (e.month, e.late_month)
                WHEN 'agent' THEN c.id = ANY (r.counted_agents) AND $1 IN (e.month, e.late_month)
                WHEN 'department'
                    THEN c.id = ANY (r.counted_departments) AND $1 IN (e.month, e.late_month)
                WHEN 'person' THEN t.surface = 'proactive' AND t.user_id = c.id
                    AND $1 IN (e.month, e.late_month)
                WHEN 'routine' THEN t.routine_id = c.id AND $1 IN (e.month, e.late_month)
                WHEN 'goal' THEN t.goal_id = c.id
                ELSE r.root_run_id = c.id END) AS spent,
        (SELECT coalesce(sum(h.amount_nanousd), 0) FROM ledger.hold h
            CROSS JOIN unnest(h.scopes, h.scope_ids) AS b (scope, id)
            WHERE h.org = c.org AND h.state = 'open' AND (b.scope, b.id) = (c.scope, c.id)
                AND (c.scope IN ('run', 'goal') OR h.month = $1)) AS held,
        (SELECT coalesce(sum(v.amount_nanousd), 0) FROM ledger.overrun v
            WHERE v.org = c.org AND (v.scope, v.scope_id) = (c.scope, c.id)
                AND (c.scope IN ('run', 'goal') OR v.month = $1)) AS overrun
    FROM cap c
"""
_SUMS = """
    WITH open AS (
        SELECT h.org, b.scope, b.id AS scope_id,
            CASE WHEN b.scope IN ('run', 'goal') THEN '' ELSE h.month END AS month,
            sum(h.amount_nanousd) AS held
        FROM ledger.hold h CROSS JOIN unnest(h.scopes, h.scope_ids) AS b (scope, id)
        WHERE h.state = 'open' GROUP BY 1, 2, 3, 4
    ), kept AS (
        SELECT c.org, c.scope, c.scope_id, c.month, c.held_nanousd - coalesce((
            SELECT sum(s.amount_nanousd) FROM ledger.settlement s
            WHERE (s.org, s.scope, s.scope_id, s.month) = (c.org, c.scope, c.scope_id, c.month)
        ), 0) AS held
        FROM ledger.cap_state c
    )
    SELECT org, scope, scope_id, month, o.held AS rows, k.held AS sum
    FROM open o FULL JOIN kept k USING (org, scope, scope_id, month)
    WHERE coalesce(o.held, 0) <> coalesce(k.held, 0)
"""


@dataclass(frozen=True)
class Figure:
    """One cap at one moment. Nano-USD."""

    org: str
    scope: str
    id: str
    limit: int
    spent: int
    held: int
    overrun: int

    @property
    def holds(self) -> bool:
        """The invariant of design.md 4."""
        return self.spent + self.held <= self.limit + self.overrun


class Checker:
    """Reads again and again until it is told to stop; `run` raises at the first violation."""

    def __init__(self, url: str, month: str = "2026-11") -> None:
        self.url = url
        self.month = month
        self.looks = 0
        self.held_most = 0

    async def look(self) -> list[Figure]:
        """Read once and check."""
        connection = await asyncpg.connect(self.url, ssl=False)
        try:
            return await self.look_on(connection)
        finally:
            await connection.close()

    async def look_on(self, connection: Any) -> list[Figure]:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            rows = await connection.fetch(_FIGURES, self.month)
            sums = await connection.fetch(_SUMS)
        figures = [Figure(*(row[n] if n < 3 else int(row[n]) for n in range(7))) for row in rows]
        assert [tuple(row) for row in sums] == [], "a cap's sum is not that of its holds"
        assert [figure for figure in figures if not figure.holds] == []
        self.looks += 1
        self.held_most = max([self.held_most, *(figure.held for figure in figures)])
        return figures

    async def run(self, stop: asyncio.Event) -> None:
        """Look without a pause; a connection that is cut is opened again."""
        connection: Any = None
        try:
            while not stop.is_set():
                try:
                    if connection is None or connection.is_closed():
                        connection = await asyncpg.connect(self.url, ssl=False)
                    await self.look_on(connection)
                except (
                    asyncpg.PostgresConnectionError,
                    asyncpg.OperatorInterventionError,
                    asyncpg.InterfaceError,
                    OSError,
                ):
                    connection = None
                await asyncio.sleep(0)
        finally:
            if connection is not None:
                await connection.close()
