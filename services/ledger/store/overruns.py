"""What exceeded caps: rows that are never edited, written with the caps' rows locked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from contracts.holds import OverrunCause
    from shared.db import Connection


@dataclass(frozen=True, slots=True)
class Overrun:
    """One excess over one cap."""

    id: UUID
    org: str
    scope: str
    scope_id: str
    name: str
    month: str
    cause: OverrunCause
    amount_nanousd: int
    limit_nanousd: int
    spent_nanousd: int
    held_nanousd: int
    request_id: str | None
    noted_at: datetime


_NAMES = tuple(Overrun.__dataclass_fields__)
_LIST = ", ".join(_NAMES)


async def save(connection: Connection, overruns: Sequence[Overrun]) -> None:
    """Append overruns."""
    places = ", ".join(f"${n}" for n in range(1, len(_NAMES) + 1))
    await connection.executemany(
        f"INSERT INTO overrun ({_LIST}) VALUES ({places})",
        [tuple(getattr(each, name) for name in _NAMES) for each in overruns],
    )


async def list_page(
    connection: Connection, org: str, *, skip: int, limit: int
) -> tuple[list[Overrun], int]:
    """A page of overruns, newest first, and how many there are."""
    rows = await connection.fetch(
        f"""
        SELECT {_LIST} FROM overrun WHERE org = $1
        ORDER BY noted_at DESC, id OFFSET $2 LIMIT $3
        """,
        org,
        skip,
        limit,
    )
    total = await connection.fetchval("SELECT count(*) FROM overrun WHERE org = $1", org)
    return [_overrun(row) for row in rows], int(total)


def _overrun(row: Any) -> Overrun:
    values = {name: row[name] for name in _NAMES}
    for name in ("amount_nanousd", "spent_nanousd", "held_nanousd"):
        values[name] = int(values[name])
    return Overrun(**values)
