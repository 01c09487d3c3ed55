from __future__ import annotations

from services.ledger.ops.commands import app

app()
