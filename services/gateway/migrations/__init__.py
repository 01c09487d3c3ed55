"""Alembic versions of the schema `gateway`; released ones are never edited."""
