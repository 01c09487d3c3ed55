"""Audit entries of a room: written with the act, numbered without gaps per chain.

The number and the previous number's hash are given in the act's own transaction, under the lock of
the chain's head, so that an entry that vanishes before it reaches the audit chain is noticed
(design.md 9). If the entry cannot be written, the act is undone (facts.md 1.2).
"""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING

import orjson

from contracts.rooms import AUDIT_CHAIN_DEPLOYMENT, AuditEntry, AuditRecorded
from shared import outbox

if TYPE_CHECKING:
    from shared.db import Connection


def canonical_bytes(entry: AuditEntry, *, chain: str, number: int, previous: str | None) -> bytes:
    """The bytes that are hashed: sorted keys, compact, id, chain and number included."""
    return orjson.dumps(
        {
            "chain": chain,
            "entry": entry.model_dump(mode="json"),
            "number": number,
            "previous": previous,
        },
        option=orjson.OPT_SORT_KEYS,
    )


async def record(connection: Connection, entry: AuditEntry, *, room: str) -> AuditRecorded:
    """Number an entry, keep it and say it, all in the transaction of the act.

    Take this lock last: acts on one chain wait here for one another until they commit.
    """
    chain = entry.organization or AUDIT_CHAIN_DEPLOYMENT
    await connection.execute(
        "INSERT INTO audit_head (chain, number, hash) VALUES ($1, 0, '') ON CONFLICT DO NOTHING",
        chain,
    )
    head = await connection.fetchrow(
        "SELECT number, hash FROM audit_head WHERE chain = $1 FOR UPDATE", chain
    )
    if head is None:
        raise RuntimeError("the head of an audit chain vanished under its lock")
    number = head["number"] + 1
    previous = head["hash"] or None
    body = canonical_bytes(entry, chain=chain, number=number, previous=previous)
    digest = hashlib.sha256(body).hexdigest()
    await connection.execute(
        """
        INSERT INTO audit_entry (chain, number, id, hash, previous, body, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        """,
        chain,
        number,
        uuid.UUID(entry.id),
        digest,
        previous,
        body,
        entry.created_at,
    )
    await connection.execute(
        "UPDATE audit_head SET number = $2, hash = $3 WHERE chain = $1", chain, number, digest
    )
    recorded = AuditRecorded(entry=entry, room=room, chain=chain, number=number, previous=previous)
    await outbox.save(
        connection,
        [
            outbox.say(
                recorded,
                room=room,
                org=entry.organization,
                event_id=outbox.derived_id("audit", room, chain, str(number)),
                at=entry.created_at,
            )
        ],
    )
    return recorded
