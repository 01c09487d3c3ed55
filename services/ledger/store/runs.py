"""Runs: loaded under lock, saved whole, and moved between the sums that hold them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from services.ledger.domain.amounts import COLUMNS, NOTHING, Amount
from services.ledger.domain.runs import Run
from services.ledger.store.sums import moved, parameters
from services.ledger.tables.run_names import RUN_MOMENTS, RUN_TEXTS, RUN_TEXTS_REQUIRED

if TYPE_CHECKING:
    from shared.db import Connection

RunKey = tuple[str, str]
"""Organization and run id."""
TOTALS_EVERY = timedelta(seconds=5)
"""A run whose totals alone change is told of no oftener (design.md 4, *A run's life*)."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What a batch adds to runs: to their own sums, to their trees', and signs of life."""

    own: Mapping[RunKey, Amount]
    tree: Mapping[RunKey, Amount]
    signs: Mapping[RunKey, tuple[datetime, datetime]]
    own_signs: Mapping[RunKey, tuple[datetime, datetime]]
    """Those that are the run's own, not of its tree alone."""


_FIELDS = (
    *RUN_TEXTS_REQUIRED,
    "provisional",
    *RUN_TEXTS,
    "budget_nanousd",
    "asked_in_chat",
    "status",
    "tools",
    "missing_delegates",
    *RUN_MOMENTS,
    "revision",
    "counted_agents",
    "counted_departments",
    "cut_run_ids",
)
_SELECT = ", ".join(("org", "run_id", *_FIELDS))
_INSERT = f"""
    INSERT INTO run ({_SELECT})
    VALUES ({", ".join(f"${n}" for n in range(1, len(_FIELDS) + 3))})
    ON CONFLICT DO NOTHING
    """
_ENTER_ASKED = f"""
    WITH made AS (
        {_INSERT} RETURNING org, run_id, root_run_id, shown_start, agent_id, started_by_user_id
    ), unplaced AS (
        INSERT INTO unplaced_run (org, run_id)
        SELECT org, run_id FROM made
        WHERE run_id <> root_run_id OR started_by_user_id IS NOT NULL
    )
    INSERT INTO uncounted_tree (org, began_at, agent_id, user_id)
    SELECT org, shown_start, coalesce(agent_id, ''), coalesce(started_by_user_id, '')
    FROM made WHERE run_id = root_run_id AND shown_start IS NOT NULL
    """
_UPDATE = f"""
    UPDATE run SET {", ".join(f"{name} = ${n}" for n, name in enumerate(_FIELDS, start=3))}
    WHERE org = $1 AND run_id = $2
    """


def _values(org: str, run: Run) -> tuple[Any, ...]:
    values = []
    for name in _FIELDS:
        value = getattr(run, name)
        values.append(list(value) if isinstance(value, tuple) else value)
    return (org, run.run_id, *values)


def _run(row: Any) -> Run:
    values = {name: row[name] for name in ("run_id", *_FIELDS)}
    for name in ("tools", "counted_agents", "counted_departments", "cut_run_ids"):
        values[name] = tuple(values[name])
    return Run(**values)


async def create_missing(connection: Connection, runs: Iterable[tuple[str, Run]]) -> None:
    """Enter runs that are not there yet and have not begun; others stay as they are."""
    await _enter(connection, _INSERT, runs)


async def enter_asked(connection: Connection, runs: Iterable[tuple[str, Run]]) -> None:
    """Enter runs that a question tells of; trees that begin so are counted by somebody later.

    Whoever asks waits for none of the sums that trees are counted in (`store/slots.py`), nor for
    the root that it names or the departments of who started it: what is learned of those meanwhile
    is made good by whoever places the run (`handlers/entering.py`).
    """
    await _enter(connection, _ENTER_ASKED, runs)


async def _enter(connection: Connection, statement: str, runs: Iterable[tuple[str, Run]]) -> None:
    rows = sorted((_values(org, run) for org, run in runs), key=lambda row: row[:2])
    if rows:
        await connection.executemany(statement, rows)


async def lock_runs(connection: Connection, keys: Collection[RunKey]) -> dict[RunKey, Run]:
    """Load runs and hold them until the end of the transaction, in key order."""
    rows = await connection.fetch(
        f"""
        SELECT {_SELECT} FROM run
        JOIN unnest($1::text[], $2::text[]) AS t (org, run_id) USING (org, run_id)
        ORDER BY org, run_id FOR UPDATE OF run
        """,
        [org for org, _ in keys],
        [run_id for _, run_id in keys],
    )
    return {(row["org"], row["run_id"]): _run(row) for row in rows}


async def lock_with_roots(connection: Connection, keys: Collection[RunKey]) -> dict[RunKey, Run]:
    """Load and hold runs and the roots of their trees, all of them in key order.

    A root that is held after its delegate is waited for by whoever holds both the other way round.
    One that a run had not when this began to wait for it is held last.
    """
    rows = await connection.fetch(
        f"""
        WITH named AS (SELECT * FROM unnest($1::text[], $2::text[]) AS t (org, run_id)),
        wanted AS (
            SELECT org, run_id FROM named
            UNION
            SELECT r.org, r.root_run_id FROM run r JOIN named USING (org, run_id)
        )
        SELECT {_SELECT} FROM run JOIN wanted USING (org, run_id)
        ORDER BY org, run_id FOR UPDATE OF run
        """,
        [org for org, _ in keys],
        [run_id for _, run_id in keys],
    )
    found = {(row["org"], row["run_id"]): _run(row) for row in rows}
    while moved := {(org, run.root_run_id) for (org, _), run in found.items()} - found.keys():
        held = await lock_runs(connection, moved)
        if not held:
            break
        found |= held
    return found


async def load_runs(connection: Connection, keys: Collection[RunKey]) -> dict[RunKey, Run]:
    """Load runs as they are."""
    rows = await connection.fetch(
        f"""
        SELECT {_SELECT} FROM run
        JOIN unnest($1::text[], $2::text[]) AS t (org, run_id) USING (org, run_id)
        """,
        [org for org, _ in keys],
        [run_id for _, run_id in keys],
    )
    return {(row["org"], row["run_id"]): _run(row) for row in rows}


async def lock_members(connection: Connection, roots: Collection[RunKey]) -> dict[RunKey, Run]:
    """Load and hold every run of these trees."""
    rows = await connection.fetch(
        f"""
        SELECT {_SELECT} FROM run
        JOIN unnest($1::text[], $2::text[]) AS t (org, root_run_id) USING (org, root_run_id)
        ORDER BY org, run_id FOR UPDATE OF run
        """,
        [org for org, _ in roots],
        [run_id for _, run_id in roots],
    )
    return {(row["org"], row["run_id"]): _run(row) for row in rows}


async def list_deleting(connection: Connection, orgs: Collection[str]) -> set[str]:
    """Those of these organizations in which any run was deleted."""
    rows = await connection.fetch(
        """
        SELECT t.org FROM unnest($1::text[]) AS t (org)
        WHERE EXISTS (SELECT FROM run r WHERE r.org = t.org AND r.deleted_at IS NOT NULL)
        """,
        list(orgs),
    )
    return {row["org"] for row in rows}


async def lock_descendants(connection: Connection, keys: Collection[RunKey]) -> dict[RunKey, Run]:
    """Load and hold runs with everything that was delegated from them, however deep."""
    rows = await connection.fetch(
        f"""
        WITH RECURSIVE below AS (
            SELECT org, run_id FROM unnest($1::text[], $2::text[]) AS t (org, run_id)
            UNION
            SELECT r.org, r.run_id FROM run r
            JOIN below b ON b.org = r.org AND b.run_id = r.parent_run_id
        )
        SELECT {_SELECT} FROM run JOIN below USING (org, run_id)
        ORDER BY org, run_id FOR UPDATE OF run
        """,
        [org for org, _ in keys],
        [run_id for _, run_id in keys],
    )
    return {(row["org"], row["run_id"]): _run(row) for row in rows}


async def take_unplaced(connection: Connection, *, limit: int) -> set[RunKey]:
    """Runs that questions entered and that wait to be placed, those that nobody else places."""
    rows = await connection.fetch(
        """
        DELETE FROM unplaced_run WHERE id IN (
            SELECT id FROM unplaced_run ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
        ) RETURNING org, run_id
        """,
        limit,
    )
    return {(row["org"], row["run_id"]) for row in rows}


async def save_runs(connection: Connection, runs: Sequence[tuple[str, Run]]) -> None:
    """Write runs that are held."""
    if runs:
        await connection.executemany(_UPDATE, [_values(org, run) for org, run in runs])


async def load_own_amounts(
    connection: Connection, keys: Collection[RunKey]
) -> dict[RunKey, Amount]:
    """The sums of runs' own entries."""
    rows = await connection.fetch(
        f"""
        SELECT org, run_id, {", ".join(f"own_{name}" for name in COLUMNS)} FROM run
        JOIN unnest($1::text[], $2::text[]) AS t (org, run_id) USING (org, run_id)
        """,
        [org for org, _ in keys],
        [run_id for _, run_id in keys],
    )
    return {(row["org"], row["run_id"]): amount_of(row, "own_") for row in rows}


def amount_of(row: Any, prefix: str = "") -> Amount:
    """Read an amount out of a row's sum columns."""
    return Amount(*(int(row[f"{prefix}{name}"]) for name in COLUMNS))


_SIGNS_OF_RUNS = (
    "$1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::boolean[], "
    "$8::timestamptz[], $9::timestamptz[]"
)
_COLUMNS_OF_RUNS = (
    "org",
    "run_id",
    "sign_at",
    "heard_at",
    "counted",
    "own_sign_at",
    "own_heard_at",
)


async def add_to_runs(connection: Connection, sums: Sums, *, now: datetime) -> None:
    """Add to runs' own sums and to trees' sums, and note signs of life; one write per run.

    A run whose sums change is marked: its totals are to be said, not before `TOTALS_EVERY` has
    passed since something was said of it. The mark lies at most so far ahead, whatever a clock did.
    """
    counted = {key for part in (sums.own, sums.tree) for key, amount in part.items() if amount}
    keys = sorted(counted | sums.signs.keys() | sums.own_signs.keys())
    if not keys:
        return
    columns = [
        *moved([sums.own.get(key, NOTHING) for key in keys], "own_"),
        *moved([sums.tree.get(key, NOTHING) for key in keys], "tree_"),
    ]
    names = [column.name for column in columns]
    sets = "".join(f", {name} = run.{name} + t.{name}" for name in names)
    arrays = ", ".join(filter(None, [_SIGNS_OF_RUNS, parameters(columns, 10)]))
    await connection.execute(
        f"""
        UPDATE run SET last_sign_at = greatest(run.last_sign_at, t.sign_at),
            heard_at = greatest(run.heard_at, t.heard_at),
            own_last_sign_at = greatest(run.own_last_sign_at, t.own_sign_at),
            own_heard_at = greatest(run.own_heard_at, t.own_heard_at),
            say_due_at = CASE WHEN t.counted THEN coalesce(
                run.say_due_at, least(greatest($6, run.said_at + $7), $6 + $7)
            ) ELSE run.say_due_at END
            {sets}
        FROM unnest({arrays})
            AS t ({", ".join((*_COLUMNS_OF_RUNS, *names))})
        WHERE run.org = t.org AND run.run_id = t.run_id
        """,
        [key[0] for key in keys],
        [key[1] for key in keys],
        [sign and sign[0] for sign in map(sums.signs.get, keys)],
        [sign and sign[1] for sign in map(sums.signs.get, keys)],
        [key in counted for key in keys],
        now,
        TOTALS_EVERY,
        [sign and sign[0] for sign in map(sums.own_signs.get, keys)],
        [sign and sign[1] for sign in map(sums.own_signs.get, keys)],
        *(column.values for column in columns),
    )


async def lock_due(connection: Connection, *, now: datetime, limit: int) -> dict[RunKey, Run]:
    """Load and hold runs whose totals are to be said, longest due first; pass over held ones.

    A mark farther ahead than any is made was made by a clock that was set back since: it is due.
    """
    rows = await connection.fetch(
        f"""
        SELECT {_SELECT} FROM run
        WHERE say_due_at IS NOT NULL AND (say_due_at <= $1 OR say_due_at > $1 + $2)
        ORDER BY say_due_at LIMIT $3 FOR UPDATE SKIP LOCKED
        """,
        now,
        TOTALS_EVERY,
        limit,
    )
    return {(row["org"], row["run_id"]): _run(row) for row in rows}


async def mark_said(
    connection: Connection, revisions: Mapping[RunKey, int], *, now: datetime
) -> None:
    """Note that runs were told of as they are now; they are held."""
    await connection.execute(
        """
        UPDATE run SET revision = t.revision, said_at = $4, say_due_at = NULL
        FROM unnest($1::text[], $2::text[], $3::bigint[]) AS t (org, run_id, revision)
        WHERE run.org = t.org AND run.run_id = t.run_id
        """,
        [key[0] for key in revisions],
        [key[1] for key in revisions],
        list(revisions.values()),
        now,
    )


async def lock_silent(
    connection: Connection, *, heard_before: datetime, streams: Sequence[str], limit: int
) -> dict[RunKey, Run]:
    """Load and hold top-level runs, not voice, that were last heard of before; pass over held ones.

    Runs that were deleted are left alone, and those of an organization whose messages wait in the
    retry table.
    """
    rows = await connection.fetch(
        f"""
        SELECT {_SELECT} FROM run
        WHERE status = 'running' AND run_id = root_run_id AND heard_at < $1
            AND surface IS DISTINCT FROM 'voice' AND deleted_at IS NULL
            AND NOT EXISTS (
                SELECT FROM retry WHERE retry.org = run.org AND retry.stream = ANY($2::text[])
            )
        ORDER BY org, run_id LIMIT $3 FOR UPDATE OF run SKIP LOCKED
        """,
        heard_before,
        list(streams),
        limit,
    )
    return {(row["org"], row["run_id"]): _run(row) for row in rows}


async def load_shown_amounts(
    connection: Connection, keys: Collection[RunKey]
) -> dict[RunKey, Amount]:
    """What a run's figure shows: its whole tree for a root, else its own entries."""
    columns = ", ".join(
        f"CASE WHEN run_id = root_run_id THEN tree_{name} ELSE own_{name} END AS {name}"
        for name in COLUMNS
    )
    rows = await connection.fetch(
        f"""
        SELECT org, run_id, {columns} FROM run
        JOIN unnest($1::text[], $2::text[]) AS t (org, run_id) USING (org, run_id)
        """,
        [org for org, _ in keys],
        [run_id for _, run_id in keys],
    )
    return {(row["org"], row["run_id"]): amount_of(row) for row in rows}
