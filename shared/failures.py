"""Where messages go that had no effect: the retry table and the dead letters.

Nothing is lost: a dead letter keeps subject, bytes and reason as a row of the room, without age,
and a copy goes to `rienda.dead.<room>` (design.md 2, *Failure*).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson
from uuid_utils.compat import uuid7

from contracts.catalog import DEPLOYMENT
from contracts.errors import Fault, Invalid
from shared import metrics, outbox
from shared.outbox import Message

if TYPE_CHECKING:
    from shared.consume import Delivery
    from shared.db import Connection

TRIES_MAX = 8
"""Tries from the retry table before a message is dead (design.md 2)."""
RETRY_FIRST = timedelta(seconds=1)
RETRY_LONGEST = timedelta(minutes=10)
RETRY_ROWS_PER_ORG_MAX = 10_000
"""An organization's messages that wait beyond this are dead letters: others must go on."""
DUE_ROWS_MAX = 100
REASON_CHARS_MAX = 200
MESSAGE_CHARS_MAX = 1_000
COPY_BODY_BYTES_MAX = 4_096


def retry_delay(tries: int) -> timedelta:
    """How long to wait after so many tries: 1 s, 4 s, 16 s … up to ten minutes."""
    growing: timedelta = RETRY_FIRST * int(4 ** min(tries, 10))
    return min(growing, RETRY_LONGEST)


def org_of_subject(subject: str) -> str:
    """The organization token of a subject; `_` where there is none."""
    parts = subject.split(".")
    return parts[2] if len(parts) > 3 else DEPLOYMENT


async def bury(
    connection: Connection,
    refusals: Sequence[tuple[Delivery, Invalid]],
    *,
    room: str,
    now: datetime,
) -> None:
    """Make dead letters in the caller's transaction.

    A repeated delivery adds none; one that was replayed and failed again waits again.
    """
    if not refusals:
        return
    rows = await connection.fetch(
        """
        INSERT INTO dead_letter
            (id, org, stream, stream_sequence, subject, body, reason, message, tries, stored_at,
            dead_at)
        SELECT t.id, t.org, t.stream, t.stream_sequence, t.subject, t.body, t.reason, t.message,
            t.tries, t.stored_at, $11
        FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bytea[],
                $7::text[], $8::text[], $9::int[], $10::timestamptz[])
            AS t (id, org, stream, stream_sequence, subject, body, reason, message, tries,
                stored_at)
        ON CONFLICT ON CONSTRAINT uq_dead_letter_message DO UPDATE
            SET reason = excluded.reason, message = excluded.message, tries = excluded.tries,
                dead_at = excluded.dead_at, settled_at = NULL, settled_as = NULL
            WHERE dead_letter.settled_as = 'replayed'
        RETURNING id, org, stream, stream_sequence, subject, body, reason, message
        """,
        [uuid7() for _ in refusals],
        [org_of_subject(delivery.subject) for delivery, _ in refusals],
        [delivery.stream for delivery, _ in refusals],
        [delivery.sequence for delivery, _ in refusals],
        [delivery.subject for delivery, _ in refusals],
        [delivery.body for delivery, _ in refusals],
        [why.reason[:REASON_CHARS_MAX] for _, why in refusals],
        [_storable(why.message) for _, why in refusals],
        [delivery.tries for delivery, _ in refusals],
        [delivery.at or now for delivery, _ in refusals],
        now,
    )
    await outbox.save(connection, [_copy(row, room=room, now=now) for row in rows])


def _storable(message: str) -> str:
    text = message.replace("\x00", "").encode("utf-8", "replace").decode()
    return text[:MESSAGE_CHARS_MAX]


def _copy(row: Any, *, room: str, now: datetime) -> Message:
    body = orjson.dumps(
        {
            "id": str(row["id"]),
            "room": room,
            "org": row["org"],
            "stream": row["stream"],
            "stream_sequence": row["stream_sequence"],
            "subject": row["subject"],
            "reason": row["reason"],
            "message": row["message"],
            "dead_at": now.isoformat(),
            "body": bytes(row["body"])[:COPY_BODY_BYTES_MAX].decode("utf-8", "replace"),
            "body_is_cut": len(row["body"]) > COPY_BODY_BYTES_MAX,
        }
    )
    return Message(f"rienda.dead.{room}", hashlib.sha256(body).hexdigest(), body)


async def put_off(
    connection: Connection, delivery: Delivery, error: Exception, *, room: str, now: datetime
) -> None:
    """Let a message wait in the retry table; after `TRIES_MAX`, or over the quota, it is dead."""
    org = org_of_subject(delivery.subject)
    reason = error.reason if isinstance(error, Fault) else type(error).__name__
    why: Invalid | None = None
    if delivery.tries >= TRIES_MAX:
        why = Invalid(
            f"{delivery.tries} tries failed, the last with {reason}", reason="tries_exhausted"
        )
    elif delivery.tries == 0:
        waiting = await connection.fetchval("SELECT count(*) FROM retry WHERE org = $1", org)
        if waiting >= RETRY_ROWS_PER_ORG_MAX:
            why = Invalid(
                f"{waiting} messages of this organization wait already", reason="retry_quota"
            )
    if why is not None:
        await bury(connection, [(delivery, why)], room=room, now=now)
        await forget(connection, delivery)
        metrics.REFUSED.labels(why.reason).inc()
        return
    await connection.execute(
        """
        INSERT INTO retry
            (org, stream, stream_sequence, subject, body, tries, reason, next_at, created_at,
            stored_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        ON CONFLICT ON CONSTRAINT uq_retry_message
            DO UPDATE SET tries = excluded.tries, reason = excluded.reason,
                next_at = excluded.next_at
        """,
        org,
        delivery.stream,
        delivery.sequence,
        delivery.subject,
        delivery.body,
        delivery.tries + 1,
        reason[:REASON_CHARS_MAX],
        now + retry_delay(delivery.tries),
        now,
        delivery.at or now,
    )
    metrics.RETRIED.inc()


async def due(connection: Connection, *, stream: str, now: datetime) -> Sequence[Any]:
    """The messages of a stream whose time has come, oldest first."""
    return await connection.fetch(
        """
        SELECT subject, body, stream, stream_sequence, tries, stored_at FROM retry
        WHERE stream = $1 AND next_at <= $2 ORDER BY next_at, id LIMIT $3
        """,
        stream,
        now,
        DUE_ROWS_MAX,
    )


async def forget(connection: Connection, delivery: Delivery) -> None:
    """Take a message off the retry table: it was handled, or it is dead."""
    await connection.execute(
        "DELETE FROM retry WHERE stream = $1 AND stream_sequence = $2 AND digest = sha256($3)",
        delivery.stream,
        delivery.sequence,
        delivery.body,
    )
