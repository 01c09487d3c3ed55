"""Holds, the sums of caps that they are in, and the settlements that take them out again.

Locks, after runs and requests: `request_rate`, then `cap_state`, each in key order in one
statement. Whoever closes a hold locks the hold and appends a settlement; only who holds a cap's row
folds its settlements. So a cap's sum is never too little.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from services.ledger.domain.holds import NO_MONTH, CapKey

if TYPE_CHECKING:
    from contracts.holds import HoldState
    from shared.db import Connection

RequestKey = tuple[str, str]
"""Organization and request id."""
_COLUMNS = """h.org, h.request_id, h.run_id, h.channel_id, h.model, h.amount_nanousd,
    h.output_tokens_max, h.scopes, h.scope_ids, h.month, h.state, h.held_at, h.expires_at,
    h.closed_at, h.actual_nanousd"""
_KEYS = "unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS t (org, scope, scope_id, month)"


@dataclass(frozen=True, slots=True)
class Hold:
    """What is held for one request."""

    org: str
    request_id: str
    run_id: str | None
    channel_id: str | None
    model: str
    amount_nanousd: int
    output_tokens_max: int | None
    caps: tuple[CapKey, ...]
    month: str
    held_at: datetime
    expires_at: datetime
    state: HoldState = "open"
    closed_at: datetime | None = None
    actual_nanousd: int | None = None

    @property
    def key(self) -> RequestKey:
        """What names it."""
        return (self.org, self.request_id)


@dataclass(frozen=True, slots=True)
class CapState:
    """What is held under a cap, at least, and the overruns that are recorded."""

    held_nanousd: int
    overrun_nanousd: int

    def without(self, amount: int) -> CapState:
        """The same once so much is not held any more."""
        return CapState(self.held_nanousd - amount, self.overrun_nanousd)


def _columns(keys: Collection[tuple[str, ...]], width: int) -> list[list[str]]:
    return [[key[n] for key in keys] for n in range(width)]


async def lock_states(connection: Connection, keys: Collection[CapKey]) -> dict[CapKey, CapState]:
    """Hold the rows of caps, made where there are none, with their settlements folded in.

    One statement in key order, so that two processes wait and never deadlock; the settlements that
    it finds are those of before what is read next, so what is read as spent is never too little.
    """
    if not keys:
        return {}
    ordered = sorted(keys)
    states = await lock_rows(connection, ordered)
    for key, amount in (await _fold(connection, ordered)).items():
        states[key] = states[key].without(amount)
    return states


async def lock_rows(connection: Connection, ordered: Sequence[CapKey]) -> dict[CapKey, CapState]:
    """Hold the rows of caps in this order; closed holds that nobody folded are in their sums."""
    rows = await connection.fetch(
        f"""
        INSERT INTO cap_state AS c (org, scope, scope_id, month) SELECT * FROM {_KEYS}
        ON CONFLICT (org, scope, scope_id, month) DO UPDATE SET held_nanousd = c.held_nanousd
        RETURNING org, scope, scope_id, month, held_nanousd, overrun_nanousd
        """,
        *_columns(ordered, 4),
    )
    return {
        (row["org"], row["scope"], row["scope_id"], row["month"]): CapState(
            int(row["held_nanousd"]), int(row["overrun_nanousd"])
        )
        for row in rows
    }


async def _fold(connection: Connection, keys: Sequence[CapKey]) -> dict[CapKey, int]:
    rows = await connection.fetch(
        f"""
        WITH gone AS (
            DELETE FROM settlement s USING {_KEYS}
            WHERE (s.org, s.scope, s.scope_id, s.month) = (t.org, t.scope, t.scope_id, t.month)
            RETURNING s.org, s.scope, s.scope_id, s.month, s.amount_nanousd
        ), folded AS (
            SELECT org, scope, scope_id, month, sum(amount_nanousd) AS amount
            FROM gone GROUP BY org, scope, scope_id, month
        )
        UPDATE cap_state c SET held_nanousd = c.held_nanousd - f.amount FROM folded f
        WHERE (c.org, c.scope, c.scope_id, c.month) = (f.org, f.scope, f.scope_id, f.month)
        RETURNING c.org, c.scope, c.scope_id, c.month, f.amount
        """,
        *_columns(keys, 4),
    )
    return {
        (row["org"], row["scope"], row["scope_id"], row["month"]): int(row["amount"])
        for row in rows
    }


async def add_to_states(
    connection: Connection, held: Mapping[CapKey, int], overrun: Mapping[CapKey, int]
) -> None:
    """Add to rows that are locked."""
    keys = sorted({*held, *overrun})
    if keys:
        await connection.execute(
            """
            UPDATE cap_state c SET held_nanousd = c.held_nanousd + t.held,
                overrun_nanousd = c.overrun_nanousd + t.overrun
            FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::numeric[],
                $6::numeric[]) AS t (org, scope, scope_id, month, held, overrun)
            WHERE (c.org, c.scope, c.scope_id, c.month) = (t.org, t.scope, t.scope_id, t.month)
            """,
            *_columns(keys, 4),
            [held.get(key, 0) for key in keys],
            [overrun.get(key, 0) for key in keys],
        )


async def load_states(connection: Connection, keys: Collection[CapKey]) -> dict[CapKey, CapState]:
    """What is held and was exceeded, exactly, at one snapshot; nothing is locked."""
    rows = await connection.fetch(
        f"""
        SELECT c.org, c.scope, c.scope_id, c.month, c.overrun_nanousd,
            c.held_nanousd - coalesce((
                SELECT sum(s.amount_nanousd) FROM settlement s
                WHERE (s.org, s.scope, s.scope_id, s.month)
                    = (c.org, c.scope, c.scope_id, c.month)), 0) AS held_nanousd
        FROM cap_state c JOIN {_KEYS} USING (org, scope, scope_id, month)
        """,
        *_columns(keys, 4),
    )
    return {
        (row["org"], row["scope"], row["scope_id"], row["month"]): CapState(
            int(row["held_nanousd"]), int(row["overrun_nanousd"])
        )
        for row in rows
    }


async def list_unfolded(connection: Connection, limit: int) -> list[CapKey]:
    """Caps with settlements that nobody has folded yet."""
    rows = await connection.fetch(
        "SELECT DISTINCT org, scope, scope_id, month FROM settlement LIMIT $1", limit
    )
    return [(row["org"], row["scope"], row["scope_id"], row["month"]) for row in rows]


async def list_cap_months(connection: Connection, org: str, since: str) -> list[CapKey]:
    """Rows of an organization's caps in these months and later, and those without a month."""
    rows = await connection.fetch(
        """
        SELECT org, scope, scope_id, month FROM cap_state
        WHERE org = $1 AND (month >= $2 OR month = '')
        """,
        org,
        since,
    )
    return [(row["org"], row["scope"], row["scope_id"], row["month"]) for row in rows]


