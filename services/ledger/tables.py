"""The ledger's tables as SQLModel sees them; the migrations are what runs.

`tests/integration` compares both. Sums are NUMERIC, single amounts BIGINT (design.md 3, *Money*).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Computed,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    desc,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import UserDefinedType
from sqlmodel import Field, SQLModel

from contracts.channel import Tokens
from services.ledger.domain.amounts import COLUMNS
from shared.tables import room_metadata

METADATA = room_metadata("ledger")
TOKEN_COLUMNS = tuple(Tokens.model_fields)


class Xid8(UserDefinedType[int]):
    """Postgres' 64-bit transaction id; orders entries by what was complete at a snapshot."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The type's name in DDL."""
        return "xid8"


def _moment(*, nullable: bool = False) -> Any:
    return Field(sa_type=DateTime(timezone=True), nullable=nullable)


def _text(*, nullable: bool = False, primary_key: bool = False) -> Any:
    return Field(sa_type=Text, nullable=nullable, primary_key=primary_key)


def _bigint(*, nullable: bool = False) -> Any:
    return Field(sa_type=BigInteger, nullable=nullable)


def _sum_columns(prefix: str = "") -> list[Column[Any]]:
    return [
        Column(f"{prefix}{name}", Numeric(38, 0), nullable=False, server_default=text("0"))
        for name in COLUMNS
    ]


class LedgerTable(SQLModel):
    """Base of the room's tables."""

    metadata = METADATA


class Organization(LedgerTable, table=True):
    """Projection of the directory: what caps and months depend on."""

    __tablename__ = "organization"

    org: str = _text(primary_key=True)
    name: str = _text()
    status: str = _text()
    entity_revision: int = _bigint()
    monthly_budget_nanousd: int | None = _bigint(nullable=True)
    cap_revision: int = _bigint()
    cap_mode: str = _text()
    unpriced_policy: str = _text()
    on_unreachable: str = _text()
    billing_timezone: str = _text()
    billing_zones: list[dict[str, str]] = Field(sa_type=JSONB, nullable=False)
    changed_at: datetime = _moment()


class Agent(LedgerTable, table=True):
    """Projection of the directory: an agent's cap. Two revisions, since two events speak of it."""

    __tablename__ = "agent"

    org: str = _text(primary_key=True)
    agent_id: str = _text(primary_key=True)
    version: int | None = Field(sa_type=Integer, nullable=True)
    name: str | None = _text(nullable=True)
    monthly_nanousd: int | None = _bigint(nullable=True)
    cap_revision: int | None = _bigint(nullable=True)
    published_revision: int = _bigint()
    archived_revision: int = _bigint()


class Channel(LedgerTable, table=True):
    """Projection of the directory: what a channel may report."""

    __tablename__ = "channel"

    org: str = _text(primary_key=True)
    channel_id: str = _text(primary_key=True)
    name: str = _text()
    rights: list[str] = Field(sa_type=ARRAY(Text), nullable=False)
    revoked: bool = Field(nullable=False)
    entity_revision: int = _bigint()
    changed_at: datetime = _moment()


class Member(LedgerTable, table=True):
    """Projection of the directory: a person of an organization; two events speak of them."""

    __tablename__ = "member"

    org: str = _text(primary_key=True)
    user_id: str = _text(primary_key=True)
    name: str | None = _text(nullable=True)
    role: str | None = _text(nullable=True)
    changed_revision: int = _bigint()
    removed_revision: int = _bigint()


class Department(LedgerTable, table=True):
    """Projection of the directory: a department's cap and lead; two events speak of it."""

    __tablename__ = "department"

    org: str = _text(primary_key=True)
    department_id: str = _text(primary_key=True)
    name: str | None = _text(nullable=True)
    lead_user_id: str | None = _text(nullable=True)
    monthly_nanousd: int | None = _bigint(nullable=True)
    cap_revision: int | None = _bigint(nullable=True)
    changed_revision: int = _bigint()
    removed_revision: int = _bigint()


