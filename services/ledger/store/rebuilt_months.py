"""Months under scopes made again: where runs count, as it was made again beside them."""

from __future__ import annotations

from typing import Final

COUNTED: Final = (
    "counted_agents",
    "counted_departments",
    "counted_person",
    "counted_routine",
    "counted_goal",
)
"""Columns of a run that say where its entries count, besides the organization."""


def statement_of_months(shadow: str) -> str:
    """Make `month_spend` again out of the lines and runs of this schema."""
    return f"""
        CREATE TABLE {shadow}.month_spend AS
        WITH amount AS (
            SELECT org, run_id, month, late_month, cost_nanousd AS cost,
                unpriced_count + missing_delegate_count AS floors
            FROM {shadow}.run_line
            UNION ALL
            SELECT org, NULL, month, late_month, cost_nanousd, unpriced_count
            FROM entry WHERE billed_run_id IS NULL
        ), scoped AS (
            SELECT a.*, 'organization' AS scope, a.org AS scope_id FROM amount a
            UNION ALL
            SELECT a.*, 'agent', agent FROM amount a JOIN {shadow}.run r USING (org, run_id)
            CROSS JOIN unnest(r.counted_agents) AS agent
            UNION ALL
            SELECT a.*, 'department', department
            FROM amount a JOIN {shadow}.run r USING (org, run_id)
            CROSS JOIN unnest(r.counted_departments) AS department
            UNION ALL
            SELECT a.*, own.scope, own.id FROM amount a JOIN {shadow}.run r USING (org, run_id)
            CROSS JOIN LATERAL (
                VALUES ('person', r.counted_person), ('routine', r.counted_routine)
            ) AS own (scope, id)
            WHERE own.id IS NOT NULL
            UNION ALL
            SELECT a.org, a.run_id, '', '', a.cost, a.floors, 'goal', r.counted_goal
            FROM amount a JOIN {shadow}.run r USING (org, run_id)
            WHERE r.counted_goal IS NOT NULL
        )
        SELECT org, scope, scope_id, month, sum(cost) AS cost_nanousd,
            sum(floors) AS unpriced_count, sum(late) AS late_nanousd
        FROM (
            SELECT org, scope, scope_id, month, cost, floors, 0 AS late FROM scoped
            UNION ALL
            SELECT org, scope, scope_id, late_month, 0, 0, cost FROM scoped WHERE late_month <> ''
        ) AS charged
        GROUP BY org, scope, scope_id, month
    """
