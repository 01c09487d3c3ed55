"""The floor and the directory.

Revision ID: gateway_0001
Revises:
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from shared.migrate import FLOOR_0001, run_sql

revision = "gateway_0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql(op, FLOOR_0001.read_text())
    run_sql(op, Path(__file__).with_name("gateway_0001.sql").read_text())


def downgrade() -> None:
    raise NotImplementedError("a release goes forward only: restore a backup instead")
