"""Requests, answers, entries, corrections, and the sums over entries."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
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
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field

from services.ledger.tables.columns import (
    LINE_KEY,
    METADATA,
    LedgerTable,
    Xid8,
    bigint,
    index_where,
    moment,
    sum_columns,
    words,
)


class CapNotice(LedgerTable, table=True):
    """What was said about a cap: once per revision of it, month and threshold.

    Of a person's proactive work and of a routine the limit stands for the revision
    (`domain/warnings.py`).
    """

    __tablename__ = "cap_notice"

    org: str = words(primary_key=True)
    scope: str = words(primary_key=True)
    scope_id: str = words(primary_key=True)
    cap_revision: int = Field(sa_type=BigInteger, primary_key=True)
    month: str = words(primary_key=True)
    threshold_percent: int = Field(sa_type=Integer, primary_key=True)
    spent_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)
    said_at: datetime = moment()


class Request(LedgerTable, table=True):
    """Every claim on one provider request; what the next report merges with."""

    __tablename__ = "request"

    org: str = words(primary_key=True)
    request_id: str = words(primary_key=True)
    claims: list[dict[str, Any]] = Field(sa_type=JSONB, nullable=False)


class Admission(LedgerTable, table=True):
    """One answered `authorize`; what makes it idempotent."""

    __tablename__ = "admission"

    org: str = words(primary_key=True)
    request_id: str = words(primary_key=True)
    run_id: str | None = words(nullable=True)
    channel_id: str | None = words(nullable=True)
    model: str = words()
    allowed: bool = Field(nullable=False)
    answer: dict[str, Any] = Field(sa_type=JSONB, nullable=False)
    digest: bytes = Field(sa_type=LargeBinary, nullable=False)
    month: str = words()
    decided_at: datetime = moment()


class MonthSpend(LedgerTable, table=True):
    """What is spent under a scope in a month; late: entered in it, billed in an earlier one."""

    __tablename__ = "month_spend"

    org: str = words(primary_key=True)
    scope: str = words(primary_key=True)
    scope_id: str = words(primary_key=True)
    month: str = words(primary_key=True)
    cost_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)
    unpriced_count: int = Field(sa_type=Numeric(38, 0), nullable=False)
    late_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)


class Entry(LedgerTable, table=True):
    """One immutable amount. The runtime role may insert and read, nothing else."""

    __tablename__ = "entry"
    __table_args__ = (
        Index("ix_entry_sequence", "sequence", unique=True),
        Index("ix_entry_run", "org", "billed_run_id", "sequence"),
        index_where("ingestion_id", "ix_entry_ingested", "org", "occurred_at"),
        index_where("ingestion_id", "ix_entry_ingestion", "org", "ingestion_id", "sequence"),
        index_where("corrects_entry_id", "ix_entry_corrects", "org", "corrects_entry_id"),
        CheckConstraint(
            "(billed_run_id IS NULL) = (ingestion_id IS NOT NULL)", name="ck_entry_bearer"
        ),
    )

    id: UUID = Field(sa_type=Uuid, primary_key=True)
    sequence: int = Field(sa_column=Column(BigInteger, Identity(always=True), nullable=False))
    transaction_id: int = Field(
        sa_column=Column(Xid8(), nullable=False, server_default=text("pg_current_xact_id()"))
    )
    org: str = words()
    request_id: str = words()
    run_id: str | None = words(nullable=True)
    billed_run_id: str | None = words(nullable=True)
    """Null exactly where `ingestion_id` says what the money was for."""
    delegation_id: str | None = words(nullable=True)
    turn_id: str | None = words(nullable=True)
    kind: str = words()
    model: str = words()
    provider: str | None = words(nullable=True)
    key_id: str | None = words(nullable=True)
    input: int = bigint()
    output: int = bigint()
    cache_read: int = bigint()
    cache_write_5m: int = bigint()
    cache_write_1h: int = bigint()
    reasoning: int = bigint()
    audio_input: int = bigint()
    audio_output: int = bigint()
    reported_tokens: list[int] = Field(sa_type=ARRAY(BigInteger), nullable=False)
    cost_nanousd: int = bigint()
    request_count: int = Field(sa_type=SmallInteger, nullable=False)
    unpriced_count: int = Field(sa_type=SmallInteger, nullable=False)
    priced: bool = Field(sa_type=Boolean, nullable=False)
    reason: str | None = words(nullable=True)
    price_source: str = words()
    price_set: str = words()
    provider_amount: str | None = words(nullable=True)
    provider_currency: str | None = words(nullable=True)
    interrupted: bool = Field(nullable=False)
    month: str = words()
    occurred_at: datetime = moment()
    billed_at: datetime = moment()
    recorded_at: datetime = moment()
    ingestion_id: str | None = words(nullable=True)
    document_id: str | None = words(nullable=True)
    collection_id: str | None = words(nullable=True)
    provider_rate: str | None = words(nullable=True)
    late_month: str = Field(sa_type=Text, nullable=False, sa_column_kwargs={"server_default": ""})
    """The month whose caps bear it as well; empty: none. Entries of before 0004 do not say."""
    corrects_entry_id: UUID | None = Field(sa_type=Uuid, nullable=True)
    line_kind: str | None = words(nullable=True)
    """Of a correction that moved with its request: the kind of the line that it stands on."""


class Correction(LedgerTable, table=True):
    """Who corrected an entry, and why; the amount is an entry of its own under `id`."""

    __tablename__ = "correction"
    __table_args__ = (Index("ix_correction_id", "id", unique=True),)

    org: str = words(primary_key=True)
    correction_id: str = words(primary_key=True)
    id: UUID = Field(sa_type=Uuid, nullable=False)
    entry_id: UUID = Field(sa_type=Uuid, nullable=False)
    before_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)
    cost_nanousd: int = bigint()
    reason: str = words()
    reason_salt: bytes = Field(sa_type=LargeBinary, nullable=False)
    actor: str = words()
    """A pseudonym."""
    month: str = words()
    corrected_at: datetime = moment()


RUN_LINE = Table(
    "run_line",
    METADATA,
    *(Column(name, Text, nullable=False) for name in LINE_KEY),
    *sum_columns(),
    PrimaryKeyConstraint(*LINE_KEY),
)
"""A run's entries summed by what the breakdowns group by."""

SLOT_KEY = ("org", "grain_s", "begins_at", "dimension", "value")
SLOT_SUMS = ("cost_nanousd", "run_count", "floor_count", "present_count")

SPEND_SLOT = Table(
    "spend_slot",
    METADATA,
    Column("org", Text, nullable=False),
    Column("grain_s", Integer, nullable=False),
    Column("begins_at", DateTime(timezone=True), nullable=False),
    Column("dimension", Text, nullable=False),
    Column("value", Text, nullable=False),
    *(Column(name, Numeric(38, 0), nullable=False, server_default=text("0")) for name in SLOT_SUMS),
    PrimaryKeyConstraint(*SLOT_KEY),
)
"""What trees that began in a stretch of UTC spent (`domain/slots.py`)."""

UNCOUNTED_TREE = Table(
    "uncounted_tree",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("org", Text, nullable=False),
    Column("began_at", DateTime(timezone=True), nullable=False),
    Column("agent_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Index("ix_uncounted_tree_began", "org", "began_at"),
)
"""Trees that questions entered and no slot counts yet."""