class DepartmentMember(LedgerTable, table=True):
    """From when to when a person belongs to a department."""

    __tablename__ = "department_member"
    __table_args__ = (
        ForeignKeyConstraint(
            ["org", "department_id"], ["ledger.department.org", "ledger.department.department_id"]
        ),
        Index("ix_department_member_org_user_id", "org", "user_id"),
    )

    org: str = _text(primary_key=True)
    department_id: str = _text(primary_key=True)
    user_id: str = _text(primary_key=True)
    effective_at: datetime = Field(sa_type=DateTime(timezone=True), primary_key=True)
    ends_at: datetime | None = _moment(nullable=True)


class DirectoryCopy(LedgerTable, table=True):
    """How far a ledger that started empty has asked the directory for what it holds."""

    __tablename__ = "directory_copy"

    id: int = Field(sa_type=Integer, primary_key=True)
    cursor: str | None = _text(nullable=True)
    finished_at: datetime | None = _moment(nullable=True)


class Request(LedgerTable, table=True):
    """Every claim on one provider request; what the next report merges with."""

    __tablename__ = "request"

    org: str = _text(primary_key=True)
    request_id: str = _text(primary_key=True)
    claims: list[dict[str, Any]] = Field(sa_type=JSONB, nullable=False)


class Admission(LedgerTable, table=True):
    """One answered `authorize`; what makes it idempotent."""

    __tablename__ = "admission"

    org: str = _text(primary_key=True)
    request_id: str = _text(primary_key=True)
    run_id: str | None = _text(nullable=True)
    channel_id: str | None = _text(nullable=True)
    model: str = _text()
    allowed: bool = Field(nullable=False)
    answer: dict[str, Any] = Field(sa_type=JSONB, nullable=False)
    digest: bytes = Field(sa_type=LargeBinary, nullable=False)
    month: str = _text()
    decided_at: datetime = _moment()


class MonthSpend(LedgerTable, table=True):
    """What is spent under a scope in a month; late: entered in it, billed in an earlier one."""

    __tablename__ = "month_spend"

    org: str = _text(primary_key=True)
    scope: str = _text(primary_key=True)
    scope_id: str = _text(primary_key=True)
    month: str = _text(primary_key=True)
    cost_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)
    unpriced_count: int = Field(sa_type=Numeric(38, 0), nullable=False)
    late_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)


class Entry(LedgerTable, table=True):
    """One immutable amount. The runtime role may insert and read, nothing else."""

    __tablename__ = "entry"
    __table_args__ = (
        Index("ix_entry_sequence", "sequence", unique=True),
        Index("ix_entry_run", "org", "billed_run_id", "sequence"),
    )

    id: UUID = Field(sa_type=Uuid, primary_key=True)
    sequence: int = Field(sa_column=Column(BigInteger, Identity(always=True), nullable=False))
    transaction_id: int = Field(
        sa_column=Column(Xid8(), nullable=False, server_default=text("pg_current_xact_id()"))
    )
    org: str = _text()
    request_id: str = _text()
    run_id: str = _text()
    billed_run_id: str = _text()
    delegation_id: str | None = _text(nullable=True)
    turn_id: str | None = _text(nullable=True)
    kind: str = _text()
    model: str = _text()
    provider: str | None = _text(nullable=True)
    key_id: str | None = _text(nullable=True)
    input: int = _bigint()
    output: int = _bigint()
    cache_read: int = _bigint()
    cache_write_5m: int = _bigint()
    cache_write_1h: int = _bigint()
    reasoning: int = _bigint()
    audio_input: int = _bigint()
    audio_output: int = _bigint()
    reported_tokens: list[int] = Field(sa_type=ARRAY(BigInteger), nullable=False)
    cost_nanousd: int = _bigint()
    request_count: int = Field(sa_type=SmallInteger, nullable=False)
    unpriced_count: int = Field(sa_type=SmallInteger, nullable=False)
    priced: bool = Field(sa_type=Boolean, nullable=False)
    reason: str | None = _text(nullable=True)
    price_source: str = _text()
    price_set: str = _text()
    provider_amount: str | None = _text(nullable=True)
    provider_currency: str | None = _text(nullable=True)
    interrupted: bool = Field(nullable=False)
    month: str = _text()
    occurred_at: datetime = _moment()
    billed_at: datetime = _moment()
    recorded_at: datetime = _moment()


