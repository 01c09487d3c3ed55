"""What is found by a key of its own begins with it.

Revision ID: ledger_0010
Revises: ledger_0009
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from shared.migrate import run_sql

revision = "ledger_0010"
down_revision = "ledger_0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql(op, Path(__file__).with_name("ledger_0010.sql").read_text())


def downgrade() -> None:
    raise NotImplementedError("a release goes forward only: restore a backup instead")
