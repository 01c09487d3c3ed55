"""Alembic versions of the ledger's schema."""
