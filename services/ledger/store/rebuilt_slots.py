"""The sums by slot made again: SQL that shares no code with what moves them (`domain/slots.py`)."""

from __future__ import annotations


def statement_of_slots(shadow: str) -> str:
    """Make them in schema `shadow`, from the runs and lines that were made again there.

    What waits in `uncounted_tree` is in no slot yet: it is read beside them.
    """
    return f"""
    CREATE TABLE {shadow}.spend_slot AS
    WITH tree AS (
        SELECT r.org, r.run_id, r.shown_start, coalesce(r.agent_id, '') AS agent_id,
            coalesce(r.started_by_user_id, '') AS user_id, made.tree_cost_nanousd AS cost,
            CASE WHEN made.tree_unpriced_count > 0 OR made.tree_missing_delegate_count > 0
                THEN 1 ELSE 0 END AS floors
        FROM run r JOIN {shadow}.run made USING (org, run_id)
        WHERE made.root_run_id = r.run_id AND r.shown_start IS NOT NULL
    ), provided AS (
        SELECT root.org, root.shown_start, line.run_id, line.provider, line.key_id,
            line.cost_nanousd AS cost, line.unpriced_count + line.missing_delegate_count AS floors,
            line.request_count > 0 OR line.unpriced_count > 0 AS counts,
            (line.cost_nanousd, line.request_count, line.unpriced_count,
                line.missing_delegate_count) <> (0, 0, 0, 0) AS is_there
        FROM {shadow}.run_line line
        JOIN {shadow}.run made USING (org, run_id)
        JOIN tree root ON root.org = made.org AND root.run_id = made.root_run_id
    ), amount AS (
        SELECT org, shown_start AS at, 'all' AS dimension, '' AS value, cost, 1 AS runs, floors,
            1 AS present FROM tree
        UNION ALL SELECT org, shown_start, 'agent', agent_id, cost, 1, floors, 1 FROM tree
        UNION ALL SELECT org, shown_start, 'person', user_id, cost, 1, floors, 1 FROM tree
        UNION ALL SELECT org, shown_start, 'provider', provider, sum(cost),
            max(counts::integer), sum(floors), max(is_there::integer)
            FROM provided GROUP BY org, shown_start, run_id, provider
        UNION ALL SELECT org, shown_start, 'key', key_id, sum(cost),
            max(counts::integer), sum(floors), max(is_there::integer)
            FROM provided GROUP BY org, shown_start, run_id, key_id
        UNION ALL SELECT org, began_at, 'all', '', 0, -1, 0, -1 FROM uncounted_tree
        UNION ALL SELECT org, began_at, 'agent', agent_id, 0, -1, 0, -1 FROM uncounted_tree
        UNION ALL SELECT org, began_at, 'person', user_id, 0, -1, 0, -1 FROM uncounted_tree
    )
    SELECT org, grain_s,
        to_timestamp(floor(extract(epoch FROM at) / grain_s) * grain_s) AS begins_at, dimension,
        value, sum(cost) AS cost_nanousd, sum(runs) AS run_count, sum(floors) AS floor_count,
        sum(present) AS present_count
    FROM amount CROSS JOIN unnest(CASE dimension WHEN 'all' THEN ARRAY[900]
        ELSE ARRAY[3600, 86400] END) AS grain_s
    GROUP BY org, grain_s, begins_at, dimension, value
"""
