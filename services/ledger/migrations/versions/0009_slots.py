"""What trees spent, by when they began.

Revision ID: ledger_0009
Revises: ledger_0008
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from shared.migrate import run_sql

revision = "ledger_0009"
down_revision = "ledger_0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql(op, Path(__file__).with_name("ledger_0009.sql").read_text())


def downgrade() -> None:
    raise NotImplementedError("a release goes forward only: restore a backup instead")
