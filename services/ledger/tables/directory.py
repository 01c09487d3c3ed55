"""Projections of the directory and of channels' states, and what is left to be counted again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field

from services.ledger.tables.columns import (
    LedgerTable,
    bigint,
    moment,
    words,
)


class Organization(LedgerTable, table=True):
    """Projection of the directory: what caps and months depend on."""

    __tablename__ = "organization"

    org: str = words(primary_key=True)
    name: str = words()
    status: str = words()
    entity_revision: int = bigint()
    monthly_budget_nanousd: int | None = bigint(nullable=True)
    cap_revision: int = bigint()
    cap_mode: str = words()
    unpriced_policy: str = words()
    on_unreachable: str = words()
    billing_timezone: str = words()
    billing_zones: list[dict[str, str]] = Field(sa_type=JSONB, nullable=False)
    changed_at: datetime = moment()
    proactive_limit_nanousd: int | None = bigint(nullable=True)
    """Null: not heard of since the ledger keeps it; the directory is copied again."""


class Agent(LedgerTable, table=True):
    """Projection of the directory: an agent's cap. Two revisions, since two events speak of it."""

    __tablename__ = "agent"

    org: str = words(primary_key=True)
    agent_id: str = words(primary_key=True)
    version: int | None = Field(sa_type=Integer, nullable=True)
    name: str | None = words(nullable=True)
    monthly_nanousd: int | None = bigint(nullable=True)
    cap_revision: int | None = bigint(nullable=True)
    published_revision: int = bigint()
    archived_revision: int = bigint()
    requests_per_minute: int | None = Field(sa_type=Integer, nullable=True)
    delegates: list[dict[str, Any]] = Field(
        sa_type=JSONB, nullable=False, sa_column_kwargs={"server_default": "[]"}
    )
    """Those that its published spec pins, with their versions."""


class Channel(LedgerTable, table=True):
    """Projection of the directory: what a channel may report."""

    __tablename__ = "channel"

    org: str = words(primary_key=True)
    channel_id: str = words(primary_key=True)
    name: str = words()
    rights: list[str] = Field(sa_type=ARRAY(Text), nullable=False)
    revoked: bool = Field(nullable=False)
    entity_revision: int = bigint()
    changed_at: datetime = moment()


class Member(LedgerTable, table=True):
    """Projection of the directory: a person of an organization; two events speak of them."""

    __tablename__ = "member"

    org: str = words(primary_key=True)
    user_id: str = words(primary_key=True)
    name: str | None = words(nullable=True)
    role: str | None = words(nullable=True)
    changed_revision: int = bigint()
    removed_revision: int = bigint()


class Department(LedgerTable, table=True):
    """Projection of the directory: a department's cap and lead; two events speak of it."""

    __tablename__ = "department"

    org: str = words(primary_key=True)
    department_id: str = words(primary_key=True)
    name: str | None = words(nullable=True)
    lead_user_id: str | None = words(nullable=True)
    monthly_nanousd: int | None = bigint(nullable=True)
    cap_revision: int | None = bigint(nullable=True)
    changed_revision: int = bigint()
    removed_revision: int = bigint()
    removed_at: datetime | None = moment(nullable=True)


class DepartmentMember(LedgerTable, table=True):
    """From when to when a person belongs to a department."""

    __tablename__ = "department_member"
    __table_args__ = (
        ForeignKeyConstraint(
            ["org", "department_id"], ["ledger.department.org", "ledger.department.department_id"]
        ),
        Index("ix_department_member_org_user_id", "org", "user_id"),
    )

    org: str = words(primary_key=True)
    department_id: str = words(primary_key=True)
    user_id: str = words(primary_key=True)
    effective_at: datetime = Field(sa_type=DateTime(timezone=True), primary_key=True)
    ends_at: datetime | None = moment(nullable=True)


class Recount(LedgerTable, table=True):
    """Trees of a starter whose departments changed after they were counted."""

    __tablename__ = "recount"

    id: int = Field(
        sa_column=Column(BigInteger, Identity(always=True), primary_key=True, nullable=False)
    )
    org: str = words()
    user_id: str = words()
    since: datetime = moment()
    until: datetime | None = moment(nullable=True)
    after_run_id: str = words()


class Routine(LedgerTable, table=True):
    """A routine's cap, as its channel said it last."""

    __tablename__ = "routine"

    org: str = words(primary_key=True)
    routine_id: str = words(primary_key=True)
    name: str = words()
    state: str = words()
    monthly_nanousd: int | None = bigint(nullable=True)
    config_revision: int = bigint()
    digest: str = words()
    """Of what was said: the greater one holds of two states of one revision."""


class Goal(LedgerTable, table=True):
    """What a goal may cost; of several words of it the least holds."""

    __tablename__ = "goal"

    org: str = words(primary_key=True)
    goal_id: str = words(primary_key=True)
    budget_nanousd: int = bigint()


class DirectoryCopy(LedgerTable, table=True):
    """How far a ledger that started empty has asked the directory for what it holds."""

    __tablename__ = "directory_copy"

    id: int = Field(sa_type=Integer, primary_key=True)
    cursor: str | None = words(nullable=True)
    finished_at: datetime | None = moment(nullable=True)
