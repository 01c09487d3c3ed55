"""What goals may cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.db import Connection

GoalKey = tuple[str, str]
"""Organization and goal id."""


async def save_budgets(connection: Connection, budgets: Mapping[GoalKey, int]) -> None:
    """Keep the least that was said of each, in key order."""
    rows = sorted(budgets.items())
    await connection.execute(
        """
        INSERT INTO goal AS g (org, goal_id, budget_nanousd)
        SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
        ON CONFLICT (org, goal_id) DO UPDATE SET budget_nanousd = excluded.budget_nanousd
        WHERE g.budget_nanousd > excluded.budget_nanousd
        """,
        *([key[n] for key, _ in rows] for n in range(2)),
        [budget for _, budget in rows],
    )
