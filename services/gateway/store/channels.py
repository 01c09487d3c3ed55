"""Channels: one row each; a revoked one stays as a tombstone, so that its id is never reused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from contracts.directory import ChannelChanged

if TYPE_CHECKING:
    from shared.db import Connection

_COLUMNS = "channel_id, name, rights, revoked, entity_revision, changed_at, created_at"


@dataclass(frozen=True, slots=True)
class StoredChannel:
    """A row: the state that was said last and when the channel was made."""

    created_at: datetime
    state: ChannelChanged


def _read(row: Any) -> StoredChannel:
    fields = dict(row)
    created_at = fields.pop("created_at")
    return StoredChannel(created_at, ChannelChanged.model_validate(fields))


async def save_new_channel(connection: Connection, org: str, state: ChannelChanged) -> bool:
    """Insert a channel; False where the id is taken."""
    inserted = await connection.fetchval(
        """
        INSERT INTO channel
            (org_id, channel_id, name, rights, revoked, entity_revision, changed_at, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT DO NOTHING RETURNING channel_id
        """,
        org,
        state.channel_id,
        state.name,
        [right.value for right in state.rights],
        state.revoked,
        state.entity_revision,
        state.changed_at,
    )
    return inserted is not None


async def save_revoked(connection: Connection, org: str, state: ChannelChanged) -> None:
    """Write the tombstone of a channel that the caller has locked."""
    await connection.execute(
        """
        UPDATE channel SET revoked = true, entity_revision = $3, changed_at = $4
        WHERE org_id = $1 AND channel_id = $2
        """,
        org,
        state.channel_id,
        state.entity_revision,
        state.changed_at,
    )


async def lock_channel(connection: Connection, org: str, channel_id: str) -> StoredChannel | None:
    """One channel, locked until the transaction ends."""
    row = await connection.fetchrow(
        f"""
        SELECT {_COLUMNS} FROM channel WHERE org_id = $1 AND channel_id = $2 FOR UPDATE
        """,
        org,
        channel_id,
    )
    return _read(row) if row else None


async def list_channels(
    connection: Connection, org: str, *, skip: int, limit: int
) -> tuple[list[StoredChannel], int]:
    """A page by id, revoked ones included, and the total."""
    total = await connection.fetchval("SELECT count(*) FROM channel WHERE org_id = $1", org)
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM channel WHERE org_id = $1
        ORDER BY channel_id OFFSET $2 LIMIT $3
        """,
        org,
        skip,
        limit,
    )
    return [_read(row) for row in rows], total
