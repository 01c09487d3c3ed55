"""The ledger's sums and states made again from its entries and facts, in a schema of their own.

Everything here is SQL over whole tables and shares no code with what keeps the sums up to date, so
that one mistake does not prove itself. The one thing not to break: nothing is written outside the
shadow schema but by `apply_rollups`, and a snapshot is one transaction's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from services.ledger.domain.amounts import COLUMNS
from services.ledger.store.rebuilt_months import COUNTED, statement_of_months
from services.ledger.store.rebuilt_signs import SIGNS, statement_of_signs
from services.ledger.store.rebuilt_slots import statement_of_slots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.db import Connection

SHADOW: Final = "ledger_shadow"
"""Made by `bootstrap prepare`; belongs to the room's owner, nobody else sees it."""
EXAMPLES_MAX: Final = 3
_AMOUNTS: Final = ", ".join(COLUMNS)
_SUMS: Final = ", ".join(f"sum({name}) AS {name}" for name in COLUMNS)
_ENTRY_AMOUNTS: Final = ", ".join(
    "0 AS missing_delegate_count" if name == "missing_delegate_count" else f"e.{name}"
    for name in COLUMNS
)
_MISSING_AMOUNTS: Final = ", ".join(
    "r.missing_delegates" if name == "missing_delegate_count" else "0" for name in COLUMNS
)
_LINE_KEY: Final = "org, run_id, month, provider, model, key_id, kind, late_month"

