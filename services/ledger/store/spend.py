"""What trees that began in a window spent: sums by slot, and single trees at its ragged ends.

Windows select trees by their root's start and count them whole (design.md 3, *Windows*), so that
all breakdowns of one window add up to the same bill.

Rows are found by key whatever the statistics say: with those of when an organization was small the
planner joins everything to everything. Hence the lateral subqueries that it may not take apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.ledger.domain.windows import (
    DAY_GRAINS,
    FIGURE_GRAINS,
    SINGLE_TREES,
    Stretch,
    stretches,
)
from services.ledger.store.reading import day_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from services.ledger.domain.months import ZoneStarts
    from shared.db import Connection

_STRETCHES = f"""
    stretch AS MATERIALIZED (
        SELECT grain_s, since, coalesce(before, 'infinity') AS before
        FROM unnest($2::integer[], $3::timestamptz[], $4::timestamptz[])
            AS t (grain_s, since, before)
    ), tree AS MATERIALIZED (
        SELECT root.* FROM stretch CROSS JOIN LATERAL (
            SELECT r.run_id, r.shown_start, coalesce(r.agent_id, '') AS agent_id,
                coalesce(r.started_by_user_id, '') AS user_id, r.tree_cost_nanousd AS cost_nanousd,
                (r.tree_unpriced_count > 0 OR r.tree_missing_delegate_count > 0)::integer AS floors
            FROM run r
            WHERE r.org = $1 AND r.run_id = r.root_run_id
                AND r.shown_start >= stretch.since AND r.shown_start < stretch.before
            OFFSET 0
        ) AS root
        WHERE stretch.grain_s = {SINGLE_TREES}
    ), uncounted AS MATERIALIZED (
        SELECT u.began_at, u.agent_id, u.user_id FROM stretch CROSS JOIN LATERAL (
            SELECT * FROM uncounted_tree
            WHERE org = $1 AND began_at >= stretch.since AND began_at < stretch.before
            OFFSET 0
        ) AS u
        WHERE stretch.grain_s <> {SINGLE_TREES}
    )
"""
"""Trees to be read one by one, and those that no slot counts yet."""


def _slots(columns: str, *, narrowed: str = "") -> str:
    return f"""
        SELECT {columns} FROM stretch CROSS JOIN LATERAL (
            SELECT * FROM spend_slot
            WHERE org = $1 AND grain_s = stretch.grain_s
                AND begins_at >= stretch.since AND begins_at < stretch.before {narrowed}
            OFFSET 0
        ) AS slot
    """


_FIGURES = f"""
    WITH {_STRETCHES}, line AS (
        SELECT of_run.run_id, part.dimension, part.value, sum(of_run.cost_nanousd) AS cost_nanousd,
            bool_or(of_run.request_count > 0 OR of_run.unpriced_count > 0)::integer AS counts,
            sum(of_run.unpriced_count + of_run.missing_delegate_count) AS floors,
            bool_or(of_run.request_count <> 0 OR of_run.unpriced_count <> 0
                OR of_run.cost_nanousd <> 0 OR of_run.missing_delegate_count <> 0)::integer
                AS is_there
        FROM tree
        CROSS JOIN LATERAL (
            SELECT run_id FROM run WHERE org = $1 AND root_run_id = tree.run_id OFFSET 0
        ) AS member
        CROSS JOIN LATERAL (
            SELECT * FROM run_line WHERE org = $1 AND run_id = member.run_id OFFSET 0
        ) AS of_run
        CROSS JOIN LATERAL (VALUES ('provider', of_run.provider), ('key', of_run.key_id))
            AS part (dimension, value)
        GROUP BY of_run.run_id, part.dimension, part.value
    ), figure AS (
        SELECT dimension, value, sum(cost_nanousd) AS cost_nanousd,
            sum(run_count)::bigint AS run_count, sum(floor_count) AS floor_count
        FROM (
            {_slots("dimension, value, cost_nanousd, run_count, floor_count, present_count")}
            UNION ALL SELECT part.dimension, part.value, cost_nanousd, 1, floors, 1
            FROM tree CROSS JOIN LATERAL (VALUES ('agent', agent_id), ('person', user_id))
                AS part (dimension, value)
            UNION ALL SELECT part.dimension, part.value, 0, 1, 0, 1
            FROM uncounted CROSS JOIN LATERAL (VALUES ('agent', agent_id), ('person', user_id))
                AS part (dimension, value)
            UNION ALL SELECT dimension, value, cost_nanousd, counts, floors, is_there FROM line
        ) AS found
        GROUP BY dimension, value
        HAVING sum(present_count) > 0
    )
    SELECT figure.dimension, nullif(figure.value, '') AS value, figure.cost_nanousd,
        figure.run_count, figure.floor_count, a.name AS agent_name, a.monthly_nanousd,
        coalesce(m.cost_nanousd, 0) AS month_nanousd,
        coalesce(m.unpriced_count, 0) AS month_unpriced
    FROM figure
    LEFT JOIN agent a
        ON figure.dimension = 'agent' AND a.org = $1 AND a.agent_id = figure.value
    LEFT JOIN month_spend m ON figure.dimension = 'agent' AND m.org = $1 AND m.scope = 'agent'
        AND m.scope_id = figure.value AND m.month = $5
    ORDER BY figure.cost_nanousd DESC, nullif(figure.value, '')
"""


async def load_figures(
    connection: Connection, org: str, start: datetime, end: datetime | None, month: str
) -> dict[str, list[Any]]:
    """By dimension, costliest first: agents (with their own month), persons, providers, keys.

    Agents and persons sum trees; providers and keys sum entries by their own, and count the runs
    that have any.
    """
    cut = stretches(start, end, FIGURE_GRAINS)
    found: dict[str, list[Any]] = {"agent": [], "person": [], "provider": [], "key": []}
    for row in await connection.fetch(_FIGURES, org, *_columns(cut), month):
        found[row["dimension"]].append(row)
    return found


async def list_days(
    connection: Connection, org: str, start: datetime, end: datetime | None, zones: ZoneStarts
) -> Sequence[Any]:
    """Trees by the day that they began on, in the zone that held then; others are left out."""
    values: list[Any] = [org, *_columns(stretches(start, end, DAY_GRAINS))]
    slot = _slots(
        "begins_at, cost_nanousd, run_count, floor_count", narrowed="AND dimension = 'all'"
    )
    return await connection.fetch(
        f"""
        WITH {_STRETCHES}
        SELECT {day_of("found.at", zones, values)} AS day, sum(cost_nanousd) AS cost_nanousd,
            sum(run_count)::bigint AS run_count, sum(floor_count) > 0 AS is_partial
        FROM (
            {slot}
            UNION ALL SELECT shown_start, cost_nanousd, 1, floors FROM tree
            UNION ALL SELECT began_at, 0, 1, 0 FROM uncounted
        ) AS found (at, cost_nanousd, run_count, floor_count)
        GROUP BY day HAVING sum(run_count) > 0 ORDER BY day
        """,
        *values,
    )


def _columns(cut: Sequence[Stretch]) -> tuple[list[Any], ...]:
    return tuple([stretch[n] for stretch in cut] for n in range(len(Stretch._fields)))
