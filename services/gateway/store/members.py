"""Members of organizations: one row each; a removed one stays as a tombstone.

The one thing not to break: whoever may end as the last owner takes the organization's row first
(`lock_organization`), so that two owners who leave at once do not leave none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from contracts.directory import MemberChanged, MemberRemoved

if TYPE_CHECKING:
    from shared.db import Connection

_COLUMNS = """
    user_id, person_id, name, email, role, entity_revision, created_at, changed_at, removed_at
"""


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A row: the state that was said last, and what only the directory knows."""

    state: MemberChanged
    person_id: str | None
    """Who signs in as this member; None: a user of the platform without a sign-in here."""
    email: str | None
    created_at: datetime
    removed_at: datetime | None


def _read(row: Any) -> StoredMember:
    return StoredMember(
        state=MemberChanged.model_validate(
            {name: row[name] for name in MemberChanged.model_fields}
        ),
        person_id=row["person_id"],
        email=row["email"],
        created_at=row["created_at"],
        removed_at=row["removed_at"],
    )


async def save_member(
    connection: Connection,
    org: str,
    state: MemberChanged,
    *,
    email: str | None,
    person_id: str | None = None,
) -> None:
    """Write a member's next state; a removed one is there again. The caller has locked the row."""
    await connection.execute(
        """
        INSERT INTO member (org_id, user_id, person_id, name, email, role, entity_revision,
            created_at, changed_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)
        ON CONFLICT (org_id, user_id) DO UPDATE SET person_id = excluded.person_id,
            name = excluded.name, email = excluded.email, role = excluded.role,
            entity_revision = excluded.entity_revision, changed_at = excluded.changed_at,
            removed_at = NULL
        """,
        org,
        state.user_id,
        person_id,
        state.name,
        email,
        state.role,
        state.entity_revision,
        state.changed_at,
    )


async def save_member_removed(connection: Connection, org: str, said: MemberRemoved) -> None:
    """Write the tombstone of a member that the caller has locked; their address goes."""
    await connection.execute(
        """
        UPDATE member SET removed_at = $3, changed_at = $3, entity_revision = $4, email = NULL,
            person_id = NULL
        WHERE org_id = $1 AND user_id = $2
        """,
        org,
        said.user_id,
        said.removed_at,
        said.entity_revision,
    )


async def load_member(connection: Connection, org: str, user_id: str) -> StoredMember | None:
    """One member who was not removed."""
    row = await connection.fetchrow(
        f"""
        SELECT {_COLUMNS} FROM member
        WHERE org_id = $1 AND user_id = $2 AND removed_at IS NULL
        """,
        org,
        user_id,
    )
    return _read(row) if row else None


async def lock_member(connection: Connection, org: str, user_id: str) -> StoredMember | None:
    """One member, removed or not, locked until the transaction ends."""
    row = await connection.fetchrow(
        f"SELECT {_COLUMNS} FROM member WHERE org_id = $1 AND user_id = $2 FOR UPDATE",
        org,
        user_id,
    )
    return _read(row) if row else None


async def is_member(connection: Connection, org: str, person_id: str) -> bool:
    """Whether a person belongs to the organization."""
    return bool(
        await connection.fetchval(
            """
            SELECT true FROM member
            WHERE org_id = $1 AND person_id = $2 AND removed_at IS NULL
            """,
            org,
            person_id,
        )
    )


async def count_owners(connection: Connection, org: str) -> int:
    """How many owners the organization has."""
    return int(
        await connection.fetchval(
            """
            SELECT count(*) FROM member
            WHERE org_id = $1 AND removed_at IS NULL AND role = 'owner'
            """,
            org,
        )
    )


async def list_members(
    connection: Connection, org: str, *, skip: int, limit: int
) -> tuple[list[StoredMember], int]:
    """A page by id, without removed ones, and the total."""
    total = await connection.fetchval(
        "SELECT count(*) FROM member WHERE org_id = $1 AND removed_at IS NULL", org
    )
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM member WHERE org_id = $1 AND removed_at IS NULL
        ORDER BY user_id OFFSET $2 LIMIT $3
        """,
        org,
        skip,
        limit,
    )
    return [_read(row) for row in rows], total
