"""Held open for the migration of this number.

Revision ID: ledger_0008
Revises: ledger_0007
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from shared.migrate import run_sql

revision = "ledger_0008"
down_revision = "ledger_0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql(op, Path(__file__).with_name("ledger_0008.sql").read_text())


def downgrade() -> None:
    raise NotImplementedError("a release goes forward only: restore a backup instead")
