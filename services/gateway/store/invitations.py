"""Invitations: a membership offered to whoever holds the token; only its digest is stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.db import Connection

_COLUMNS = """
    invitation_id, org_id, user_id, name, email, role, created_at, expires_at, accepted_at,
    revoked_at
"""


@dataclass(frozen=True, slots=True)
class StoredInvitation:
    """What may be shown of an invitation."""

    invitation_id: str
    org_id: str
    user_id: str
    name: str
    email: str
    role: str
    created_at: datetime
    expires_at: datetime
    accepted_at: datetime | None
    revoked_at: datetime | None


def _read(row: Any) -> StoredInvitation:
    return StoredInvitation(**dict(row))


async def save_new_invitation(
    connection: Connection,
    invitation: StoredInvitation,
    *,
    secret_sha256: bytes,
    by: str,
    by_user_id: str | None,
) -> None:
    """Insert an invitation; `by` is the pseudonym of who invites."""
    await connection.execute(
        """
        INSERT INTO invitation (invitation_id, secret_sha256, org_id, user_id, name, email, role,
            invited_by, invited_by_user_id, created_at, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        """,
        invitation.invitation_id,
        secret_sha256,
        invitation.org_id,
        invitation.user_id,
        invitation.name,
        invitation.email,
        invitation.role,
        by,
        by_user_id,
        invitation.created_at,
        invitation.expires_at,
    )


async def lock_open_invitation(
    connection: Connection, invitation_id: str, *, now: datetime
) -> tuple[StoredInvitation, bytes] | None:
    """An invitation that may still be accepted, locked, with its secret's digest."""
    row = await connection.fetchrow(
        f"""
        SELECT {_COLUMNS}, secret_sha256 FROM invitation
        WHERE invitation_id = $1 AND accepted_at IS NULL AND revoked_at IS NULL
            AND expires_at > $2
        FOR UPDATE
        """,
        invitation_id,
        now,
    )
    if row is None:
        return None
    fields = dict(row)
    digest = bytes(fields.pop("secret_sha256"))
    return StoredInvitation(**fields), digest


async def lock_invitation(
    connection: Connection, org: str, invitation_id: str
) -> StoredInvitation | None:
    """One invitation of the organization, locked until the transaction ends."""
    row = await connection.fetchrow(
        f"""
        SELECT {_COLUMNS} FROM invitation WHERE org_id = $1 AND invitation_id = $2 FOR UPDATE
        """,
        org,
        invitation_id,
    )
    return _read(row) if row else None


async def save_accepted(connection: Connection, invitation_id: str, *, at: datetime) -> None:
    """An invitation is accepted once."""
    await connection.execute(
        "UPDATE invitation SET accepted_at = $2 WHERE invitation_id = $1", invitation_id, at
    )


async def save_invitation_revoked(
    connection: Connection, invitation_id: str, *, at: datetime
) -> None:
    """Take an invitation back that the caller has locked."""
    await connection.execute(
        "UPDATE invitation SET revoked_at = $2 WHERE invitation_id = $1", invitation_id, at
    )


async def revoke_invitations_of(
    connection: Connection, org: str, user_id: str, *, at: datetime
) -> None:
    """Take back what a member who leaves has offered, or was offered."""
    await connection.execute(
        """
        UPDATE invitation SET revoked_at = $3
        WHERE org_id = $1 AND (invited_by_user_id = $2 OR user_id = $2)
            AND accepted_at IS NULL AND revoked_at IS NULL
        """,
        org,
        user_id,
        at,
    )


async def list_invitations(
    connection: Connection, org: str, *, skip: int, limit: int
) -> tuple[list[StoredInvitation], int]:
    """A page, newest first, and the total."""
    total = await connection.fetchval("SELECT count(*) FROM invitation WHERE org_id = $1", org)
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM invitation WHERE org_id = $1
        ORDER BY created_at DESC, invitation_id OFFSET $2 LIMIT $3
        """,
        org,
        skip,
        limit,
    )
    return [_read(row) for row in rows], total
