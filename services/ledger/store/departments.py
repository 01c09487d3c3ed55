"""Who belonged to which department when, and the runs that a later word of it concerns.

Locks: whoever enters amounts holds its organizations' directories shared until it commits, from
before it locks a run; whoever changes caps or departments holds them alone. So a change sees every
amount that was counted by the state before it, and no cycle of waiting can form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from services.ledger.domain.departments import (
    FOREVER,
    DepartmentKey,
    Interval,
    PersonKey,
    Span,
)

if TYPE_CHECKING:
    from shared.db import Connection

_LOCK = "hashtextextended('rienda ledger directory ' || t.org, 0)"
_UNTIL = """
    least(m.ends_at, CASE WHEN d.removed_revision > d.changed_revision THEN d.removed_at END)
"""
"""A removed department has members until its removal; what they spent before it stays."""


async def share_directories(
    connection: Connection, orgs: Collection[str], *, alone: Collection[str] = ()
) -> None:
    """Keep caps and departments of organizations as they are until the transaction ends.

    Those of `alone` are shared with nobody.
    """
    if not alone:
        await _lock(connection, "pg_advisory_xact_lock_shared", orgs)
        return
    for org in sorted(orgs):
        if org in alone:
            await hold_directories(connection, [org])
        else:
            await share_directories(connection, [org])


async def hold_directories(connection: Connection, orgs: Collection[str]) -> None:
    """Wait for everybody who counts by the present caps and departments, and let nobody begin."""
    await _lock(connection, "pg_advisory_xact_lock", orgs)


async def _lock(connection: Connection, function: str, orgs: Collection[str]) -> None:
    if not orgs:
        return
    # In one order, so that two batches of several organizations never wait for one another.
    await connection.execute(
        f"SELECT {function}({_LOCK}) FROM unnest($1::text[]) AS t (org)", sorted(set(orgs))
    )


async def load_belonging(
    connection: Connection, people: Collection[PersonKey]
) -> dict[PersonKey, tuple[Interval, ...]]:
    """Every department that these people belong or belonged to; nobody is left out."""
    rows = await connection.fetch(
        f"""
        SELECT m.org, m.user_id, m.department_id, m.effective_at, {_UNTIL} AS until
        FROM department_member m
        JOIN unnest($1::text[], $2::text[]) AS t (org, user_id) USING (org, user_id)
        JOIN department d ON d.org = m.org AND d.department_id = m.department_id
        """,
        [org for org, _ in people],
        [user_id for _, user_id in people],
    )
    found: dict[PersonKey, list[Interval]] = {person: [] for person in people}
    for row in rows:
        found[(row["org"], row["user_id"])].append(_interval(row))
    return {person: tuple(sorted(intervals)) for person, intervals in found.items()}


async def load_members(
    connection: Connection, departments: Collection[DepartmentKey]
) -> dict[DepartmentKey, dict[str, list[Interval]]]:
    """The people of departments with their intervals."""
    if not departments:
        return {}
    rows = await connection.fetch(
        f"""
        SELECT m.org, m.user_id, m.department_id, m.effective_at, {_UNTIL} AS until
        FROM department_member m
        JOIN unnest($1::text[], $2::text[]) AS t (org, department_id) USING (org, department_id)
        JOIN department d ON d.org = m.org AND d.department_id = m.department_id
        """,
        [org for org, _ in departments],
        [department_id for _, department_id in departments],
    )
    found: dict[DepartmentKey, dict[str, list[Interval]]] = {}
    for row in rows:
        people = found.setdefault((row["org"], row["department_id"]), {})
        people.setdefault(row["user_id"], []).append(_interval(row))
    return found


def _interval(row: Any) -> Interval:
    return Interval(row["department_id"], row["effective_at"], row["until"] or FOREVER)


@dataclass(frozen=True, slots=True)
class Recount:
    """Trees of one starter that are to be counted again, and how far that has come."""

    id: int
    span: Span
    after_run_id: str


async def ask_recount(connection: Connection, spans: Iterable[Span]) -> None:
    """Note whose trees have to be counted again; never waits for one that is under way."""
    rows = [
        (each.org, each.user_id, each.since, None if each.until == FOREVER else each.until)
        for each in spans
    ]
    if rows:
        await connection.execute(
            """
            INSERT INTO recount (org, user_id, since, until)
            SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[])
            """,
            *([row[n] for row in rows] for n in range(4)),
        )


async def find_recount(connection: Connection) -> str | None:
    """An organization with trees to be counted again."""
    found: str | None = await connection.fetchval("SELECT org FROM recount ORDER BY id LIMIT 1")
    return found


async def hold_recount(connection: Connection, org: str) -> Recount | None:
    """The oldest of an organization that nobody works at; held until the transaction ends."""
    row = await connection.fetchrow(
        """
        SELECT id, org, user_id, since, until, after_run_id FROM recount
        WHERE org = $1 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
        """,
        org,
    )
    if row is None:
        return None
    span = Span(row["org"], row["user_id"], row["since"], row["until"] or FOREVER)
    return Recount(row["id"], span, row["after_run_id"])


async def list_roots(connection: Connection, recount: Recount, *, limit: int) -> Sequence[str]:
    """The next roots that the person started in the span, by id."""
    rows = await connection.fetch(
        """
        SELECT run_id FROM run
        WHERE org = $1 AND started_by_user_id = $2 AND run_id = root_run_id
            AND shown_start >= $3 AND ($4::timestamptz IS NULL OR shown_start < $4)
            AND run_id > $5
        ORDER BY run_id LIMIT $6
        """,
        recount.span.org,
        recount.span.user_id,
        recount.span.since,
        None if recount.span.until == FOREVER else recount.span.until,
        recount.after_run_id,
        limit,
    )
    return [row["run_id"] for row in rows]


async def save_recount(connection: Connection, recount: Recount, last: str | None) -> None:
    """Note how far it has come; without a last run it is done."""
    if last is None:
        await connection.execute("DELETE FROM recount WHERE id = $1", recount.id)
    else:
        await connection.execute(
            "UPDATE recount SET after_run_id = $2 WHERE id = $1", recount.id, last
        )


_SPEND = """
    SELECT d.department_id, d.name, d.monthly_nanousd,
        d.removed_revision > d.changed_revision AS removed,
        coalesce(m.cost_nanousd, 0) AS spent_nanousd, coalesce(m.unpriced_count, 0) AS floors,
        coalesce(r.run_count, 0) AS run_count,
        (SELECT count(DISTINCT i.user_id) FROM department_member i
            WHERE i.org = d.org AND i.department_id = d.department_id
                AND d.removed_revision < d.changed_revision AND i.effective_at <= $5
                AND (i.ends_at IS NULL OR i.ends_at > $5)) AS member_count
    FROM department d
    LEFT JOIN month_spend m ON m.org = d.org AND m.scope = 'department'
        AND m.scope_id = d.department_id AND m.month = $2
    LEFT JOIN (
        SELECT counted.id, count(*) AS run_count
        FROM run CROSS JOIN unnest(run.counted_departments) AS counted (id)
        WHERE run.org = $1 AND run.run_id = run.root_run_id
            AND run.shown_start >= $3 AND run.shown_start < $4
        GROUP BY counted.id
    ) AS r ON r.id = d.department_id
    WHERE d.org = $1 AND d.changed_revision > 0 AND (d.removed_revision < d.changed_revision
        OR m.cost_nanousd <> 0 OR m.unpriced_count <> 0 OR r.run_count > 0)
"""


@dataclass(frozen=True, slots=True)
class SpendMonth:
    """The month that departments' spend is asked for, in the billing time zone."""

    month: str
    begins_at: datetime
    ends_at: datetime


async def list_spend(
    connection: Connection, org: str, asked: SpendMonth, *, now: datetime, page: tuple[int, int]
) -> tuple[Sequence[Any], int]:
    """What departments spent in a month, costliest first, and how many there are.

    `page`: how many to skip, and how many to answer. Members are those of `now`.
    """
    values = (org, asked.month, asked.begins_at, asked.ends_at, now)
    rows = await connection.fetch(
        f"{_SPEND} ORDER BY spent_nanousd DESC, d.name, d.department_id OFFSET $6 LIMIT $7",
        *values,
        *page,
    )
    total = await connection.fetchval(f"SELECT count(*) FROM ({_SPEND}) AS spend", *values)
    return rows, int(total)
