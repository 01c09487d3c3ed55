"""Organizations: one row each with its newest state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from contracts.directory import OrganizationChanged

if TYPE_CHECKING:
    from shared.db import Connection

_COLUMNS = """
    org_id, name, status, monthly_budget_nanousd, cap_revision, cap_mode, unpriced_policy,
    on_unreachable, billing_timezone, billing_zones, chat_may_waive_approvals,
    proactive_limit_nanousd, public_live_data, entity_revision, created_at, changed_at
"""


@dataclass(frozen=True, slots=True)
class StoredOrganization:
    """A row: the state that was said last, and what only the directory knows."""

    org_id: str
    created_at: datetime
    state: OrganizationChanged


def _read(row: Any) -> StoredOrganization:
    fields = dict(row)
    return StoredOrganization(
        org_id=fields.pop("org_id"),
        created_at=fields.pop("created_at"),
        state=OrganizationChanged.model_validate(fields),
    )


def _values(state: OrganizationChanged) -> tuple[Any, ...]:
    return (
        state.name,
        state.status,
        state.monthly_budget_nanousd,
        state.cap_revision,
        state.cap_mode.value,
        state.unpriced_policy.value,
        state.on_unreachable.value,
        state.billing_timezone,
        [zone.model_dump() for zone in state.billing_zones],
        state.chat_may_waive_approvals,
        state.proactive_limit_nanousd,
        state.public_live_data,
        state.entity_revision,
        state.changed_at,
    )


async def save_new_organization(
    connection: Connection, org_id: str, state: OrganizationChanged
) -> bool:
    """Insert an organization; False where the id is taken."""
    inserted = await connection.fetchval(
        """
        INSERT INTO organization
            (org_id, name, status, monthly_budget_nanousd, cap_revision, cap_mode,
             unpriced_policy, on_unreachable, billing_timezone, billing_zones,
             chat_may_waive_approvals, proactive_limit_nanousd, public_live_data,
             entity_revision, changed_at, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15)
        ON CONFLICT DO NOTHING RETURNING org_id
        """,
        org_id,
        *_values(state),
    )
    return inserted is not None


async def save_organization(
    connection: Connection, org_id: str, state: OrganizationChanged
) -> None:
    """Write the next state of a row that the caller has locked."""
    await connection.execute(
        """
        UPDATE organization SET name = $2, status = $3, monthly_budget_nanousd = $4,
            cap_revision = $5, cap_mode = $6, unpriced_policy = $7, on_unreachable = $8,
            billing_timezone = $9, billing_zones = $10, chat_may_waive_approvals = $11,
            proactive_limit_nanousd = $12, public_live_data = $13, entity_revision = $14,
            changed_at = $15
        WHERE org_id = $1
        """,
        org_id,
        *_values(state),
    )


async def load_organization(connection: Connection, org_id: str) -> StoredOrganization | None:
    """One organization."""
    row = await connection.fetchrow(
        f"SELECT {_COLUMNS} FROM organization WHERE org_id = $1",
        org_id,
    )
    return _read(row) if row else None


async def lock_organization(connection: Connection, org_id: str) -> StoredOrganization | None:
    """One organization, locked until the transaction ends."""
    row = await connection.fetchrow(
        f"SELECT {_COLUMNS} FROM organization WHERE org_id = $1 FOR UPDATE",
        org_id,
    )
    return _read(row) if row else None


async def list_organizations(
    connection: Connection, *, only: Sequence[str] | None, skip: int, limit: int
) -> tuple[list[StoredOrganization], int]:
    """A page by id and the total; `only` narrows both to some organizations."""
    total = await connection.fetchval(
        "SELECT count(*) FROM organization WHERE $1::text[] IS NULL OR org_id = ANY($1)", only
    )
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM organization WHERE $1::text[] IS NULL OR org_id = ANY($1)
        ORDER BY org_id OFFSET $2 LIMIT $3
        """,
        only,
        skip,
        limit,
    )
    return [_read(row) for row in rows], total
