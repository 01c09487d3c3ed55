"""API keys: digests, permissions and the channel that a key belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shared.db import Connection

_COLUMNS = "key_id, name, permissions, channel_id, created_at, expires_at, revoked_at"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What may be shown of a key."""

    key_id: str
    name: str
    permissions: tuple[str, ...]
    channel_id: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyCaller:
    """A key that may still be used, with what its caller is allowed."""

    org: str
    secret_sha256: bytes
    permissions: tuple[str, ...]
    channel_id: str | None
    channel_rights: tuple[str, ...]
    pseudonym: str
    created_by_user_id: str | None
    """The member whom the key speaks for; None: it stands by itself."""
    creator_role: str | None
    """Their role now; None where they were removed, or nobody is behind the key."""


def _read(row: Any) -> StoredKey:
    return StoredKey(**{**dict(row), "permissions": tuple(row["permissions"])})


async def save_new_key(
    connection: Connection,
    org: str,
    key: StoredKey,
    *,
    secret_sha256: bytes,
    by: str | None,
    by_user_id: str | None,
) -> None:
    """Insert a key; `by` is the pseudonym of who made it, `by_user_id` the member behind them."""
    await connection.execute(
        """
        INSERT INTO api_key
            (key_id, secret_sha256, org_id, name, permissions, channel_id, created_by,
             created_at, expires_at, created_by_user_id)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        """,
        key.key_id,
        secret_sha256,
        org,
        key.name,
        list(key.permissions),
        key.channel_id,
        by,
        key.created_at,
        key.expires_at,
        by_user_id,
    )


async def load_callers(
    connection: Connection, key_ids: Collection[str], *, now: datetime
) -> dict[str, KeyCaller]:
    """The callers behind keys, but for the unknown, expired and revoked, or whose channel is."""
    rows = await connection.fetch(
        """
        SELECT k.key_id, k.org_id, k.secret_sha256, k.permissions, k.channel_id, c.rights,
            p.pseudonym, k.created_by_user_id, m.role
        FROM unnest($1::text[]) AS t (key_id)
        JOIN api_key k ON k.key_id = t.key_id
        JOIN pseudonym p ON p.subject = 'key:' || k.key_id
        LEFT JOIN channel c ON c.org_id = k.org_id AND c.channel_id = k.channel_id
        LEFT JOIN member m ON m.org_id = k.org_id AND m.user_id = k.created_by_user_id
            AND m.removed_at IS NULL
        WHERE k.revoked_at IS NULL
            AND (k.expires_at IS NULL OR k.expires_at > $2)
            AND (k.channel_id IS NULL OR NOT c.revoked)
        """,
        list(key_ids),
        now,
    )
    return {row["key_id"]: _caller(row) for row in rows}


def _caller(row: Any) -> KeyCaller:
    return KeyCaller(
        org=row["org_id"],
        secret_sha256=bytes(row["secret_sha256"]),
        permissions=tuple(row["permissions"]),
        channel_id=row["channel_id"],
        channel_rights=tuple(row["rights"] or ()),
        pseudonym=row["pseudonym"],
        created_by_user_id=row["created_by_user_id"],
        creator_role=row["role"],
    )


async def lock_key(connection: Connection, org: str, key_id: str) -> StoredKey | None:
    """One key of the organization, locked until the transaction ends."""
    row = await connection.fetchrow(
        f"SELECT {_COLUMNS} FROM api_key WHERE org_id = $1 AND key_id = $2 FOR UPDATE",
        org,
        key_id,
    )
    return _read(row) if row else None


async def save_key_revoked(connection: Connection, key_id: str, *, at: datetime) -> None:
    """Revoke a key that the caller has locked."""
    await connection.execute("UPDATE api_key SET revoked_at = $2 WHERE key_id = $1", key_id, at)


async def revoke_channel_keys(
    connection: Connection, org: str, channel_id: str, *, at: datetime
) -> Sequence[str]:
    """Revoke every key of a channel; answer their ids."""
    rows = await connection.fetch(
        """
        UPDATE api_key SET revoked_at = $3
        WHERE org_id = $1 AND channel_id = $2 AND revoked_at IS NULL RETURNING key_id
        """,
        org,
        channel_id,
        at,
    )
    return sorted(row["key_id"] for row in rows)


async def revoke_keys_of(
    connection: Connection, org: str, user_id: str, *, at: datetime
) -> Sequence[str]:
    """Revoke every key that speaks for a member; answer their ids."""
    rows = await connection.fetch(
        """
        UPDATE api_key SET revoked_at = $3
        WHERE org_id = $1 AND created_by_user_id = $2 AND revoked_at IS NULL RETURNING key_id
        """,
        org,
        user_id,
        at,
    )
    return sorted(row["key_id"] for row in rows)


async def list_keys(
    connection: Connection, org: str, *, skip: int, limit: int
) -> tuple[list[StoredKey], int]:
    """A page, newest first, revoked and expired ones included, and the total."""
    total = await connection.fetchval("SELECT count(*) FROM api_key WHERE org_id = $1", org)
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM api_key WHERE org_id = $1
        ORDER BY created_at DESC, key_id OFFSET $2 LIMIT $3
        """,
        org,
        skip,
        limit,
    )
    return [_read(row) for row in rows], total
