"""What an operator does with messages that had no effect: look, replay, drop, hurry.

A replay puts the stored bytes into the retry table, where the room's own consumer handles them like
any other; a message that fails again is a dead letter again. Nothing is deleted: a dropped letter
stays as a settled row, and every repair is an audit entry without an actor (facts.md 8.1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from uuid_utils.compat import uuid7

from contracts.errors import NotFound
from contracts.rooms import AuditEntry
from shared import audit

if TYPE_CHECKING:
    from uuid import UUID

    from shared.db import Connection

ROWS_MAX = 1_000
"""Most letters that one command lists or repairs."""
_ORG = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
_COLUMNS = """
    id, org, stream, stream_sequence, subject, reason, message, tries, dead_at, settled_at,
    settled_as, octet_length(body) AS bytes
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which dead letters a command means; those that wait unless `settled`."""

    org: str | None = None
    reason: str | None = None
    settled: bool = False
    limit: int = 100


async def list_dead(connection: Connection, wanted: Wanted) -> Sequence[Any]:
    """Dead letters, oldest first, without their bodies."""
    return await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM dead_letter
        WHERE ($1::text IS NULL OR org = $1) AND ($2::text IS NULL OR reason = $2)
            AND ($3 OR settled_at IS NULL)
        ORDER BY dead_at, id LIMIT $4
        """,  # noqa: S608
        wanted.org,
        wanted.reason,
        wanted.settled,
        min(wanted.limit, ROWS_MAX),
    )


async def count_dead(connection: Connection) -> Sequence[Any]:
    """How many letters wait, by reason."""
    return await connection.fetch(
        """
        SELECT reason, count(*) AS letters, min(dead_at) AS oldest_at FROM dead_letter
        WHERE settled_at IS NULL GROUP BY reason ORDER BY letters DESC, reason
        """
    )


async def show_dead(connection: Connection, letter_id: UUID) -> Any:
    """One dead letter with its body.

    Raises:
        NotFound: no such letter.
    """
    row = await connection.fetchrow(
        f"SELECT {_COLUMNS}, body FROM dead_letter WHERE id = $1",  # noqa: S608
        letter_id,
    )
    if row is None:
        raise NotFound(f"there is no dead letter {letter_id}", reason="letter_unknown")
    return row


async def settle(
    connection: Connection,
    letter_ids: Sequence[UUID],
    how: Literal["replayed", "dropped"],
    *,
    room: str,
    why: str | None,
    now: datetime,
) -> int:
    """Replay or drop letters that wait, in the caller's transaction; answer how many.

    Raises:
        NotFound: a named letter is unknown or settled already; then none is touched.
    """
    rows = await connection.fetch(
        """
        UPDATE dead_letter SET settled_at = $2, settled_as = $3
        WHERE id = ANY($1::uuid[]) AND settled_at IS NULL
        RETURNING id, org, stream, stream_sequence, subject, body, reason, stored_at
        """,
        list(letter_ids),
        now,
        how,
    )
    missing = set(letter_ids) - {row["id"] for row in rows}
    if missing:
        raise NotFound(
            f"no dead letter waits under {', '.join(sorted(map(str, missing)))}",
            reason="letter_unknown",
        )
    if how == "replayed":
        await connection.executemany(
            """
            INSERT INTO retry
                (org, stream, stream_sequence, subject, body, tries, reason, next_at, created_at,
                stored_at)
            VALUES ($1, $2, $3, $4, $5, 0, 'replayed', $6, $6, $7)
            ON CONFLICT ON CONSTRAINT uq_retry_message
                DO UPDATE SET tries = 0, next_at = excluded.next_at
            """,
            [
                (
                    row["org"],
                    row["stream"],
                    row["stream_sequence"],
                    row["subject"],
                    row["body"],
                    now,
                    row["stored_at"],
                )
                for row in rows
            ],
        )
    for row in rows:
        await audit.record(connection, _act(row, how, why, now), room=room)
    return len(rows)


def _act(row: Any, how: str, why: str | None, now: datetime) -> AuditEntry:
    return AuditEntry(
        id=str(uuid7()),
        actor=None,
        organization=row["org"] if _ORG.match(row["org"]) else None,
        action=f"dead_letter.{how}",
        target_type="dead_letter",
        target_id=str(row["id"]),
        details={"reason": row["reason"], **({"why": why} if why else {})},
        created_at=now,
    )


async def list_retries(connection: Connection, *, org: str | None, limit: int) -> Sequence[Any]:
    """Messages that wait for another try, next first."""
    return await connection.fetch(
        """
        SELECT id, org, stream, stream_sequence, subject, tries, reason, next_at, created_at
        FROM retry WHERE $1::text IS NULL OR org = $1 ORDER BY next_at, id LIMIT $2
        """,
        org,
        min(limit, ROWS_MAX),
    )


async def hurry_retries(connection: Connection, *, org: str | None, now: datetime) -> int:
    """Let waiting messages be tried now; answer how many."""
    status = await connection.execute(
        "UPDATE retry SET next_at = $2 WHERE ($1::text IS NULL OR org = $1) AND next_at > $2",
        org,
        now,
    )
    return int(status.split()[-1])


async def backlog(connection: Connection) -> dict[str, Any]:
    """What waits in the room's own tables."""
    row = await connection.fetchrow(
        """
        SELECT (SELECT count(*) FROM outbox WHERE published_at IS NULL) AS outbox,
            (SELECT min(created_at) FROM outbox WHERE published_at IS NULL) AS outbox_oldest_at,
            (SELECT count(*) FROM retry) AS retries,
            (SELECT count(*) FROM dead_letter WHERE settled_at IS NULL) AS dead_letters
        """
    )
    return dict(row) if row is not None else {}
