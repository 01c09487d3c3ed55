"""Departments: one row each with its newest state; a removed one stays as a tombstone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from contracts.directory import DepartmentChanged, DepartmentRemoved

if TYPE_CHECKING:
    from shared.db import Connection

_COLUMNS = """
    department_id, name, lead_user_id, monthly_budget_nanousd, cap_revision, members,
    entity_revision, created_at, changed_at
"""


@dataclass(frozen=True, slots=True)
class StoredDepartment:
    """A row: the state that was said last and when the department was made."""

    created_at: datetime
    state: DepartmentChanged


def _read(row: Any) -> StoredDepartment:
    fields = dict(row)
    created_at = fields.pop("created_at")
    return StoredDepartment(created_at, DepartmentChanged.model_validate(fields))


def _values(state: DepartmentChanged) -> tuple[Any, ...]:
    return (
        state.department_id,
        state.name,
        state.lead_user_id,
        state.monthly_budget_nanousd,
        state.cap_revision,
        [member.model_dump(mode="json") for member in state.members],
        state.entity_revision,
        state.changed_at,
    )


async def save_new_department(connection: Connection, org: str, state: DepartmentChanged) -> bool:
    """Insert a department; False where the id is taken, perhaps by a removed one."""
    inserted = await connection.fetchval(
        """
        INSERT INTO department (org_id, department_id, name, lead_user_id, monthly_budget_nanousd,
            cap_revision, members, entity_revision, changed_at, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)
        ON CONFLICT DO NOTHING RETURNING department_id
        """,
        org,
        *_values(state),
    )
    return inserted is not None


async def save_department(connection: Connection, org: str, state: DepartmentChanged) -> None:
    """Write the next state of a row that the caller has locked."""
    await connection.execute(
        """
        UPDATE department SET name = $3, lead_user_id = $4, monthly_budget_nanousd = $5,
            cap_revision = $6, members = $7, entity_revision = $8, changed_at = $9
        WHERE org_id = $1 AND department_id = $2
        """,
        org,
        *_values(state),
    )


async def save_department_removed(
    connection: Connection, org: str, said: DepartmentRemoved
) -> None:
    """Write the tombstone of a department that the caller has locked."""
    await connection.execute(
        """
        UPDATE department SET removed_at = $3, changed_at = $3, entity_revision = $4
        WHERE org_id = $1 AND department_id = $2
        """,
        org,
        said.department_id,
        said.removed_at,
        said.entity_revision,
    )


async def load_department(
    connection: Connection, org: str, department_id: str
) -> StoredDepartment | None:
    """One department that was not removed."""
    row = await connection.fetchrow(
        f"""
        SELECT {_COLUMNS} FROM department
        WHERE org_id = $1 AND department_id = $2 AND removed_at IS NULL
        """,
        org,
        department_id,
    )
    return _read(row) if row else None


async def lock_department(
    connection: Connection, org: str, department_id: str
) -> StoredDepartment | None:
    """As `load_department`, locked until the transaction ends."""
    row = await connection.fetchrow(
        f"""
        SELECT {_COLUMNS} FROM department
        WHERE org_id = $1 AND department_id = $2 AND removed_at IS NULL FOR UPDATE
        """,
        org,
        department_id,
    )
    return _read(row) if row else None


async def lock_departments_of(
    connection: Connection, org: str, user_id: str
) -> list[StoredDepartment]:
    """Every department that a person leads or ever belonged to, locked in the order of ids."""
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM department
        WHERE org_id = $1 AND removed_at IS NULL AND (lead_user_id = $2 OR members @> $3)
        ORDER BY department_id FOR UPDATE
        """,
        org,
        user_id,
        [{"user_id": user_id}],
    )
    return [_read(row) for row in rows]


async def list_departments_of(
    connection: Connection, org: str, user_id: str
) -> list[StoredDepartment]:
    """Every department that a person ever belonged to."""
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM department
        WHERE org_id = $1 AND removed_at IS NULL AND members @> $2
        """,
        org,
        [{"user_id": user_id}],
    )
    return [_read(row) for row in rows]


async def list_departments(
    connection: Connection, org: str, *, skip: int, limit: int
) -> tuple[list[StoredDepartment], int]:
    """A page by id and the total."""
    total = await connection.fetchval(
        "SELECT count(*) FROM department WHERE org_id = $1 AND removed_at IS NULL", org
    )
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM department WHERE org_id = $1 AND removed_at IS NULL
        ORDER BY department_id OFFSET $2 LIMIT $3
        """,
        org,
        skip,
        limit,
    )
    return [_read(row) for row in rows], total