async def lock_holds(
    connection: Connection, keys: Collection[RequestKey]
) -> dict[RequestKey, Hold]:
    """Load the holds of requests, in whatever state, and hold their rows in key order."""
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM hold h
        JOIN unnest($1::text[], $2::text[]) AS t (org, request_id) USING (org, request_id)
        ORDER BY h.org, h.request_id FOR UPDATE OF h
        """,
        *_columns(keys, 2),
    )
    return {hold.key: hold for hold in map(_hold, rows)}


async def load_states_of(
    connection: Connection, keys: Collection[RequestKey]
) -> dict[RequestKey, HoldState]:
    """Where the holds of requests stand."""
    rows = await connection.fetch(
        """
        SELECT org, request_id, state FROM hold
        JOIN unnest($1::text[], $2::text[]) AS t (org, request_id) USING (org, request_id)
        """,
        *_columns(keys, 2),
    )
    return {(row["org"], row["request_id"]): row["state"] for row in rows}


async def close_holds(
    connection: Connection,
    holds: Mapping[RequestKey, int | None],
    state: HoldState,
    *,
    at: datetime,
) -> None:
    """Close open holds that are locked, with what their requests cost, and let their caps know."""
    if not holds:
        return
    await connection.execute(
        """
        WITH closed AS (
            UPDATE hold h SET state = $4, closed_at = $5, actual_nanousd = t.actual
            FROM unnest($1::text[], $2::text[], $3::numeric[]) AS t (org, request_id, actual)
            WHERE h.org = t.org AND h.request_id = t.request_id AND h.state = 'open'
            RETURNING h.org, h.scopes, h.scope_ids, h.month, h.amount_nanousd
        )
        INSERT INTO settlement (org, scope, scope_id, month, amount_nanousd)
        SELECT c.org, cap.scope, cap.id,
            CASE WHEN cap.scope IN ('run', 'goal') THEN '' ELSE c.month END, c.amount_nanousd
        FROM closed c CROSS JOIN unnest(c.scopes, c.scope_ids) AS cap (scope, id)
        """,
        *_columns(holds.keys(), 2),
        list(holds.values()),
        state,
        at,
    )


async def lock_due(
    connection: Connection, *, until: datetime, limit: int
) -> list[tuple[Hold, datetime | None]]:
    """Open holds whose time has passed, each with the last sign of life of its run, if it lives.

    Rows that somebody else closes just now are left to them.
    """
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS},
            (SELECT r.heard_at FROM run r WHERE r.org = h.org AND r.run_id = h.run_id
                AND r.status = 'running' AND r.deleted_at IS NULL) AS heard_at
        FROM hold h WHERE h.closed_at IS NULL AND h.expires_at <= $1
        ORDER BY h.expires_at LIMIT $2 FOR UPDATE OF h SKIP LOCKED
        """,
        until,
        limit,
    )
    return [(_hold(row), row["heard_at"]) for row in rows]


