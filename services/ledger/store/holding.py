"""What a group of strict questions reads and writes with the rows of its caps locked.

Each statement is a round trip that everybody who waits for these caps waits for as well: there is
one to lock, one to read, one to write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.ledger.domain.holds import CapKey
from services.ledger.store import admissions
from services.ledger.store.caps import Spent
from services.ledger.store.holds import CapState, lock_rows

if TYPE_CHECKING:
    from services.ledger.store.admissions import Admission
    from services.ledger.store.holds import Hold, RequestKey
    from shared.db import Connection

_BETWEEN = " "
"""Stands between ids in one text: no id holds it."""


@dataclass(slots=True)
class Locked:
    """Caps whose rows are locked, and what was known of the requests by then."""

    states: dict[CapKey, CapState] = field(default_factory=dict)
    folded: dict[CapKey, int] = field(default_factory=dict)
    """Settlements that are taken out of `states`, and of the rows when these are saved."""
    spent: dict[CapKey, Spent] = field(default_factory=dict)
    decided: set[RequestKey] = field(default_factory=set)
    reported: set[RequestKey] = field(default_factory=set)


_READ = """
    WITH t AS MATERIALIZED (
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
            AS t (org, scope, scope_id, month)
    ), gone AS (
        DELETE FROM settlement s USING t
        WHERE (s.org, s.scope, s.scope_id, s.month) = (t.org, t.scope, t.scope_id, t.month)
        RETURNING s.org, s.scope, s.scope_id, s.month, s.amount_nanousd
    ), folded AS (
        SELECT org, scope, scope_id, month, sum(amount_nanousd) AS amount
        FROM gone GROUP BY org, scope, scope_id, month
    ), seen AS (
        SELECT q.org AS asked_org, q.request_id, a.request_id IS NOT NULL AS is_decided,
            coalesce(r.claims <> '[]', false) AS is_reported
        FROM unnest($5::text[], $6::text[]) AS q (org, request_id)
        LEFT JOIN admission a USING (org, request_id)
        LEFT JOIN request r USING (org, request_id)
    ), counted AS (
        SELECT t.org, t.scope, t.scope_id, t.month, f.amount,
            m.cost_nanousd, m.late_nanousd, m.unpriced_count,
            CASE WHEN r.run_id = r.root_run_id THEN r.tree_cost_nanousd ELSE r.own_cost_nanousd END
                AS run_nanousd,
            CASE WHEN r.run_id = r.root_run_id
                THEN r.tree_unpriced_count > 0 OR r.tree_missing_delegate_count > 0
                ELSE r.own_unpriced_count > 0 OR r.own_missing_delegate_count > 0
                END AS is_run_partial
        FROM t
        LEFT JOIN folded f USING (org, scope, scope_id, month)
        LEFT JOIN month_spend m USING (org, scope, scope_id, month)
        LEFT JOIN run r ON t.scope = 'run' AND r.org = t.org AND r.run_id = t.scope_id
    )
    SELECT counted.*, seen.* FROM counted FULL JOIN seen ON FALSE
    WHERE scope IS NOT NULL OR is_decided OR is_reported
"""
"""Neither half has to do with the other: they share a round trip."""


async def lock_and_read(
    connection: Connection, keys: Collection[CapKey], requests: Sequence[RequestKey]
) -> Locked:
    """Hold the rows of caps, fold their settlements, and read what is spent and seen.

    Folding and reading are of one moment: the entries of a report are seen with its settlement, so
    what is spent and held is never too little.
    """
    locked = Locked()
    ordered = sorted(keys)
    if ordered:
        locked.states = await lock_rows(connection, ordered)
    columns = [[key[n] for key in ordered] for n in range(4)]
    asked = [[key[n] for key in requests] for n in range(2)]
    for row in await connection.fetch(_READ, *columns, *asked):
        if row["scope"] is not None:
            key = (row["org"], row["scope"], row["scope_id"], row["month"])
            locked.folded[key] = int(row["amount"] or 0)
            locked.states[key] = locked.states[key].without(locked.folded[key])
            locked.spent[key] = _spent(key, row)
            continue
        request = (row["asked_org"], row["request_id"])
        if row["is_decided"]:
            locked.decided.add(request)
        if row["is_reported"]:
            locked.reported.add(request)
    return locked


def _spent(key: CapKey, row: Any) -> Spent:
    if key[1] == "run":
        return Spent(int(row["run_nanousd"] or 0), bool(row["is_run_partial"]))
    counted = int(row["cost_nanousd"] or 0) + int(row["late_nanousd"] or 0)
    return Spent(counted, (row["unpriced_count"] or 0) > 0)


async def save_decided(
    connection: Connection,
    decisions: Sequence[Admission],
    placed: Mapping[RequestKey, Hold],
    held: Mapping[CapKey, int],
) -> bool:
    """Keep decisions with their holds, and move what is held under caps, whose rows are locked.

    False: another process decided one of them first, and the caller has to roll back.
    """
    keys = sorted(key for key, amount in held.items() if amount)
    ordered = sorted(decisions, key=lambda item: (item.org, item.request_id))
    holds = [placed.get((item.org, item.request_id)) for item in ordered]
    saved = await connection.fetchval(
        """
        WITH t AS MATERIALIZED (
            SELECT * FROM unnest($6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
                $11::bool[], $12::text[], $13::bytea[], $14::text[], $15::timestamptz[],
                $16::bigint[], $17::bigint[], $18::text[], $19::text[], $20::timestamptz[])
                AS t (org, request_id, run_id, channel_id, model, allowed, answer, digest, month,
                    decided_at, amount, output, scopes, scope_ids, expires_at)
        ), saved AS (
            INSERT INTO admission (org, request_id, run_id, channel_id, model, allowed, answer,
                digest, month, decided_at)
            SELECT org, request_id, run_id, channel_id, model, allowed, answer::jsonb, digest,
                month, decided_at
            FROM t ON CONFLICT DO NOTHING RETURNING 1
        ), kept AS (
            INSERT INTO hold (org, request_id, run_id, channel_id, model, amount_nanousd,
                output_tokens_max, scopes, scope_ids, month, state, held_at, expires_at)
            SELECT org, request_id, run_id, channel_id, model, amount, output,
                string_to_array(scopes, ' '), string_to_array(scope_ids, ' '), month, 'open',
                decided_at, expires_at
            FROM t WHERE amount IS NOT NULL ON CONFLICT DO NOTHING
        ), moved AS (
            UPDATE cap_state c SET held_nanousd = c.held_nanousd + h.held
            FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::numeric[])
                AS h (org, scope, scope_id, month, held)
            WHERE (c.org, c.scope, c.scope_id, c.month) = (h.org, h.scope, h.scope_id, h.month)
        )
        SELECT count(*) FROM saved
        """,
        *([key[n] for key in keys] for n in range(4)),
        [held[key] for key in keys],
        *admissions.columns(ordered),
        [hold and hold.amount_nanousd for hold in holds],
        [hold and hold.output_tokens_max for hold in holds],
        [hold and _BETWEEN.join(cap[1] for cap in hold.caps) for hold in holds],
        [hold and _BETWEEN.join(cap[2] for cap in hold.caps) for hold in holds],
        [hold and hold.expires_at for hold in holds],
    )
    return int(saved) == len(ordered)
