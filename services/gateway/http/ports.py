"""What the HTTP side reaches beyond itself: database, bus, questions, clock, settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.bus import Bus
    from shared.clock import Clock
    from shared.db import Database
    from shared.questions import Asker


@dataclass(frozen=True, slots=True)
class Ports:
    """One per process, made by `app.py`."""

    database: Database
    bus: Bus
    asker: Asker
    clock: Clock
    deployment_key_sha256: str
    """Hex digest of the whole deployment key."""
    org_monthly_budget_nanousd: int | None
    """The cap of a new organization that names none; None: uncapped."""