async def prolong(connection: Connection, later: Mapping[RequestKey, datetime]) -> None:
    """Move when holds expire."""
    if later:
        await connection.execute(
            """
            UPDATE hold h SET expires_at = t.expires_at
            FROM unnest($1::text[], $2::text[], $3::timestamptz[])
                AS t (org, request_id, expires_at)
            WHERE h.org = t.org AND h.request_id = t.request_id
            """,
            *_columns(later.keys(), 2),
            list(later.values()),
        )


async def list_holds(
    connection: Connection, org: str, state: HoldState | None, *, skip: int, limit: int
) -> tuple[list[Hold], int]:
    """A page of holds, newest first, and how many there are."""
    where = "h.org = $1 AND ($2::text IS NULL OR h.state = $2)"
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM hold h WHERE {where}
        ORDER BY h.held_at DESC, h.request_id OFFSET $3 LIMIT $4
        """,
        org,
        state,
        skip,
        limit,
    )
    total = await connection.fetchval(f"SELECT count(*) FROM hold h WHERE {where}", org, state)
    return [_hold(row) for row in rows], int(total)


def _hold(row: Any) -> Hold:
    month = row["month"]
    return Hold(
        org=row["org"],
        request_id=row["request_id"],
        run_id=row["run_id"],
        channel_id=row["channel_id"],
        model=row["model"],
        amount_nanousd=row["amount_nanousd"],
        output_tokens_max=row["output_tokens_max"],
        caps=tuple(
            (row["org"], scope, scope_id, NO_MONTH if scope in ("run", "goal") else month)
            for scope, scope_id in zip(row["scopes"], row["scope_ids"], strict=True)
        ),
        month=month,
        held_at=row["held_at"],
        expires_at=row["expires_at"],
        state=row["state"],
        closed_at=row["closed_at"],
        actual_nanousd=row["actual_nanousd"],
    )
