"""Signs of life that are a run's own; runs that questions entered into trees.

Revision ID: ledger_0011
Revises: ledger_0010
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from shared.migrate import run_sql

revision = "ledger_0011"
down_revision = "ledger_0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql(op, Path(__file__).with_name("ledger_0011.sql").read_text())


def downgrade() -> None:
    raise NotImplementedError("a release goes forward only: restore a backup instead")
