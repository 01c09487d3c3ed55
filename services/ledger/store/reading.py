"""What people read: runs and entries. Every figure is a sum over entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contracts.ledger import ListRuns, RunFilter
from services.ledger.domain.amounts import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from services.ledger.domain.months import ZoneStarts
    from shared.db import Connection

_SHOWN = ", ".join(
    f"CASE WHEN r.run_id = r.root_run_id THEN r.tree_{name} ELSE r.own_{name} END AS {name}"
    for name in COLUMNS
)
_OWN = ", ".join(f"r.own_{name}" for name in COLUMNS)
_IS_CUT = "{0}.cut_run_ids[1] IS NOT DISTINCT FROM {0}.run_id"
"""Its parent was deleted: parent and delegation are withheld wherever it is read."""
_RUN = f"""
    r.run_id, r.root_run_id, r.channel_id, r.agent_id,
    CASE WHEN NOT {_IS_CUT.format("r")} THEN r.parent_run_id END AS parent_run_id,
    CASE WHEN NOT {_IS_CUT.format("r")} THEN r.delegation_id END AS delegation_id,
    a.name AS agent_name, r.agent_version, r.user_id, r.started_by_user_id, r.surface, r.status,
    r.provisional, r.shown_start, r.ended_at, r.error, r.model, r.provider, r.key_id,
    r.conversation_id, r.project_id, r.environment_id, r.budget_nanousd, r.last_sign_at,
    CASE WHEN r.status = 'awaiting_approval' THEN r.moved_at END AS parked_at,
    CASE WHEN r.status = 'failed' AND r.end_digest IS NULL THEN r.reaped_at END AS reaped_at,
    {_SHOWN}, {_OWN},
    (SELECT count(*) FROM run d WHERE d.org = r.org AND d.parent_run_id = r.run_id
        AND d.deleted_at IS NULL) AS delegation_count
"""
_ORDERS = {
    "started_at": "r.shown_start {direction} NULLS LAST",
    "duration": "r.ended_at - r.shown_start {direction} NULLS LAST",
    "cost": "CASE WHEN r.ended_at IS NULL THEN 1 ELSE 0 END, shown.cost_nanousd {direction}",
    "tokens": "CASE WHEN r.ended_at IS NULL THEN 1 ELSE 0 END, shown.tokens {direction}",
}
"""Unfinished runs sort last in both directions for duration, cost and tokens (facts.md 3.4)."""
_SHOWN_SORT = """
    CROSS JOIN LATERAL (SELECT
        CASE WHEN r.run_id = r.root_run_id THEN r.tree_cost_nanousd ELSE r.own_cost_nanousd END
            AS cost_nanousd,
        CASE WHEN r.run_id = r.root_run_id THEN r.tree_input + r.tree_output
            ELSE r.own_input + r.own_output END AS tokens) AS shown
