"""What the ledger's tables are made of."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Index,
    Numeric,
    Text,
    text,
)
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


def moment(*, nullable: bool = False) -> Any:
    """An instant: timestamptz."""
    return Field(sa_type=DateTime(timezone=True), nullable=nullable)


def words(*, nullable: bool = False, primary_key: bool = False) -> Any:
    """Text of any length."""
    return Field(sa_type=Text, nullable=nullable, primary_key=primary_key)


def bigint(*, nullable: bool = False) -> Any:
    """A 64-bit integer: an amount of one thing."""
    return Field(sa_type=BigInteger, nullable=nullable)


def index_where(given: str, name: str, *columns: str) -> Index:
    """An index over the rows in which a column is given."""
    return Index(name, *columns, postgresql_where=text(f"{given} IS NOT NULL"))


def sum_columns(prefix: str = "") -> list[Column[Any]]:
    """A NUMERIC column for each sum that an amount is made of."""
    return [
        Column(f"{prefix}{name}", Numeric(38, 0), nullable=False, server_default=text("0"))
        for name in COLUMNS
    ]


class LedgerTable(SQLModel):
    """Base of the room's tables."""

    metadata = METADATA


LINE_KEY = ("org", "run_id", "month", "provider", "model", "key_id", "kind", "late_month")
"""What a line of a run is named by."""
