"""Strict mode: what is held under caps, what exceeded them, and how often agents asked."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    Numeric,
    Text,
    Uuid,
    text,
)
from sqlmodel import Field

from services.ledger.tables.columns import LedgerTable, bigint, moment, words


class Hold(LedgerTable, table=True):
    """What one request may cost at most, held under its caps until it is closed."""

    __tablename__ = "hold"
    __table_args__ = (
        Index("ix_hold_held", "org", text("held_at DESC"), "request_id"),
        Index("ix_hold_open", "expires_at", postgresql_where=text("closed_at IS NULL")),
    )

    org: str = words(primary_key=True)
    request_id: str = words(primary_key=True)
    run_id: str | None = words(nullable=True)
    channel_id: str | None = words(nullable=True)
    model: str = words()
    amount_nanousd: int = bigint()
    output_tokens_max: int | None = bigint(nullable=True)
    scopes: list[str] = Field(sa_type=ARRAY(Text), nullable=False)
    scope_ids: list[str] = Field(sa_type=ARRAY(Text), nullable=False)
    """Its caps, in step with `scopes`; all in `month` but a run's own."""
    month: str = words()
    state: str = words()
    held_at: datetime = moment()
    expires_at: datetime = moment()
    closed_at: datetime | None = moment(nullable=True)
    actual_nanousd: int | None = bigint(nullable=True)


class CapState(LedgerTable, table=True):
    """The row that is locked to decide under a cap."""

    __tablename__ = "cap_state"

    org: str = words(primary_key=True)
    scope: str = words(primary_key=True)
    scope_id: str = words(primary_key=True)
    month: str = words(primary_key=True)
    held_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)
    """Holds, closed ones too as long as their settlement is not folded: never too little."""
    overrun_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)


class Settlement(LedgerTable, table=True):
    """A closed hold that is still in a cap's sum."""

    __tablename__ = "settlement"
    __table_args__ = (Index("ix_settlement_cap", "org", "scope", "scope_id", "month"),)

    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    org: str = words()
    scope: str = words()
    scope_id: str = words()
    month: str = words()
    amount_nanousd: int = bigint()


class Overrun(LedgerTable, table=True):
    """By how much a cap was exceeded, and why."""

    __tablename__ = "overrun"
    __table_args__ = (Index("ix_overrun_noted", "org", text("noted_at DESC"), "id"),)

    id: UUID = Field(sa_type=Uuid, primary_key=True)
    org: str = words()
    scope: str = words()
    scope_id: str = words()
    name: str = words()
    month: str = words()
    """Empty for a run's own cap."""
    cause: str = words()
    amount_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)
    limit_nanousd: int = bigint()
    spent_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)
    held_nanousd: int = Field(sa_type=Numeric(38, 0), nullable=False)
    request_id: str | None = words(nullable=True)
    noted_at: datetime = moment()


class RequestRate(LedgerTable, table=True):
    """Requests that an agent was allowed in the last minute, by second."""

    __tablename__ = "request_rate"

    org: str = words(primary_key=True)
    agent_id: str = words(primary_key=True)
    second: int = bigint()
    """Of the last count, since the epoch."""
    counts: list[int] = Field(sa_type=ARRAY(Integer), nullable=False)
