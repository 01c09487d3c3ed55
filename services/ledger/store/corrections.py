"""Corrections: the fact of each, and the further entry that it makes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from contracts.channel import Tokens
from contracts.types import EntryKind
from services.ledger.domain.correcting import Correctable, Corrected
from services.ledger.domain.merging import Ingested, Line

if TYPE_CHECKING:
    from shared.db import Connection

_COPIED = (
    "org",
    "request_id",
    "run_id",
    "billed_run_id",
    "delegation_id",
    "turn_id",
    "model",
    "provider",
    "key_id",
    "price_set",
    "interrupted",
    "month",
    "occurred_at",
    "billed_at",
    "ingestion_id",
    "document_id",
    "collection_id",
)
"""What a correction has in common with its entry: it stands on the same line."""
_TOKENS = tuple(Tokens.model_fields)


@dataclass(frozen=True, slots=True)
class Correction:
    """One correction as a fact; the amount is an entry of its own under `id`."""

    org: str
    correction_id: str
    id: UUID
    entry_id: UUID
    before_nanousd: int
    cost_nanousd: int
    reason: str
    reason_salt: bytes
    actor: str
    month: str
    corrected_at: datetime


async def load_correction(
    connection: Connection, org: str, correction_id: str
) -> Correction | None:
    """A correction that was made before, or nothing."""
    row = await connection.fetchrow(
        "SELECT * FROM correction WHERE org = $1 AND correction_id = $2", org, correction_id
    )
    if row is None:
        return None
    return Correction(**{**dict(row), "before_nanousd": int(row["before_nanousd"])})


async def load_entry(connection: Connection, org: str, entry_id: UUID) -> Any | None:
    """One entry of an organization, or nothing."""
    return await connection.fetchrow(
        "SELECT * FROM entry WHERE org = $1 AND id = $2", org, entry_id
    )


async def load_correctable(connection: Connection, entry: Any) -> Correctable:
    """What an entry amounts to by now; its request has to be held."""
    corrected = await connection.fetchval(
        """
        SELECT coalesce(sum(cost_nanousd), 0) FROM entry
        WHERE org = $1 AND corrects_entry_id = $2
        """,
        entry["org"],
        entry["id"],
    )
    ingested = None
    if entry["ingestion_id"] is not None:
        ingested = Ingested(
            entry["ingestion_id"],
            entry["document_id"],
            entry["collection_id"],
            entry["occurred_at"],
        )
    return Correctable(
        run_id=entry["run_id"] or "",
        line=Line(
            entry["billed_run_id"] or "",
            entry["month"],
            entry["provider"] or "",
            entry["model"],
            entry["key_id"] or "",
            entry["kind"],
            ingested=ingested,
        ),
        unpriced_count=entry["unpriced_count"],
        amounts_to_nanousd=entry["cost_nanousd"] + int(corrected),
        is_conflict=entry["reason"] == "request_conflict",
    )


async def save_correction(connection: Connection, made: Correction, corrected: Corrected) -> bool:
    """Keep the fact and append its entry; false where the id was taken meanwhile."""
    taken = await connection.fetchval(
        """
        INSERT INTO correction (org, correction_id, id, entry_id, before_nanousd, cost_nanousd,
            reason, reason_salt, actor, month, corrected_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        ON CONFLICT (org, correction_id) DO NOTHING RETURNING true
        """,
        made.org,
        made.correction_id,
        made.id,
        made.entry_id,
        made.before_nanousd,
        made.cost_nanousd,
        made.reason,
        made.reason_salt,
        made.actor,
        made.month,
        made.corrected_at,
    )
    if not taken:
        return False
    copied = ", ".join(_COPIED)
    await connection.execute(
        f"""
        INSERT INTO entry ({copied}, {", ".join(_TOKENS)}, reported_tokens, id, kind, cost_nanousd,
            request_count, unpriced_count, priced, price_source, recorded_at,
            late_month, corrects_entry_id)
        SELECT {copied}, {", ".join("0" for _ in _TOKENS)}, '{{}}', $3, $4, $5,
            0, $6, true, 'corrected', $7, $8, id
        FROM entry WHERE org = $1 AND id = $2
        """,
        made.org,
        made.entry_id,
        made.id,
        EntryKind.CORRECTION.value,
        corrected.amount.cost_nanousd,
        corrected.amount.unpriced_count,
        made.corrected_at,
        corrected.line.late_month,
    )
    return True
