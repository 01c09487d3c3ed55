"""The floor's tables as SQLModel sees them; `floor_0001.sql` is what a migration runs.

Every room has these in its own schema; `alembic check` compares both (tests/integration).
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Computed,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def room_metadata(schema: str) -> MetaData:
    """The metadata of a room: its schema, and the floor's tables in it."""
    metadata = MetaData(schema=schema, naming_convention=NAMING)
    _inbox(metadata)
    _outbox(metadata)
    _retry(metadata)
    _dead_letter(metadata)
    _audit(metadata)
    return metadata


def _moment(name: str, *, nullable: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _digest() -> Column[bytes]:
    return Column("digest", LargeBinary, Computed("sha256(body)", persisted=True), nullable=False)


def _inbox(metadata: MetaData) -> None:
    Table(
        "inbox",
        metadata,
        _text("org"),
        _text("producer"),
        _text("source"),
        _text("event_id"),
        Column("digest", LargeBinary, nullable=False),
        _moment("handled_at"),
        PrimaryKeyConstraint("org", "producer", "source", "event_id"),
        Index("ix_inbox_handled_at", "handled_at"),
    )


def _outbox(metadata: MetaData) -> None:
    Table(
        "outbox",
        metadata,
        Column("id", BigInteger, Identity(always=True), nullable=False),
        _text("subject"),
        _text("message_id"),
        Column("body", LargeBinary, nullable=False),
        Column(
            "created_at",
            DateTime(timezone=True),
            nullable=False,
            server_default=text("clock_timestamp()"),
        ),
        _moment("published_at", nullable=True),
        _text("stream", nullable=True),
        Column("stream_sequence", BigInteger, nullable=True),
        PrimaryKeyConstraint("id"),
        Index("ix_outbox_waiting", "id", postgresql_where=text("published_at IS NULL")),
    )


def _retry(metadata: MetaData) -> None:
    Table(
        "retry",
        metadata,
        Column("id", BigInteger, Identity(always=True), nullable=False),
        _text("org"),
        _text("stream"),
        Column("stream_sequence", BigInteger, nullable=False),
        _text("subject"),
        Column("body", LargeBinary, nullable=False),
        Column("tries", Integer, nullable=False),
        _text("reason"),
        _moment("next_at"),
        _moment("created_at"),
        _moment("stored_at"),
        _digest(),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("stream", "stream_sequence", "digest", name="uq_retry_message"),
        Index("ix_retry_next_at", "next_at"),
        Index("ix_retry_org", "org"),
    )


def _dead_letter(metadata: MetaData) -> None:
    Table(
        "dead_letter",
        metadata,
        Column("id", Uuid, nullable=False),
        _text("org"),
        _text("stream"),
        Column("stream_sequence", BigInteger, nullable=False),
        _text("subject"),
        Column("body", LargeBinary, nullable=False),
        _text("reason"),
        _text("message"),
        Column("tries", Integer, nullable=False),
        _moment("dead_at"),
        _moment("stored_at"),
        _moment("settled_at", nullable=True),
        _text("settled_as", nullable=True),
        _digest(),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("stream", "stream_sequence", "digest", name="uq_dead_letter_message"),
        Index("ix_dead_letter_waiting", "dead_at", postgresql_where=text("settled_at IS NULL")),
    )


def _audit(metadata: MetaData) -> None:
    Table(
        "audit_head",
        metadata,
        _text("chain"),
        Column("number", BigInteger, nullable=False, autoincrement=False),
        _text("hash"),
        PrimaryKeyConstraint("chain"),
    )
    Table(
        "audit_entry",
        metadata,
        _text("chain"),
        Column("number", BigInteger, nullable=False, autoincrement=False),
        Column("id", Uuid, nullable=False),
        _text("hash"),
        _text("previous", nullable=True),
        Column("body", LargeBinary, nullable=False),
        _moment("created_at"),
        PrimaryKeyConstraint("chain", "number"),
        UniqueConstraint("id", name="uq_audit_entry_id"),
    )
