"""Runs with the sums of their entries, and the facts of their lives."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Computed,
    DateTime,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    desc,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from services.ledger.tables.columns import (
    METADATA,
    sum_columns,
)
from services.ledger.tables.run_names import RUN_MOMENTS, RUN_TEXTS, RUN_TEXTS_REQUIRED

RUN_TRANSITION = Table(
    "run_transition",
    METADATA,
    *(Column(name, Text, nullable=False) for name in ("org", "run_id", "kind", "digest")),
    *(Column(name, DateTime(timezone=True), nullable=False) for name in ("at", "recorded_at")),
    *(Column(name, DateTime(timezone=True)) for name in ("sign_at", "watermark_at")),
    PrimaryKeyConstraint("org", "run_id", "kind", "at", "digest"),
)
"""A park, a resume, a verdict on a run's silence, or a deletion; inserted, never changed."""

WATERMARK = Table(
    "watermark",
    METADATA,
    Column("stream", Text, primary_key=True),
    Column("handled_until", DateTime(timezone=True), nullable=False),
    Column("read_at", DateTime(timezone=True), nullable=False),
)
"""Up to when everything that a stream stored is handled, by the server's clock."""

UNPLACED_RUN = Table(
    "unplaced_run",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("org", Text, nullable=False),
    Column("run_id", Text, nullable=False),
)
"""Runs that questions entered into trees of others: put where they belong by somebody later."""

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
    Column("counted_departments", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("cut_run_ids", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column(
        "shown_start",
        DateTime(timezone=True),
        Computed("coalesce(started_at, first_sign_at)", persisted=True),
        nullable=True,
    ),
    *sum_columns("own_"),
    *sum_columns("tree_"),
    PrimaryKeyConstraint("org", "run_id"),
    Index(
        "ix_run_top_level",
        "org",
        desc("shown_start"),
        "run_id",
        postgresql_where=text("run_id = root_run_id"),
    ),
    Index("ix_run_start", "org", desc("shown_start"), "run_id"),
    Index("ix_run_root", "root_run_id", "org"),
    Index(
        "ix_run_agent",
        "org",
        "agent_id",
        desc("shown_start"),
        "run_id",
        postgresql_where=text("run_id = root_run_id"),
    ),
    Index(
        "ix_run_starter",
        "org",
        "started_by_user_id",
        "shown_start",
        "run_id",
        postgresql_where=text("run_id = root_run_id AND started_by_user_id IS NOT NULL"),
    ),
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
        "ix_run_deleted",
        "org",
        "run_id",
        postgresql_where=text("deleted_at IS NOT NULL"),
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
