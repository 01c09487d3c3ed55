"""The ledger's tables as SQLModel sees them; the migrations are what runs.

`tests/integration` compares both. Sums are NUMERIC, single amounts BIGINT (design.md 3, *Money*).
"""

from services.ledger.tables import directory, money
from services.ledger.tables.columns import METADATA
from services.ledger.tables.runs import RUN_MOMENTS, RUN_TEXTS, RUN_TEXTS_REQUIRED

__all__ = ["METADATA", "RUN_MOMENTS", "RUN_TEXTS", "RUN_TEXTS_REQUIRED", "directory", "money"]
