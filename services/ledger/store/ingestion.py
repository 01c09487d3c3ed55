"""Entries that belong to no run, read for people.

There are as many as requests, each with its own time, so windows sum the entries themselves.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from services.ledger.domain.months import ZoneStarts
from services.ledger.domain.spend import IngestedSum
from services.ledger.store.reading import day_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.db import Connection


async def sum_window(
    connection: Connection, org: str, start: datetime, end: datetime | None, zones: ZoneStarts
) -> list[IngestedSum]:
    """What occurred in a window, by provider, key and day; where nothing was spent is no row."""
    values: list[Any] = [org, start, end]
    rows = await connection.fetch(
        f"""
        SELECT provider, key_id, {day_of("occurred_at", zones, values)} AS day,
            sum(cost_nanousd) AS cost_nanousd, sum(request_count)::bigint AS request_count,
            sum(unpriced_count)::bigint AS floor_count
        FROM entry
        WHERE org = $1 AND ingestion_id IS NOT NULL AND occurred_at >= $2
            AND ($3::timestamptz IS NULL OR occurred_at <= $3)
        GROUP BY provider, key_id, day
        HAVING sum(cost_nanousd) <> 0 OR sum(request_count) <> 0 OR sum(unpriced_count) <> 0
        """,
        *values,
    )
    return [
        IngestedSum(
            row["provider"],
            row["key_id"],
            row["day"],
            int(row["cost_nanousd"]),
            row["request_count"],
            row["floor_count"],
        )
        for row in rows
    ]


async def list_entries(
    connection: Connection, org: str, ingestion_id: str, *, after: int, as_of: int, limit: int
) -> Sequence[Any]:
    """Entries of an ingestion in the order of their entering, up to the horizon."""
    return await connection.fetch(
        """
        SELECT e.*, c.reason AS correction_reason FROM entry e
        LEFT JOIN correction c ON c.id = e.id AND c.org = e.org
        WHERE e.org = $1 AND e.ingestion_id = $2 AND e.sequence > $3
            AND e.transaction_id < $4::text::xid8
        ORDER BY e.sequence LIMIT $5
        """,
        org,
        ingestion_id,
        after,
        str(as_of),
        limit,
    )
