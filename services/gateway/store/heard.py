"""What rooms said that channels and people have to hear: rows in the order of their commits.

The one thing not to break: a position that became visible is never followed by a smaller one.
Writers take one lock until they commit, so that a reader who stands at a position misses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shared.db import Connection

WRITERS_LOCK: Final = 5_260_401
"""Key of the advisory lock; advisory locks of one database share their keys."""
FEED_AGE: Final = timedelta(days=7)
"""How long a channel may be away and still find all that concerns it; as long as CHANNEL keeps."""
LIVE_AGE: Final = timedelta(minutes=10)
"""How long what only people watch is kept: a page that reconnects goes on where it was."""
PRUNE_ROWS_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class NewlyHeard:
    """One event, and who has to hear it."""

    org: str
    event: str
    for_channels: bool
    channel_id: str | None
    """The only channel that it concerns; None: every one of the organization."""
    people_need: str | None
    """The permission with which people watch it; None: no matter of theirs."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Heard:
    """A row as it is read."""

    position: int
    org: str
    event: str
    for_channels: bool
    people_need: str | None
    body: bytes


_COLUMNS = "position, org_id, event, for_channels, people_need, body"


def _read(row: Any) -> Heard:
    return Heard(
        row["position"],
        row["org_id"],
        row["event"],
        row["for_channels"],
        row["people_need"],
        bytes(row["body"]),
    )


async def save_heard(connection: Connection, rows: Sequence[NewlyHeard], *, at: datetime) -> None:
    """Append rows in their order; other writers wait until this transaction has committed."""
    if not rows:
        return
    await connection.execute("SELECT pg_advisory_xact_lock($1)", WRITERS_LOCK)
    await connection.execute(
        """
        INSERT INTO heard (org_id, event, for_channels, channel_id, people_need, body, heard_at)
        SELECT t.org_id, t.event, t.for_channels, t.channel_id, t.people_need, t.body, $7
        FROM unnest($1::text[], $2::text[], $3::boolean[], $4::text[], $5::text[], $6::bytea[])
            WITH ORDINALITY
            AS t (org_id, event, for_channels, channel_id, people_need, body, number)
        ORDER BY t.number
        """,
        [row.org for row in rows],
        [row.event for row in rows],
        [row.for_channels for row in rows],
        [row.channel_id for row in rows],
        [row.people_need for row in rows],
        [row.body for row in rows],
        at,
    )


async def load_horizon(connection: Connection) -> int:
    """The newest position of the feed that was let go."""
    return int(await connection.fetchval("SELECT position FROM heard_horizon WHERE id = 1") or 0)


async def list_for_channel(
    connection: Connection, org: str, channel_id: str, *, after: int, limit: int
) -> list[Heard]:
    """What concerns a channel after a position, in order."""
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM heard
        WHERE org_id = $1 AND position > $3 AND for_channels
            AND (channel_id IS NULL OR channel_id = $2)
        ORDER BY position LIMIT $4
        """,
        org,
        channel_id,
        after,
        limit,
    )
    return [_read(row) for row in rows]


async def list_for_people(
    connection: Connection, org: str, *, after: int, until: int, limit: int
) -> list[Heard]:
    """What people may watch between two positions, in order; permissions are the caller's."""
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM heard
        WHERE org_id = $1 AND position > $2 AND position <= $3 AND people_need IS NOT NULL
        ORDER BY position LIMIT $4
        """,
        org,
        after,
        until,
        limit,
    )
    return [_read(row) for row in rows]


async def load_top(connection: Connection) -> int:
    """The newest position."""
    return int(await connection.fetchval("SELECT max(position) FROM heard") or 0)


async def list_since(
    connection: Connection, orgs: Sequence[str], *, after: int, limit: int
) -> tuple[list[Heard], int]:
    """What these organizations heard after a position, and the position to go on from."""
    rows = await connection.fetch(
        """
        SELECT (SELECT max(position) FROM heard) AS top, h.*
        FROM (SELECT 1) AS one
        LEFT JOIN heard h ON h.position > $1 AND h.org_id = ANY($2::text[])
        ORDER BY h.position LIMIT $3
        """,
        after,
        list(orgs),
        limit,
    )
    found = [_read(row) for row in rows if row["position"] is not None]
    if len(found) == limit:
        return found, found[-1].position
    return found, max(rows[0]["top"] or 0, after)


async def prune_heard(connection: Connection, *, now: datetime) -> int:
    """Let go what is too old, oldest first; answer how many rows went."""
    await connection.execute("SELECT pg_advisory_xact_lock($1)", WRITERS_LOCK)
    rows = await connection.fetch(
        """
        DELETE FROM heard WHERE position IN (
            SELECT position FROM heard
            WHERE heard_at <= $1 OR (heard_at <= $2 AND NOT for_channels)
            ORDER BY position LIMIT $3
        )
        RETURNING position, for_channels
        """,
        now - FEED_AGE,
        now - LIVE_AGE,
        PRUNE_ROWS_MAX,
    )
    gone = [row["position"] for row in rows if row["for_channels"]]
    if gone:
        await connection.execute(
            """
            INSERT INTO heard_horizon (id, position) VALUES (1, $1)
            ON CONFLICT (id) DO UPDATE
                SET position = greatest(heard_horizon.position, excluded.position)
            """,
            max(gone),
        )
    return len(rows)
