"""What the HTTP side reaches beyond itself: database, bus, questions, clock, settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.gateway.http.listening import Listening
    from services.gateway.http.passwords import Passwords
    from services.gateway.store.api_keys import KeyCaller
    from shared.bus import Bus
    from shared.clock import Clock
    from shared.db import Database
    from shared.lookups import Lookups
    from shared.questions import Asker
    from shared.together import Together


@dataclass(frozen=True, slots=True)
class Ports:
    """One per process, made by `app.py`."""

    database: Database
    callers: Lookups
    """The same database, for looking callers up by their credential and nothing else."""
    keys: Together[str, KeyCaller]
    """Who is behind API keys, looked up there: many requests at once come with few keys."""
    bus: Bus
    asker: Asker
    clock: Clock
    passwords: Passwords
    listening: Listening
    deployment_key_sha256: str
    """Hex digest of the whole deployment key."""
    org_monthly_budget_nanousd: int | None
    """The cap of a new organization that names none; None: uncapped."""
    session_age: timedelta = timedelta(hours=12)
    """How long a sign-in lasts."""
    session_cookie_secure: bool = True
    """Whether a session's cookie is sent over HTTPS (and to this machine itself) only."""
