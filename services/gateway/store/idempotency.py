"""Idempotency keys: the answer of a creating request, in the transaction that creates.

The one thing not to break: two requests with the same key at once must not both create. The row is
inserted first; whoever comes second waits for the first's commit and reads its answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from services.gateway.errors import IdempotencyKeyReused

if TYPE_CHECKING:
    from shared.db import Connection

KEPT = timedelta(hours=24)
PRUNE_ROWS_MAX = 100
"""Expired rows that one creating request removes on its way."""


@dataclass(frozen=True, slots=True)
class IdempotencyClaim:
    """Whose key it is, and what was asked under it."""

    subject: str
    org: str
    key: str
    request_sha256: bytes


async def claim(
    connection: Connection, claimed: IdempotencyClaim, *, now: datetime
) -> dict[str, Any] | None:
    """Take the key, or answer what was answered under it before.

    Raises:
        IdempotencyKeyReused: another request was made under this key within `KEPT`.
    """
    await connection.execute(
        """
        DELETE FROM idempotency WHERE ctid IN (
            SELECT ctid FROM idempotency WHERE created_at <= $1
            ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        """,
        now - KEPT,
        PRUNE_ROWS_MAX,
    )
    taken = await connection.fetchval(
        """
        INSERT INTO idempotency (subject, org_id, key, request_sha256, created_at)
        VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (subject, org_id, key) DO UPDATE
            SET request_sha256 = excluded.request_sha256, answer = NULL,
                created_at = excluded.created_at
            WHERE idempotency.created_at <= $6
        RETURNING true
        """,
        claimed.subject,
        claimed.org,
        claimed.key,
        claimed.request_sha256,
        now,
        now - KEPT,
    )
    if taken:
        return None
    row = await connection.fetchrow(
        """
        SELECT request_sha256, answer FROM idempotency
        WHERE subject = $1 AND org_id = $2 AND key = $3
        """,
        claimed.subject,
        claimed.org,
        claimed.key,
    )
    if row is None or bytes(row["request_sha256"]) != claimed.request_sha256:
        raise IdempotencyKeyReused
    answer: dict[str, Any] = row["answer"]
    return answer


async def keep(connection: Connection, claimed: IdempotencyClaim, answer: dict[str, Any]) -> None:
    """Keep the answer beside the claim, in the same transaction."""
    await connection.execute(
        """
        UPDATE idempotency SET answer = $4 WHERE subject = $1 AND org_id = $2 AND key = $3
        """,
        claimed.subject,
        claimed.org,
        claimed.key,
        answer,
    )
