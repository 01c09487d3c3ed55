"""Requests, entries, and the sums that an entry moves in its own transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson
from uuid_utils import uuid7

from contracts.channel import Tokens
from contracts.types import EntryKind
from services.ledger.domain.amounts import Amount
from services.ledger.domain.books import MonthAmount, MonthKey, RunKey
from services.ledger.domain.claims import claims_from_json, claims_to_json
from services.ledger.domain.merging import Claims, Draft, Line
from services.ledger.domain.slots import state_of
from services.ledger.store.sums import moved, parameters

if TYPE_CHECKING:
    from shared.db import Connection

RequestKey = tuple[str, str]
"""Organization and request id."""
_TOKENS = tuple(Tokens.model_fields)
_LINE_KEY = "org, run_id, month, provider, model, key_id, kind, late_month"
_ENTRY_COLUMNS = (
    "id",
    "org",
    "request_id",
    "run_id",
    "billed_run_id",
    "delegation_id",
    "turn_id",
    "kind",
    "model",
    "provider",
    "key_id",
    *_TOKENS,
    "reported_tokens",
    "cost_nanousd",
    "request_count",
    "unpriced_count",
    "priced",
    "reason",
    "price_source",
    "price_set",
    "provider_amount",
    "provider_currency",
    "interrupted",
    "month",
    "occurred_at",
    "billed_at",
    "recorded_at",
    "ingestion_id",
    "document_id",
    "collection_id",
    "provider_rate",
    "late_month",
    "line_kind",
)


async def enter_requests(
    connection: Connection, claims: Mapping[RequestKey, Claims]
) -> set[RequestKey]:
    """Enter requests never heard of with what is claimed of them, and hold them; answer which.

    What was entered before, perhaps by another transaction meanwhile, stays as it is.
    """
    ordered = sorted(claims)
    made = await connection.fetch(
        """
        INSERT INTO request (org, request_id, claims)
        SELECT t.org, t.request_id, t.claims::jsonb
        FROM unnest($1::text[], $2::text[], $3::text[]) AS t (org, request_id, claims)
        ON CONFLICT DO NOTHING RETURNING org, request_id
        """,
        [org for org, _ in ordered],
        [request_id for _, request_id in ordered],
        [_claims_text(claims[key]) for key in ordered],
    )
    return {(row["org"], row["request_id"]) for row in made}


async def load_claims(connection: Connection, key: RequestKey) -> Claims:
    """The claims on a request that is entered, as they are."""
    row = await connection.fetchrow(
        "SELECT claims FROM request WHERE org = $1 AND request_id = $2", *key
    )
    return claims_from_json(row["claims"]) if row is not None else ()


async def lock_requests(
    connection: Connection, keys: Collection[RequestKey]
) -> dict[RequestKey, Claims]:
    """Load the claims on requests that are entered, and hold them."""
    if not keys:
        return {}
    ordered = sorted(keys)
    rows = await connection.fetch(
        """
        SELECT org, request_id, claims FROM request
        JOIN unnest($1::text[], $2::text[]) AS t (org, request_id) USING (org, request_id)
        ORDER BY org, request_id FOR UPDATE OF request
        """,
        [org for org, _ in ordered],
        [request_id for _, request_id in ordered],
    )
    return {(row["org"], row["request_id"]): claims_from_json(row["claims"]) for row in rows}


def _claims_text(claims: Claims) -> str:
    # As text: the driver takes a list in a list for an array of two dimensions.
    return orjson.dumps(claims_to_json(claims)).decode()


async def save_claims(connection: Connection, claims: Mapping[RequestKey, Claims]) -> None:
    """Keep what was claimed, for the next report to merge with."""
    if claims:
        await connection.execute(
            """
            UPDATE request SET claims = t.claims::jsonb
            FROM unnest($1::text[], $2::text[], $3::text[]) AS t (org, request_id, claims)
            WHERE request.org = t.org AND request.request_id = t.request_id
            """,
            [org for org, _ in claims],
            [request_id for _, request_id in claims],
            [_claims_text(value) for value in claims.values()],
        )


async def save_entries(
    connection: Connection,
    drafts: Sequence[tuple[RequestKey, Draft]],
    recorded_at: datetime,
) -> None:
    """Append entries. COPY, in the caller's transaction: the widest write of the room."""
    records = [_entry(key, draft, recorded_at) for key, draft in drafts]
    if records:
        await connection.copy_records_to_table(
            "entry", schema_name="ledger", records=records, columns=_ENTRY_COLUMNS
        )


def _entry(key: RequestKey, draft: Draft, recorded_at: datetime) -> tuple[Any, ...]:
    org, request_id = key
    report, amount = draft.report, draft.amount
    is_correction = draft.is_correction
    return (
        str(uuid7()),
        org,
        request_id,
        report.run_id or None,
        draft.line.billed_run_id or None,
        report.delegation_id,
        report.turn_id,
        EntryKind.CORRECTION.value if is_correction else draft.line.kind,
        draft.line.model,
        draft.line.provider or None,
        draft.line.key_id or None,
        *amount.values[4:],
        [] if is_correction else list(report.tokens),
        amount.cost_nanousd,
        amount.request_count,
        amount.unpriced_count,
        draft.priced,
        draft.reason,
        "corrected" if is_correction else report.price_source,
        report.price_set,
        None if is_correction else report.provider_amount,
        None if is_correction else report.provider_currency,
        report.interrupted,
        draft.line.month,
        report.occurred_at,
        report.billed_at,
        recorded_at,
        report.ingestion_id or None,
        report.document_id,
        report.collection_id,
        None if is_correction else report.provider_rate,
        draft.line.late_month,
        draft.line.kind if is_correction else None,
    )


