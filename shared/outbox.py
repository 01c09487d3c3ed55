"""What a room says: rows written in the effect's transaction, published after its commit.

(1) Rows are published in any order of commits, by one or several relays. (2) A row stays until its
stream has acknowledged it and twice the server's sync interval has passed. (3) When a stream's
sequence is lower than one that it acknowledged before (power loss), the kept rows are published
again; their message ids make that harmless (design.md 2, *Outbox*).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from contracts.catalog import DEPLOYMENT, event_of
from contracts.envelope import Event, encode, message_id
from contracts.subjects import event_subject
from contracts.types import Wire
from shared import metrics
from shared.bus import BusUnavailable
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from shared.bus import Bus
    from shared.db import Connection, Database

BATCH_ROWS_MAX = 500
IDLE_S = 0.05
FAILURE_S_MAX = 5.0
SYNC_INTERVAL = timedelta(seconds=2)
"""The server's `sync_interval`: what it acknowledged may be lost for so long by a power cut."""
KEEP_AFTER_ACK = 2 * SYNC_INTERVAL
DERIVED = uuid.UUID("6f0d1c5e-6a3b-5d1e-9c62-3a0e8a6d2c11")
"""Namespace of ids that are derived from a cause, so that a replay says the same words."""


@dataclass(frozen=True, slots=True)
class Message:
    """One thing to publish: a subject and the encoded body."""

    subject: str
    message_id: str
    body: bytes


def derived_id(*parts: str) -> str:
    """An event id from its business key (design.md 2, *Outbox*)."""
    return str(uuid.uuid5(DERIVED, "\x1f".join(parts)))


def say(  # noqa: PLR0913
    data: Wire,
    *,
    room: str,
    org: str | None,
    event_id: str,
    at: datetime,
    token: str | None = None,
    cause: Event[Any] | None = None,
) -> Message:
    """Make the message of an event of this room; `org=None` is the deployment's."""
    event = event_of(type(data))
    owner = org or DEPLOYMENT
    body = encode(
        event.event_model(
            id=event_id,
            source=room,
            type=event.full_name,
            time=at,
            subject=owner,
            correlationid=(cause.correlationid or cause.id) if cause else None,
            causationid=cause.id if cause else None,
            traceparent=cause.traceparent if cause else None,
            data=data,
        )
    )
    subject = event_subject(event, owner, token=token, room=room)
    return Message(subject, message_id(subject, room, event_id, body), body)


async def save(connection: Connection, messages: Sequence[Message]) -> None:
    """Write outbox rows in the caller's transaction."""
    if messages:
        await connection.execute(
            """
            INSERT INTO outbox (subject, message_id, body)
            SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[])
            """,
            [message.subject for message in messages],
            [message.message_id for message in messages],
            [message.body for message in messages],
        )


class Relay:
    """Publishes a room's outbox. Several may run: each takes rows that no other holds."""

    def __init__(self, database: Database, bus: Bus) -> None:
        """Use the room's pool and connection."""
        self._database = database
        self._bus = bus

    async def run(self) -> None:
        """Relay until cancelled; while a server is away, wait and try again."""
        failures = 0
        while True:
            try:
                relayed = await self.relay_batch()
                failures = 0
            except Exception as error:
                if not (is_transient(error) or isinstance(error, BusUnavailable)):
                    raise
                failures += 1
                logger().warning("relay_waits", cause=type(error).__name__, failures=failures)
                await asyncio.sleep(min(IDLE_S * 2**failures, FAILURE_S_MAX))
                continue
            if relayed < BATCH_ROWS_MAX:
                await asyncio.sleep(IDLE_S)

    async def relay_batch(self) -> int:
        """Publish up to `BATCH_ROWS_MAX` waiting rows; answer how many were acknowledged."""
        async with self._database.transaction() as connection:
            rows = await connection.fetch(
                """
                SELECT id, subject, message_id, body FROM outbox
                WHERE published_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
                """,
                BATCH_ROWS_MAX,
            )
            metrics.OUTBOX_WAITING.set(len(rows))
            if rows:
                await self._publish(connection, rows)
            await connection.execute(
                "DELETE FROM outbox WHERE published_at < clock_timestamp() - $1::interval",
                KEEP_AFTER_ACK,
            )
        return len(rows)

    async def _publish(self, connection: Connection, rows: Sequence[Any]) -> None:
        acks = await self._bus.publish_all(
            [Message(row["subject"], row["message_id"], row["body"]) for row in rows]
        )
        lowest: dict[str, int] = {}
        for ack in acks:
            if not ack.duplicate:
                lowest[ack.stream] = min(lowest.get(ack.stream, ack.sequence), ack.sequence)
        for stream, sequence in lowest.items():
            # A stream that hands out a sequence again has lost what it acknowledged under it.
            await connection.execute(
                """
                UPDATE outbox SET published_at = NULL
                WHERE stream = $1 AND stream_sequence >= $2 AND published_at IS NOT NULL
                """,
                stream,
                sequence,
            )
        await connection.execute(
            """
            UPDATE outbox SET published_at = clock_timestamp(), stream = t.stream,
                stream_sequence = t.stream_sequence
            FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS t (id, stream, stream_sequence)
            WHERE outbox.id = t.id
            """,
            [row["id"] for row in rows],
            [ack.stream for ack in acks],
            [ack.sequence for ack in acks],
        )
        metrics.RELAYED.inc(len(rows))
