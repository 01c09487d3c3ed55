"""People, departments, sessions, invitations, and what channels and people hear.

Revision ID: gateway_0002
Revises: gateway_0001
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from shared.migrate import run_sql

revision = "gateway_0002"
down_revision = "gateway_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql(op, Path(__file__).with_name("gateway_0002.sql").read_text())


def downgrade() -> None:
    raise NotImplementedError("a release goes forward only: restore a backup instead")