"""


def _where(narrowed: RunFilter, values: list[Any]) -> str:
    conditions = ["r.org = $1", "r.deleted_at IS NULL"]

    def add(condition: str, value: Any) -> None:
        values.append(value)
        conditions.append(condition.format(n=len(values)))

    if narrowed.parent_run_id is not None:
        add("r.parent_run_id = ${n}", narrowed.parent_run_id)
        conditions.append(f"NOT {_IS_CUT.format('r')}")
    elif not narrowed.include_delegations:
        conditions.append("r.run_id = r.root_run_id")
    if narrowed.agent_id is not None:
        add("r.agent_id = ${n}", narrowed.agent_id)
    if narrowed.project_id is not None:
        add("r.project_id = ${n}", narrowed.project_id)
    if narrowed.statuses:
        add("r.status = ANY(${n}::text[])", [status.value for status in narrowed.statuses])
    if narrowed.started_from is not None:
        add("r.shown_start >= ${n}", narrowed.started_from)
    if narrowed.started_to is not None:
        add("r.shown_start <= ${n}", narrowed.started_to)
    return " AND ".join(conditions)


async def list_runs(
    connection: Connection, org: str, question: ListRuns
) -> tuple[Sequence[Any], int]:
    """A page of runs, and how many the filter selects."""
    values: list[Any] = [org]
    where = _where(question.filter, values)
    total = await connection.fetchval(f"SELECT count(*) FROM run r WHERE {where}", *values)
    direction = "DESC" if question.descending else "ASC"
    order = _ORDERS[question.order_by].format(direction=direction)
    values += [question.skip, question.limit]
    page = f"OFFSET ${len(values) - 1} LIMIT ${len(values)}"
    if question.order_by == "started_at" and question.descending:
        where, page = (
            _newest(where, page, first=f"${len(values) - 1}::bigint + ${len(values)}::bigint"),
            "",
        )
    rows = await connection.fetch(
        f"""
        SELECT {_RUN} FROM run r {_SHOWN_SORT}
        LEFT JOIN agent a ON a.org = r.org AND a.agent_id = r.agent_id
        WHERE {where} ORDER BY {order}, r.run_id {direction} {page}
        """,
        *values,
    )
    return rows, int(total)


def _newest(where: str, page: str, *, first: str) -> str:
    """Pick the page that begins with the newest runs in the order of an index.

    Runs without a start come last, and no index holds them there: they are picked apart.
    """
    found = f"SELECT r.run_id, r.shown_start FROM run r WHERE {where} AND r.shown_start IS"
    return f"""
        r.org = $1 AND r.run_id IN (
            SELECT found.run_id FROM (
                ({found} NOT NULL ORDER BY r.shown_start DESC, r.run_id DESC LIMIT {first})
                UNION ALL ({found} NULL ORDER BY r.run_id DESC LIMIT {first})
            ) AS found
            ORDER BY found.shown_start DESC NULLS LAST, found.run_id DESC {page}
        )
    """


async def load_run(connection: Connection, org: str, run_id: str) -> Any | None:
    """One run, or nothing; one that was deleted is nothing."""
    return await connection.fetchrow(
        f"""
        SELECT {_RUN} FROM run r LEFT JOIN agent a ON a.org = r.org AND a.agent_id = r.agent_id
        WHERE r.org = $1 AND r.run_id = $2 AND r.deleted_at IS NULL
        """,
        org,
        run_id,
    )


async def horizon(connection: Connection) -> int:
    """The first transaction that was not complete yet: what is below it no longer changes."""
    return int(
        await connection.fetchval("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    )


async def list_entries(  # noqa: PLR0913
    connection: Connection,
    org: str,
    run_id: str,
    *,
    tree: bool,
    after: int,
    as_of: int,
    limit: int,
) -> Sequence[Any]:
    """Entries of a run (or its tree) in the order of their entering, up to the horizon."""
    members = "SELECT m.run_id FROM run m WHERE m.org = $1 AND m.root_run_id = $2" if tree else "$2"
    return await connection.fetch(
        f"""
        SELECT e.*, c.reason AS correction_reason,
            EXISTS (SELECT FROM run d
                WHERE d.org = e.org AND d.run_id IN (e.run_id, e.billed_run_id)
                    AND d.delegation_id = e.delegation_id AND {_IS_CUT.format("d")})
                AS withholds_delegation
        FROM entry e
        LEFT JOIN correction c ON c.id = e.id AND c.org = e.org
        WHERE e.org = $1 AND e.billed_run_id IN ({members}) AND e.sequence > $3
            AND e.transaction_id < $4::text::xid8
        ORDER BY e.sequence LIMIT $5
        """,
        org,
        run_id,
        after,
        str(as_of),
        limit,
    )


def day_of(instant: str, zones: ZoneStarts, values: list[Any]) -> str:
    """The day of an instant in the zone that held then, as SQL; its parameters join `values`."""
    (_, first), *later = zones
    values.append(first)
    place = len(values)
    cases = ""
    for since, name in later:
        values += [since, name]
        # The newest zone first: an instant after it is after all of them.
        cases = f"WHEN {instant} >= ${len(values) - 1} THEN ${len(values)}::text " + cases
    zone = f"${place}::text"
    return f"({instant} AT TIME ZONE {f'CASE {cases}ELSE {zone} END' if later else zone})::date"


async def spend_of_deleted(
    connection: Connection, org: str, start: datetime, end: datetime | None
) -> Any:
    """The window's trees whose root was deleted: in the bill, and in no page of runs."""
    return await connection.fetchrow(
        """
        SELECT coalesce(sum(root.tree_cost_nanousd), 0) AS cost_nanousd, count(*) AS run_count,
            coalesce(bool_or(root.tree_unpriced_count > 0 OR root.tree_missing_delegate_count > 0),
                false) AS is_partial
        FROM run root
        WHERE root.org = $1 AND root.run_id = root.root_run_id AND root.deleted_at IS NOT NULL
            AND root.shown_start >= $2 AND ($3::timestamptz IS NULL OR root.shown_start <= $3)
        """,
        org,
        start,
        end,
    )
