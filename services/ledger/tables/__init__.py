"""The ledger's tables as SQLModel sees them; the migrations are what runs.

`tests/integration` compares both. Sums are NUMERIC, single amounts BIGINT (design.md 3, *Money*).
"""
