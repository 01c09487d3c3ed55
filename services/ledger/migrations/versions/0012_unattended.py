"""What is counted of work that nobody waits for, by person, routine and goal.

Revision ID: ledger_0012
Revises: ledger_0011
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from shared.migrate import run_sql

revision = "ledger_0012"
down_revision = "ledger_0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql(op, Path(__file__).with_name("ledger_0012.sql").read_text())


def downgrade() -> None:
    raise NotImplementedError("a release goes forward only: restore a backup instead")