RUN_TRANSITION = Table(
    "run_transition",
    METADATA,
    *(Column(name, Text, nullable=False) for name in ("org", "run_id", "kind", "digest")),
    *(Column(name, DateTime(timezone=True), nullable=False) for name in ("at", "recorded_at")),
    *(Column(name, DateTime(timezone=True)) for name in ("sign_at", "watermark_at")),
    PrimaryKeyConstraint("org", "run_id", "kind", "at", "digest"),
)
"""A park, a resume, or a verdict on a run's silence; inserted, never changed."""

WATERMARK = Table(
    "watermark",
    METADATA,
    Column("stream", Text, primary_key=True),
    Column("handled_until", DateTime(timezone=True), nullable=False),
    Column("read_at", DateTime(timezone=True), nullable=False),
)
"""Up to when everything that a stream stored is handled, by the server's clock."""

LINE_KEY = ("org", "run_id", "month", "provider", "model", "key_id", "kind", "late_month")

RUN_LINE = Table(
    "run_line",
    METADATA,
    *(Column(name, Text, nullable=False) for name in LINE_KEY),
    *_sum_columns(),
    PrimaryKeyConstraint(*LINE_KEY),
)
"""A run's entries summed by what the breakdowns group by."""

RUN_TEXTS_REQUIRED = ("channel_id", "root_run_id", "said_root_run_id")
RUN_TEXTS = (
    "parent_run_id",
    "delegation_id",
    "agent_id",
    "agent_version",
    "user_id",
    "started_by_user_id",
    "surface",
    "conversation_id",
    "project_id",
    "environment_id",
    "exposure_id",
    "routine_id",
    "goal_id",
    "system_role",
    "model",
    "provider",
    "key_id",
    "error",
    "start_digest",
    "end_digest",
    "moved_to",
    "moved_digest",
)
RUN_MOMENTS = (
    "started_at",
    "first_sign_at",
    "last_sign_at",
    "heard_at",
    "ended_at",
    "moved_at",
    "reaped_at",
    "reaped_sign_at",
)
RUN_SAYING = ("said_at", "say_due_at")
"""When a run was last told of, and from when its totals are to be said."""

RUN = Table(
    "run",
    METADATA,
    Column("org", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    *(Column(name, Text, nullable=False) for name in RUN_TEXTS_REQUIRED),
    Column("provisional", Boolean, nullable=False),
    *(Column(name, Text, nullable=True) for name in RUN_TEXTS),
    Column("budget_nanousd", BigInteger, nullable=True),
    Column("asked_in_chat", JSONB, nullable=True),
    Column("status", Text, nullable=False),
    Column("tools", ARRAY(Text), nullable=False),
    Column("missing_delegates", Integer, nullable=False),
    *(Column(name, DateTime(timezone=True), nullable=True) for name in RUN_MOMENTS + RUN_SAYING),
    Column("revision", BigInteger, nullable=False),
    Column("counted_agents", ARRAY(Text), nullable=False),
    Column(
        "shown_start",
        DateTime(timezone=True),
        Computed("coalesce(started_at, first_sign_at)", persisted=True),
        nullable=True,
    ),
    *_sum_columns("own_"),
    *_sum_columns("tree_"),
    PrimaryKeyConstraint("org", "run_id"),
    Index(
        "ix_run_top_level",
        "org",
        desc("shown_start"),
        "run_id",
        postgresql_where=text("run_id = root_run_id"),
    ),
    Index("ix_run_start", "org", desc("shown_start"), "run_id"),
    Index("ix_run_root", "org", "root_run_id"),
    Index(
        "ix_run_running",
        "org",
        "run_id",
        postgresql_where=text("status = 'running' AND run_id = root_run_id"),
    ),
    Index("ix_run_say_due", "say_due_at", postgresql_where=text("say_due_at IS NOT NULL")),
    Index(
        "ix_run_parent",
        "org",
        "parent_run_id",
        postgresql_where=text("parent_run_id IS NOT NULL"),
    ),
    Index(
        "ix_run_project",
        "org",
        "project_id",
        desc("shown_start"),
        postgresql_where=text("project_id IS NOT NULL"),
    ),
)
"""A run with the sums of its own entries and, for a root, of its whole tree."""