_ZONES: Final = f"""
    CREATE TABLE {SHADOW}.zone AS
    SELECT o.org, zone.value ->> 'from_month' AS from_month, zone.value ->> 'timezone' AS name
    FROM organization o CROSS JOIN jsonb_array_elements(o.billing_zones) AS zone (value)
"""
_MONTH: Final = f"""
    coalesce((
        SELECT to_char(r.ended_at AT TIME ZONE z.name, 'YYYY-MM') FROM {SHADOW}.zone z
        WHERE z.org = r.org
        ORDER BY to_char(r.ended_at AT TIME ZONE z.name, 'YYYY-MM') >= z.from_month DESC,
            CASE WHEN to_char(r.ended_at AT TIME ZONE z.name, 'YYYY-MM') >= z.from_month
                THEN z.from_month END DESC NULLS LAST,
            z.from_month
        LIMIT 1
    ), to_char(r.ended_at AT TIME ZONE 'UTC', 'YYYY-MM'))
"""
"""The newest zone whose own month has begun; the first one where none has."""
_LINES: Final = f"""
    CREATE TABLE {SHADOW}.run_line AS
    SELECT {_LINE_KEY}, {_SUMS} FROM (
        SELECT e.org, e.billed_run_id AS run_id, e.month, coalesce(e.provider, '') AS provider,
            e.model, coalesce(e.key_id, '') AS key_id,
            coalesce(e.line_kind, corrected.kind, e.kind) AS kind, e.late_month, {_ENTRY_AMOUNTS}
        FROM entry e LEFT JOIN entry corrected ON corrected.id = e.corrects_entry_id
        WHERE e.billed_run_id IS NOT NULL
        UNION ALL
        SELECT r.org, r.run_id, {_MONTH}, '', '', '', 'missing_delegate', '', {_MISSING_AMOUNTS}
        FROM run r WHERE r.missing_delegates > 0 AND r.ended_at IS NOT NULL
    ) AS amount
    GROUP BY {_LINE_KEY}
"""
_DELETIONS: Final = f"""
    CREATE TABLE {SHADOW}.deletion AS
    SELECT org, run_id, min(at) AS deleted_at FROM run_transition WHERE kind = 'deleted'
    GROUP BY org, run_id
"""
_CUTS: Final = f"""
    CREATE TABLE {SHADOW}.cut AS
    WITH RECURSIVE walk AS (
        SELECT r.org, r.run_id AS origin, r.run_id AS place, ARRAY[r.run_id] AS path FROM run r
        WHERE r.parent_run_id IS NOT NULL
            AND EXISTS (SELECT FROM {SHADOW}.deletion d WHERE d.org = r.org)
        UNION ALL
        SELECT w.org, w.origin, p.run_id, w.path || p.run_id
        FROM walk w JOIN run r ON r.org = w.org AND r.run_id = w.place
        JOIN run p ON p.org = r.org AND p.run_id = r.parent_run_id
        WHERE NOT p.run_id = ANY (w.path)
    )
    SELECT w.org, w.origin AS run_id, array_agg(w.place ORDER BY cardinality(w.path)) AS cut_run_ids
    FROM walk w JOIN run r ON r.org = w.org AND r.run_id = w.place
    JOIN {SHADOW}.deletion d ON d.org = r.org AND d.run_id = r.parent_run_id
    GROUP BY w.org, w.origin
"""
"""Runs at or above each whose parent was deleted, nearest first; a circle of parents ends."""
_NAMED: Final = f"""
    CREATE TABLE {SHADOW}.named AS
    SELECT r.org, r.run_id, coalesce(cut.cut_run_ids[1], r.said_root_run_id) AS named_run_id
    FROM run r LEFT JOIN {SHADOW}.cut cut USING (org, run_id)
"""
_ROOTS: Final = f"""
    CREATE TABLE {SHADOW}.root AS
    WITH RECURSIVE walk AS (
        SELECT org, run_id AS origin, run_id AS place, ARRAY[run_id] AS path FROM run
        UNION ALL
        SELECT w.org, w.origin, r.named_run_id, w.path || r.named_run_id
        FROM walk w JOIN {SHADOW}.named r ON r.org = w.org AND r.run_id = w.place
        WHERE r.named_run_id <> w.place AND NOT r.named_run_id = ANY (w.path)
    )
    SELECT DISTINCT ON (w.org, w.origin) w.org, w.origin AS run_id,
        CASE WHEN waiting.org IS NOT NULL THEN waiting.root_run_id
            WHEN r.named_run_id <> w.place AND r.named_run_id = ANY (w.path)
            THEN (SELECT min(step COLLATE "C")
                FROM unnest(w.path[array_position(w.path, r.named_run_id):]) AS step)
            ELSE w.place END AS root_run_id
    FROM walk w LEFT JOIN {SHADOW}.named r ON r.org = w.org AND r.run_id = w.place
    LEFT JOIN (
        SELECT DISTINCT org, run_id, root_run_id FROM unplaced_run JOIN run USING (org, run_id)
    ) AS waiting ON waiting.org = w.org AND waiting.run_id = w.origin
    ORDER BY w.org, w.origin, cardinality(w.path) DESC
"""
"""The end of the chain of said roots, or where it is cut off; of a circle the smallest id
(domain/books.py says why). A run in `unplaced_run` is where it is: nobody has placed it yet."""
_OWN: Final = f"""
    CREATE TABLE {SHADOW}.own AS
    SELECT org, run_id, {_SUMS} FROM {SHADOW}.run_line GROUP BY org, run_id
"""
_TREE: Final = f"""
    CREATE TABLE {SHADOW}.tree AS
    SELECT org, root_run_id AS run_id, {_SUMS}
    FROM {SHADOW}.own JOIN {SHADOW}.root USING (org, run_id) GROUP BY org, root_run_id
"""
_MOVES: Final = f"""
    CREATE TABLE {SHADOW}.move AS
    SELECT DISTINCT ON (org, run_id) org, run_id, kind AS moved_to, at AS moved_at,
        digest AS moved_digest
    FROM run_transition WHERE kind IN ('parked', 'resumed')
    ORDER BY org, run_id, at DESC, kind = 'parked' DESC, digest COLLATE "C" DESC
"""
_VERDICTS: Final = f"""
    CREATE TABLE {SHADOW}.verdict AS
    SELECT DISTINCT ON (org, run_id) org, run_id, at AS reaped_at, sign_at AS reaped_sign_at
    FROM run_transition WHERE kind = 'reaped' AND sign_at IS NOT NULL
    ORDER BY org, run_id, sign_at DESC, at
"""
_DEPARTMENTS: Final = """
    SELECT array_agg(DISTINCT m.department_id COLLATE "C" ORDER BY m.department_id COLLATE "C")
    FROM department_member m
    JOIN department d ON d.org = m.org AND d.department_id = m.department_id
    WHERE m.org = root.org AND m.user_id = root.started_by_user_id
        AND m.effective_at <= root.shown_start
        AND (m.ends_at IS NULL OR root.shown_start < m.ends_at)
        AND (d.removed_revision <= d.changed_revision OR root.shown_start < d.removed_at)
"""
_RUNS: Final = f"""
    CREATE TABLE {SHADOW}.run AS
    SELECT r.org, r.run_id, t.root_run_id, sign.first_sign_at, sign.last_sign_at, sign.heard_at,
        {", ".join(f"coalesce(own.{name}, 0) AS own_{name}" for name in COLUMNS)},
        {", ".join(f"coalesce(tree.{name}, 0) AS tree_{name}" for name in COLUMNS)},
        CASE WHEN waiting.org IS NOT NULL THEN r.counted_agents
            WHEN r.system_role IS NOT NULL OR root.system_role IS NOT NULL THEN '{{}}'::text[]
            ELSE coalesce((
                SELECT array_agg(DISTINCT agent COLLATE "C" ORDER BY agent COLLATE "C")
                FROM unnest(ARRAY[r.agent_id, root.agent_id]) AS agent WHERE agent IS NOT NULL
            ), '{{}}') END AS counted_agents,
        CASE WHEN waiting.org IS NOT NULL THEN r.counted_departments
            ELSE coalesce(({_DEPARTMENTS}), '{{}}') END AS counted_departments,
        CASE WHEN waiting.org IS NOT NULL THEN r.counted_person
            WHEN root.surface = 'proactive' THEN root.user_id END AS counted_person,
        CASE WHEN waiting.org IS NOT NULL THEN r.counted_routine ELSE root.routine_id END
            AS counted_routine,
        CASE WHEN waiting.org IS NOT NULL THEN r.counted_goal ELSE root.goal_id END
            AS counted_goal,
        coalesce(cut.cut_run_ids, '{{}}') AS cut_run_ids, deletion.deleted_at,
        move.moved_to, move.moved_at, move.moved_digest, verdict.reaped_at, verdict.reaped_sign_at,
        CASE WHEN r.end_digest IS NOT NULL THEN r.status
            WHEN move.moved_to = 'parked' THEN 'awaiting_approval'
            WHEN verdict.reaped_sign_at >= r.last_sign_at AND t.root_run_id = r.run_id
                AND r.surface IS DISTINCT FROM 'voice' THEN 'failed'
            ELSE 'running' END AS status
    FROM run r
    JOIN {SHADOW}.root t ON t.org = r.org AND t.run_id = r.run_id
    LEFT JOIN run root ON root.org = r.org AND root.run_id = t.root_run_id
    JOIN {SHADOW}.sign sign ON sign.org = r.org AND sign.run_id = r.run_id
    LEFT JOIN (SELECT DISTINCT org, run_id FROM unplaced_run) AS waiting
        ON waiting.org = r.org AND waiting.run_id = r.run_id
    LEFT JOIN {SHADOW}.own own ON own.org = r.org AND own.run_id = r.run_id
    LEFT JOIN {SHADOW}.tree tree ON tree.org = r.org AND tree.run_id = r.run_id
    LEFT JOIN {SHADOW}.cut cut ON cut.org = r.org AND cut.run_id = r.run_id
    LEFT JOIN {SHADOW}.deletion deletion ON deletion.org = r.org AND deletion.run_id = r.run_id
    LEFT JOIN {SHADOW}.move move ON move.org = r.org AND move.run_id = r.run_id
    LEFT JOIN {SHADOW}.verdict verdict ON verdict.org = r.org AND verdict.run_id = r.run_id
"""
_CAPS: Final = f"""
    CREATE TABLE {SHADOW}.cap_state AS
    SELECT org, scope, scope_id, month, sum(amount_nanousd) AS held_nanousd
    FROM (
        SELECT h.org, cap.scope, cap.scope_id,
            CASE WHEN cap.scope IN ('run', 'goal') THEN '' ELSE h.month END AS month,
            h.amount_nanousd
        FROM hold h CROSS JOIN unnest(h.scopes, h.scope_ids) AS cap (scope, scope_id)
        WHERE h.closed_at IS NULL
        UNION ALL
        SELECT org, scope, scope_id, month, amount_nanousd FROM settlement
    ) AS held
    GROUP BY org, scope, scope_id, month
"""
"""Open holds, and closed ones that nobody has taken out of their caps' sums yet."""
_STEPS: Final = {
    "zone": _ZONES,
    "run_line": _LINES,
    "deletion": _DELETIONS,
    "cut": _CUTS,
    "named": _NAMED,
    "root": _ROOTS,
    "sign": statement_of_signs(SHADOW),
    "own": _OWN,
    "tree": _TREE,
    "move": _MOVES,
    "verdict": _VERDICTS,
    "run": _RUNS,
    "month_spend": statement_of_months(SHADOW),
    "cap_state": _CAPS,
    "spend_slot": statement_of_slots(SHADOW),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table that is made again, what its rows are named by, and what is compared."""

    table: str
    key: tuple[str, ...]
    sums: tuple[str, ...]
    """A row that is absent on one side is a row of zeros: what was moved away leaves some."""
    attributions: tuple[str, ...] = ()
    """Where sums are counted: put right together with them."""
    states: tuple[str, ...] = ()


COMPARISONS: Final = (
    Comparison(
        "run",
        ("org", "run_id"),
        tuple(f"{prefix}{name}" for prefix in ("own_", "tree_") for name in COLUMNS),
        ("root_run_id", "cut_run_ids", *COUNTED),
        (
            "deleted_at",
            "moved_to",
            "moved_at",
            "moved_digest",
            "reaped_at",
            "reaped_sign_at",
            "status",
            *SIGNS,
        ),
    ),
    Comparison("run_line", tuple(_LINE_KEY.split(", ")), COLUMNS),
    Comparison(
        "month_spend",
        ("org", "scope", "scope_id", "month"),
        ("cost_nanousd", "unpriced_count", "late_nanousd"),
    ),
    Comparison("cap_state", ("org", "scope", "scope_id", "month"), ("held_nanousd",)),
    Comparison(
        "spend_slot",
        ("org", "grain_s", "begins_at", "dimension", "value"),
        ("cost_nanousd", "run_count", "floor_count", "present_count"),
    ),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A column that is not what entries and facts amount to."""

    table: str
    column: str
    rows: int
    examples: tuple[str, ...]
    """`<key>: <kept>, made again <rebuilt>`."""


async def build(connection: Connection) -> None:
    """Make everything again in the shadow schema; what lay there is dropped."""
    for table in _STEPS:
        await connection.execute(f"DROP TABLE IF EXISTS {SHADOW}.{table}")
    for statement in _STEPS.values():
        await connection.execute(statement)


async def drop(connection: Connection) -> None:
    """Leave the shadow schema empty."""
    for table in _STEPS:
        await connection.execute(f"DROP TABLE IF EXISTS {SHADOW}.{table}")


async def compare(connection: Connection, comparison: Comparison) -> list[Difference]:
    """Compare a table with what was made again, column by column."""
    unlike = {
        **{
            name: f"coalesce(kept.{name}, 0) <> coalesce(made.{name}, 0)"
            for name in comparison.sums
        },
        **{
            name: f"kept.{name} IS DISTINCT FROM made.{name}"
            for name in (*comparison.attributions, *comparison.states)
        },
    }
    joined = f"""
        FROM {comparison.table} AS kept
        FULL JOIN {SHADOW}.{comparison.table} AS made USING ({", ".join(comparison.key)})
    """
    counts = ", ".join(
        f'count(*) FILTER (WHERE {rule}) AS "{name}"' for name, rule in unlike.items()
    )
    (row,) = await connection.fetch(f"SELECT {counts} {joined}")
    found = []
    for name in unlike:
        if row[name]:
            examples = await connection.fetch(
                f"""
                SELECT concat_ws(' ', {", ".join(comparison.key)}) AS key,
                    kept.{name}::text AS kept, made.{name}::text AS made
                {joined} WHERE {unlike[name]} ORDER BY key LIMIT {EXAMPLES_MAX}
                """
            )
            found.append(Difference(comparison.table, name, row[name], _examples(examples)))
    return found


def _examples(rows: Sequence[Any]) -> tuple[str, ...]:
    return tuple(f"{row['key']}: {row['kept']}, made again {row['made']}" for row in rows)


async def count_recounts(connection: Connection) -> int:
    """Changes of departments whose trees are still being counted again."""
    return int(await connection.fetchval("SELECT count(*) FROM recount"))


async def hold_rollups(connection: Connection) -> None:
    """Let nobody write sums, or hold a run in order to, until the transaction ends.

    A batch holds rows of `run` long before it writes them: a lock that let it take them would make
    the repair wait for the row and the batch for the table. Readers are not kept waiting.
    """
    await connection.execute(
        "LOCK TABLE run, run_line, month_spend, spend_slot, cap_state IN EXCLUSIVE MODE"
    )


async def apply_rollups(connection: Connection) -> None:
    """Put the sums that were made again in place of those that are kept."""
    runs, *others = COMPARISONS
    sets = ", ".join(f"{name} = made.{name}" for name in (*runs.sums, *runs.attributions))
    await connection.execute(
        f"""
        UPDATE run SET {sets} FROM {SHADOW}.run made
        WHERE made.org = run.org AND made.run_id = run.run_id
        """
    )
    for comparison in others:
        key, names = ", ".join(comparison.key), comparison.sums
        zeros = ", ".join(f"{name} = 0" for name in names)
        await connection.execute(f"UPDATE {comparison.table} SET {zeros}")
        await connection.execute(
            f"""
            INSERT INTO {comparison.table} ({key}, {", ".join(names)})
            SELECT {key}, {", ".join(names)} FROM {SHADOW}.{comparison.table}
            ON CONFLICT ({key}) DO UPDATE
                SET {", ".join(f"{name} = excluded.{name}" for name in names)}
            """
        )
