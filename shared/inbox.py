"""Which events were handled: one row per event, in the transaction of its effect.

Key: organization, producer, source, id. The same key with another body is no repetition
(design.md 2, *Exactly one effect*): it is refused and noticed, never swallowed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from contracts.catalog import ROOM_AGE_S
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from shared.clock import Clock
    from shared.db import Connection, Database

KEEP_AFTER_STREAM_AGE = timedelta(days=7)
PRUNE_ROWS_MAX = 5_000
PRUNE_EVERY_S = 600
LONGEST_STREAM_AGE = timedelta(seconds=ROOM_AGE_S)


@dataclass(frozen=True, slots=True)
class InboxKey:
    """Whose event it is, and its body's digest."""

    org: str
    producer: str
    source: str
    event_id: str
    digest: bytes


def body_digest(body: bytes) -> bytes:
    """SHA-256 of the bytes that arrived."""
    return hashlib.sha256(body).digest()


@dataclass(frozen=True, slots=True)
class Sorted:
    """Positions of a batch: to handle, seen before, and refused as changed."""

    fresh: tuple[int, ...]
    repeated: tuple[int, ...]
    changed: tuple[int, ...]


async def sort_out(connection: Connection, keys: Sequence[InboxKey], now: datetime) -> Sorted:
    """Enter the keys of a batch and say which of them are fresh.

    Of several equal keys in one batch the first is fresh. A concurrent transaction that entered the
    same key is waited for.
    """
    fresh: list[int] = []
    repeated: list[int] = []
    changed: list[int] = []
    first_at: dict[tuple[str, str, str, str], int] = {}
    for position, key in enumerate(keys):
        name = (key.org, key.producer, key.source, key.event_id)
        earlier = first_at.setdefault(name, position)
        if earlier != position:
            same = keys[earlier].digest == key.digest
            (repeated if same else changed).append(position)
    if first_at:
        # In key order, so that two batches that share keys wait for one another and never deadlock.
        unique = [keys[position] for _, position in sorted(first_at.items())]
        entered = await connection.fetch(
            """
            INSERT INTO inbox (org, producer, source, event_id, digest, handled_at)
            SELECT t.org, t.producer, t.source, t.event_id, t.digest, $6
            FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[])
                AS t (org, producer, source, event_id, digest)
            ON CONFLICT DO NOTHING
            RETURNING org, producer, source, event_id
            """,
            *_columns(unique),
            now,
        )
        new = {tuple(row) for row in entered}
        fresh = [position for name, position in first_at.items() if name in new]
        old = [keys[position] for name, position in first_at.items() if name not in new]
        if old:
            digests = await _digests(connection, old)
            for name, position in first_at.items():
                if name not in new:
                    same = digests.get(name) == keys[position].digest
                    (repeated if same else changed).append(position)
    return Sorted(tuple(sorted(fresh)), tuple(sorted(repeated)), tuple(sorted(changed)))


def _columns(
    keys: Sequence[InboxKey],
) -> tuple[list[str], list[str], list[str], list[str], list[bytes]]:
    return (
        [key.org for key in keys],
        [key.producer for key in keys],
        [key.source for key in keys],
        [key.event_id for key in keys],
        [key.digest for key in keys],
    )


async def _digests(
    connection: Connection, keys: Sequence[InboxKey]
) -> dict[tuple[str, str, str, str], bytes]:
    rows = await connection.fetch(
        """
        SELECT i.org, i.producer, i.source, i.event_id, i.digest
        FROM inbox i
        JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[])
            AS t (org, producer, source, event_id)
            USING (org, producer, source, event_id)
        """,
        *_columns(keys)[:4],
    )
    return {
        (row["org"], row["producer"], row["source"], row["event_id"]): bytes(row["digest"])
        for row in rows
    }


async def prune(connection: Connection, *, stream_age: timedelta, now: datetime) -> int:
    """Forget rows that outlived their stream by `KEEP_AFTER_STREAM_AGE`; answer how many."""
    before = now - stream_age - KEEP_AFTER_STREAM_AGE
    status = await connection.execute(
        """
        DELETE FROM inbox WHERE ctid IN (
            SELECT ctid FROM inbox WHERE handled_at < $1 LIMIT $2
        )
        """,
        before,
        PRUNE_ROWS_MAX,
    )
    return int(status.split()[-1])


async def prune_forever(database: Database, clock: Clock) -> None:
    """Prune every `PRUNE_EVERY_S`, in bounded steps, until cancelled."""
    while True:
        removed = 0
        try:
            async with database.transaction() as connection:
                removed = await prune(connection, stream_age=LONGEST_STREAM_AGE, now=clock.now())
        except Exception as error:
            if not is_transient(error):
                raise
            logger().warning("prune_waits", cause=type(error).__name__)
        if removed < PRUNE_ROWS_MAX:
            await asyncio.sleep(PRUNE_EVERY_S)
