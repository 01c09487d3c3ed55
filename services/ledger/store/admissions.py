"""Answered questions: one row per request, what makes `authorize` idempotent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from contracts.ledger import Authorization

if TYPE_CHECKING:
    from shared.db import Connection


@dataclass(frozen=True, slots=True)
class Admission:
    """One decided question."""

    org: str
    request_id: str
    run_id: str | None
    channel_id: str | None
    model: str
    month: str
    digest: bytes
    """Of the question, so that a repeated id with another question is noticed."""
    answer: Authorization


def columns(admissions: Sequence[Admission]) -> list[list[Any]]:
    """What is kept of decisions, a list for each column."""
    return [
        [item.org for item in admissions],
        [item.request_id for item in admissions],
        [item.run_id for item in admissions],
        [item.channel_id for item in admissions],
        [item.model for item in admissions],
        [item.answer.allowed for item in admissions],
        [item.answer.model_dump_json() for item in admissions],
        [item.digest for item in admissions],
        [item.month for item in admissions],
        [item.answer.decided_at for item in admissions],
    ]


async def save(connection: Connection, admissions: Sequence[Admission]) -> set[tuple[str, str]]:
    """Keep decisions; answer the keys that were new. A concurrent first decision wins."""
    if not admissions:
        return set()
    ordered = sorted(admissions, key=lambda item: (item.org, item.request_id))
    rows = await connection.fetch(
        """
        INSERT INTO admission (org, request_id, run_id, channel_id, model, allowed, answer,
            digest, month, decided_at)
        SELECT org, request_id, run_id, channel_id, model, allowed, answer::jsonb, digest, month,
            decided_at
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bool[],
            $7::text[], $8::bytea[], $9::text[], $10::timestamptz[]) AS t (org, request_id, run_id,
            channel_id, model, allowed, answer, digest, month, decided_at)
        ON CONFLICT DO NOTHING RETURNING org, request_id
        """,
        *columns(ordered),
    )
    return {(row["org"], row["request_id"]) for row in rows}


async def load(
    connection: Connection, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], tuple[bytes, Authorization]]:
    """Decisions that were made before: the question's digest, and the answer."""
    rows = await connection.fetch(
        """
        SELECT org, request_id, digest, answer FROM admission
        JOIN unnest($1::text[], $2::text[]) AS t (org, request_id) USING (org, request_id)
        """,
        [org for org, _ in keys],
        [request_id for _, request_id in keys],
    )
    return {
        (row["org"], row["request_id"]): (
            bytes(row["digest"]),
            Authorization.model_validate(row["answer"]),
        )
        for row in rows
    }


@dataclass(frozen=True, slots=True)
class Admitted:
    """Who was allowed to send a request, and when."""

    run_id: str | None
    channel_id: str | None
    decided_at: datetime

    def is_of(self, channel_id: str, run_id: str | None) -> bool:
        """Whether this run of this channel asked; null: the channel asked for no run."""
        return (self.channel_id, self.run_id) == (channel_id, run_id)


async def load_admitted(
    connection: Connection, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], Admitted]:
    """Requests that were allowed; before they were reported or after (`domain/asking.py`)."""
    rows = await connection.fetch(
        """
        SELECT org, request_id, run_id, channel_id, decided_at FROM admission
        JOIN unnest($1::text[], $2::text[]) AS t (org, request_id) USING (org, request_id)
        WHERE allowed
        """,
        [org for org, _ in keys],
        [request_id for _, request_id in keys],
    )
    return {
        (row["org"], row["request_id"]): Admitted(
            row["run_id"], row["channel_id"], row["decided_at"]
        )
        for row in rows
    }
