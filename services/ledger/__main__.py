from __future__ import annotations

from services.ledger.ops import app

app()