async def add_to_lines(
    connection: Connection, amounts: Mapping[tuple[str, Line], Amount]
) -> set[RunKey]:
    """Add to the lines that the breakdowns group by.

    Answers the runs of which a line counts that did not before, or the other way round.
    """
    rows = sorted(
        (
            (
                org,
                line.billed_run_id,
                line.month,
                line.provider,
                line.model,
                line.key_id,
                line.kind,
                line.late_month,
            ),
            amount,
        )
        for (org, line), amount in amounts.items()
    )
    if not rows:
        return set()
    columns = moved([amount for _, amount in rows])
    names = [column.name for column in columns]
    sums = ", ".join(f"{name} = run_line.{name} + excluded.{name}" for name in names)
    keys = [f"${n}::text[]" for n in range(1, 9)]
    arrays = ", ".join(filter(None, [*keys, parameters(columns, 9)]))
    # A line with more requests than were added to any had some before.
    looked_at_max = max(0, *(amount.request_count for _, amount in rows))
    written = await connection.fetch(
        f"""
        WITH written AS (
            INSERT INTO run_line ({", ".join((_LINE_KEY, *names))})
            SELECT * FROM unnest({arrays})
            ON CONFLICT ({_LINE_KEY}) DO {f"UPDATE SET {sums}" if sums else "NOTHING"}
            RETURNING {_LINE_KEY}, cost_nanousd, request_count, unpriced_count,
                missing_delegate_count
        )
        SELECT * FROM written WHERE request_count <= ${9 + len(columns)}::bigint
        """,
        *([key[n] for key, _ in rows] for n in range(8)),
        *(column.values for column in columns),
        looked_at_max,
    )
    return _flipped(dict(rows), written)


def _flipped(added: Mapping[tuple[str, ...], Amount], written: Sequence[Any]) -> set[RunKey]:
    flipped = set()
    for row in written:
        values = tuple(row)
        now = added[values[:8]]
        # Nearly all: there were requests before, and there are.
        if row["request_count"] > max(now.request_count, 0):
            continue
        after = Amount(*map(int, values[8:]))
        if state_of(after) != state_of(after - now):
            flipped.add((row["org"], row["run_id"]))
    return flipped


async def load_month_amounts(
    connection: Connection, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, MonthAmount]]:
    """What runs have entered per month: what moves when their agents become known."""
    rows = await connection.fetch(
        """
        SELECT l.org, l.run_id, l.month, l.late_month, sum(l.cost_nanousd) AS cost_nanousd,
            sum(l.unpriced_count + l.missing_delegate_count) AS floors
        FROM run_line l JOIN unnest($1::text[], $2::text[]) AS t (org, run_id) USING (org, run_id)
        GROUP BY l.org, l.run_id, l.month, l.late_month
        """,
        [org for org, _ in keys],
        [run_id for _, run_id in keys],
    )
    months: dict[tuple[str, str], dict[str, MonthAmount]] = {}
    for row in rows:
        found = months.setdefault((row["org"], row["run_id"]), {})
        cost = int(row["cost_nanousd"])
        entered = found.get(row["month"], MonthAmount())
        found[row["month"]] = entered + MonthAmount(cost, int(row["floors"]))
        if row["late_month"]:
            late = found.get(row["late_month"], MonthAmount())
            found[row["late_month"]] = late + MonthAmount(0, 0, cost)
    return months


async def add_to_months(
    connection: Connection, amounts: Mapping[MonthKey, MonthAmount]
) -> dict[MonthKey, MonthAmount]:
    """Add to what is spent under scopes in months; answer the sums as they will be committed."""
    rows = [(key, amount) for key, amount in sorted(amounts.items()) if amount != MonthAmount()]
    if not rows:
        return {}
    sums = await connection.fetch(
        """
        INSERT INTO month_spend
            (org, scope, scope_id, month, cost_nanousd, unpriced_count, late_nanousd)
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[],
            $5::numeric[], $6::numeric[], $7::numeric[])
        ON CONFLICT (org, scope, scope_id, month) DO UPDATE SET
            cost_nanousd = month_spend.cost_nanousd + excluded.cost_nanousd,
            unpriced_count = month_spend.unpriced_count + excluded.unpriced_count,
            late_nanousd = month_spend.late_nanousd + excluded.late_nanousd
        RETURNING org, scope, scope_id, month, cost_nanousd, unpriced_count, late_nanousd
        """,
        *([key[n] for key, _ in rows] for n in range(4)),
        [amount.cost_nanousd for _, amount in rows],
        [amount.unpriced_count for _, amount in rows],
        [amount.late_nanousd for _, amount in rows],
    )
    return {
        (row["org"], row["scope"], row["scope_id"], row["month"]): MonthAmount(
            int(row["cost_nanousd"]), int(row["unpriced_count"]), int(row["late_nanousd"])
        )
        for row in sums
    }
