"""Facts of runs' lives that are kept as rows, and up to when everything is handled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from services.ledger.domain.life import Transition
    from shared.db import Connection

REAPER_LOCK = 7_211_400_391
"""Advisory lock of the room's database: one process judges at a time."""


async def keep(
    connection: Connection, facts: Sequence[tuple[str, Transition]], now: datetime
) -> None:
    """Keep parks, resumes and verdicts; one that is kept already stays as it is."""
    if not facts:
        return
    await connection.executemany(
        """
        INSERT INTO run_transition
            (org, run_id, kind, at, digest, sign_at, watermark_at, recorded_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING
        """,
        [
            (
                org,
                fact.run_id,
                fact.kind,
                fact.at,
                fact.digest,
                fact.sign_at,
                fact.watermark_at,
                now,
            )
            for org, fact in facts
        ],
    )


async def is_alone(connection: Connection) -> bool:
    """Whether no other process judges; holds until the end of the transaction."""
    return bool(await connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", REAPER_LOCK))


async def save_watermarks(
    connection: Connection, watermarks: Mapping[str, datetime], *, now: datetime
) -> None:
    """Note per stream up to when everything that it stored is handled."""
    await connection.executemany(
        """
        INSERT INTO watermark (stream, handled_until, read_at) VALUES ($1, $2, $3)
        ON CONFLICT (stream) DO UPDATE
            SET handled_until = excluded.handled_until, read_at = excluded.read_at
        """,
        [(stream, at, now) for stream, at in sorted(watermarks.items())],
    )


async def list_watermarks(connection: Connection) -> Sequence[Any]:
    """Every watermark with when it was read."""
    return await connection.fetch(
        "SELECT stream, handled_until, read_at FROM watermark ORDER BY stream"
    )
