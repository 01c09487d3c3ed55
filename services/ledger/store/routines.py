"""Routines' caps, as their channels said them last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contracts.channel import RoutineChanged
    from shared.db import Connection

RoutineKey = tuple[str, str]
"""Organization and routine id."""
Said = tuple["RoutineChanged", str]
"""A state, and the digest of it."""


async def save_routines(connection: Connection, states: Mapping[RoutineKey, Said]) -> None:
    """Keep states where they are newer than what is kept, in key order."""
    rows = sorted(states.items())
    await connection.execute(
        """
        INSERT INTO routine AS u (org, routine_id, name, state, monthly_nanousd, config_revision,
            digest)
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[],
            $6::bigint[], $7::text[])
        ON CONFLICT (org, routine_id) DO UPDATE SET name = excluded.name, state = excluded.state,
            monthly_nanousd = excluded.monthly_nanousd,
            config_revision = excluded.config_revision, digest = excluded.digest
        WHERE (u.config_revision, u.digest COLLATE "C")
            < (excluded.config_revision, excluded.digest COLLATE "C")
        """,
        *([key[n] for key, _ in rows] for n in range(2)),
        [said.name for _, (said, _) in rows],
        [said.state for _, (said, _) in rows],
        [said.monthly_budget_nanousd for _, (said, _) in rows],
        [said.config_revision for _, (said, _) in rows],
        [digest for _, (_, digest) in rows],
    )
