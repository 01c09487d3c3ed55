"""Accounts, roles, schemas, streams and durables: what must stand before a room starts."""
