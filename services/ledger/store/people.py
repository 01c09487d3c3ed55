"""The ledger's projection of people: members, departments and who belongs to them since when.

The one thing not to break: many states are saved by one statement, at most one per entity, and a
state applies only where it is newer. Two events speak of each entity, so there are two revisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from contracts.directory import (
    DepartmentChanged,
    DepartmentRemoved,
    MemberChanged,
    MemberRemoved,
)

if TYPE_CHECKING:
    from datetime import datetime

    from shared.db import Connection

EntityKey = tuple[str, str]
"""Organization and the entity's id in it."""


async def save_members(connection: Connection, changes: Mapping[EntityKey, MemberChanged]) -> None:
    """Apply members' states where they are newer."""
    keys, states = list(changes), list(changes.values())
    await connection.execute(
        """
        INSERT INTO member (org, user_id, name, role, changed_revision)
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
        ON CONFLICT (org, user_id) DO UPDATE SET name = excluded.name, role = excluded.role,
            changed_revision = excluded.changed_revision
        WHERE member.changed_revision < excluded.changed_revision
        """,
        [org for org, _ in keys],
        [user_id for _, user_id in keys],
        [state.name for state in states],
        [state.role for state in states],
        [state.entity_revision for state in states],
    )


async def save_members_removed(
    connection: Connection, changes: Mapping[EntityKey, MemberRemoved]
) -> None:
    """Note that members left; may come before their last state."""
    await connection.execute(
        """
        INSERT INTO member (org, user_id, removed_revision)
        SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
        ON CONFLICT (org, user_id) DO UPDATE
            SET removed_revision = greatest(member.removed_revision, excluded.removed_revision)
        """,
        [org for org, _ in changes],
        [user_id for _, user_id in changes],
        [state.entity_revision for state in changes.values()],
    )


async def save_departments(
    connection: Connection, changes: Mapping[EntityKey, DepartmentChanged]
) -> None:
    """Apply departments' states where they are newer, memberships included."""
    keys, states = list(changes), list(changes.values())
    applied = await connection.fetch(
        """
        INSERT INTO department (org, department_id, name, lead_user_id, monthly_nanousd,
            cap_revision, changed_revision)
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[],
            $6::bigint[], $7::bigint[])
        ON CONFLICT (org, department_id) DO UPDATE SET name = excluded.name,
            lead_user_id = excluded.lead_user_id, monthly_nanousd = excluded.monthly_nanousd,
            cap_revision = excluded.cap_revision, changed_revision = excluded.changed_revision
        WHERE department.changed_revision < excluded.changed_revision
        RETURNING org, department_id
        """,
        [org for org, _ in keys],
        [department_id for _, department_id in keys],
        [state.name for state in states],
        [state.lead_user_id for state in states],
        [state.monthly_budget_nanousd for state in states],
        [state.cap_revision for state in states],
        [state.entity_revision for state in states],
    )
    newer = [(row["org"], row["department_id"]) for row in applied]
    await _save_memberships(connection, {key: changes[key] for key in newer})


async def _save_memberships(
    connection: Connection, changes: Mapping[EntityKey, DepartmentChanged]
) -> None:
    if not changes:
        return
    await connection.execute(
        """
        DELETE FROM department_member m USING unnest($1::text[], $2::text[])
            AS t (org, department_id)
        WHERE m.org = t.org AND m.department_id = t.department_id
        """,
        [org for org, _ in changes],
        [department_id for _, department_id in changes],
    )
    rows = [
        (org, department_id, member.user_id, member.effective_at, member.ends_at)
        for (org, department_id), state in changes.items()
        for member in state.members
    ]
    await connection.execute(
        """
        INSERT INTO department_member (org, department_id, user_id, effective_at, ends_at)
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[],
            $5::timestamptz[])
        ON CONFLICT DO NOTHING
        """,
        *([row[column] for row in rows] for column in range(5)),
    )


async def save_departments_removed(
    connection: Connection, changes: Mapping[EntityKey, DepartmentRemoved]
) -> None:
    """Note that departments are gone; may come before their last state."""
    await connection.execute(
        """
        INSERT INTO department (org, department_id, removed_revision, removed_at)
        SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[])
        ON CONFLICT (org, department_id) DO UPDATE
            SET removed_revision = excluded.removed_revision, removed_at = excluded.removed_at
        WHERE department.removed_revision <= excluded.removed_revision
        """,
        [org for org, _ in changes],
        [department_id for _, department_id in changes],
        [state.entity_revision for state in changes.values()],
        [state.removed_at for state in changes.values()],
    )


async def load_copy(connection: Connection) -> tuple[str | None, bool]:
    """Where copying the directory stands: its cursor, and whether it is finished."""
    row = await connection.fetchrow("SELECT cursor, finished_at FROM directory_copy WHERE id = 1")
    return (None, False) if row is None else (row["cursor"], row["finished_at"] is not None)


async def save_copy(connection: Connection, cursor: str | None, *, at: datetime) -> None:
    """Note how far the copy is; no cursor means that it is finished."""
    await connection.execute(
        """
        INSERT INTO directory_copy (id, cursor, finished_at) VALUES (1, $1, $2)
        ON CONFLICT (id) DO UPDATE SET cursor = excluded.cursor, finished_at = excluded.finished_at
        """,
        cursor,
        at if cursor is None else None,
    )
