"""Sums of trees by when they began (`domain/slots.py`): moved with what they sum, and read.

Locks: rows by key, in one statement, after every other sum. A question that enters a run locks
none of them, so that it waits for nobody: its tree waits in `uncounted_tree`, and counts there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from contracts.types import BIGINT_MAX, BIGINT_MIN
from services.ledger.domain.amounts import Amount
from services.ledger.domain.books import RunKey
from services.ledger.domain.merging import Line
from services.ledger.domain.slots import (
    QUARTER_S,
    Kept,
    Place,
    RunLines,
    SlotKey,
    SlotSum,
    begin_of,
    kept_of_new,
    new_runs,
    slots_moved,
    trees_entered,
    trees_placed_anew,
    trees_to_load,
)

if TYPE_CHECKING:
    from services.ledger.domain.books import Books
    from shared.db import Connection


async def move_slots(
    connection: Connection, books: Books, flipped: Collection[RunKey] = ()
) -> None:
    """Move the sums by slot with what a batch has written.

    `flipped`: runs of which a line counts that did not, or the other way round
    (`entries.add_to_lines` says so).
    """
    placed_anew = trees_placed_anew(books)
    trees = trees_to_load(books, placed_anew)
    whole = {*flipped, *books.moved()}
    new = new_runs(books)
    known = kept_of_new(books, trees & new, whole & new)
    roots = {key: books.runs[key].root_run_id for key in whole - new}
    kept = Kept(
        {**known.trees, **await _load_trees(connection, trees - new)},
        {**known.runs, **await _load_lines(connection, roots, placed_anew - new)},
    )
    await add_to_slots(connection, slots_moved(books, kept))


async def _load_trees(connection: Connection, keys: Collection[RunKey]) -> dict[RunKey, Amount]:
    if not keys:
        return {}
    rows = await connection.fetch(
        """
        SELECT org, run_id, tree_cost_nanousd, tree_unpriced_count, tree_missing_delegate_count
        FROM run JOIN unnest($1::text[], $2::text[]) AS t (org, run_id) USING (org, run_id)
        """,
        [org for org, _ in keys],
        [run_id for _, run_id in keys],
    )
    return {
        (row["org"], row["run_id"]): Amount(
            int(row["tree_cost_nanousd"]),
            unpriced_count=int(row["tree_unpriced_count"]),
            missing_delegate_count=int(row["tree_missing_delegate_count"]),
        )
        for row in rows
    }


async def _load_lines(
    connection: Connection, runs: Mapping[RunKey, str], roots: Collection[RunKey]
) -> dict[RunKey, RunLines]:
    """Everything that is entered for these runs, given with roots, and for the runs of trees."""
    if not runs and not roots:
        return {}
    # Found by key whatever the statistics say, as in `store/spend.py`.
    rows = await connection.fetch(
        """
        SELECT l.org, l.run_id, wanted.root_run_id, l.month, l.provider, l.model, l.key_id, l.kind,
            l.late_month, l.cost_nanousd, l.request_count, l.unpriced_count,
            l.missing_delegate_count
        FROM (
            SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS t (org, run_id, root_run_id)
            UNION
            SELECT t.org, r.run_id, t.root_run_id
            FROM unnest($4::text[], $5::text[]) AS t (org, root_run_id) CROSS JOIN LATERAL (
                SELECT run_id FROM run WHERE org = t.org AND root_run_id = t.root_run_id OFFSET 0
            ) AS r
        ) AS wanted
        CROSS JOIN LATERAL (
            SELECT * FROM run_line WHERE org = wanted.org AND run_id = wanted.run_id OFFSET 0
        ) AS l
        """,
        [org for org, _ in runs],
        [run_id for _, run_id in runs],
        list(runs.values()),
        [org for org, _ in roots],
        [run_id for _, run_id in roots],
    )
    found: dict[RunKey, tuple[RunKey, dict[Line, Amount]]] = {}
    for row in rows:
        org, run_id, root_run_id, month, *named = row.values()
        provider, model, key_id, kind, late_month, *sums = named
        line = Line(run_id, month, provider, model, key_id, kind, late_month)
        _, lines = found.setdefault((org, run_id), ((org, root_run_id), {}))
        lines[line] = Amount(*map(int, sums))
    return {key: RunLines(root, lines) for key, (root, lines) in found.items()}


async def add_to_slots(connection: Connection, sums: Mapping[SlotKey, SlotSum]) -> None:
    """Add to slots, in the order of their keys."""
    if not sums:
        return
    rows = sorted(sums.items())
    costs = [amount.cost_nanousd for _, amount in rows]
    fits = min(costs) >= BIGINT_MIN and max(costs) <= BIGINT_MAX
    await connection.execute(
        f"""
        INSERT INTO spend_slot AS kept (org, grain_s, begins_at, dimension, value, cost_nanousd,
            run_count, floor_count, present_count)
        SELECT * FROM unnest($1::text[], $2::integer[], $3::timestamptz[], $4::text[], $5::text[],
            $6::{"bigint" if fits else "numeric"}[], $7::bigint[], $8::bigint[], $9::bigint[])
        ON CONFLICT (org, grain_s, begins_at, dimension, value) DO UPDATE SET
            cost_nanousd = kept.cost_nanousd + excluded.cost_nanousd,
            run_count = kept.run_count + excluded.run_count,
            floor_count = kept.floor_count + excluded.floor_count,
            present_count = kept.present_count + excluded.present_count
        """,
        *([key[n] for key, _ in rows] for n in range(len(SlotKey._fields))),
        costs,
        *([amount[n] for _, amount in rows] for n in range(1, len(SlotSum._fields))),
    )


async def count_trees(connection: Connection, *, limit: int) -> int:
    """Put trees that questions entered into the sums, those that nobody else does; how many."""
    rows = await connection.fetch(
        """
        DELETE FROM uncounted_tree WHERE id IN (
            SELECT id FROM uncounted_tree ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
        ) RETURNING org, began_at, agent_id, user_id
        """,
        limit,
    )
    places = [
        Place(row["org"], begin_of(row["began_at"], QUARTER_S), row["agent_id"], row["user_id"])
        for row in rows
    ]
    await add_to_slots(connection, trees_entered(places))
    return len(rows)
