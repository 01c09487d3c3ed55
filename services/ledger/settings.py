"""What an operator sets for the ledger, by environment `RIENDA_LEDGER_<NAME>`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Read once, by `app.py`."""

    model_config = SettingsConfigDict(env_prefix="RIENDA_LEDGER_", extra="ignore")

    postgres_url: str
    """Where the runtime role `ledger` connects: `postgresql://user:password@host:port/database`."""
    postgres_owner_url: str = ""
    """The same as the owner of the schema; needed by `migrate` only."""
    postgres_connections_max: int = Field(default=8, ge=1, le=100)
    """Connections of one process."""
    nats_url: str
    """`nats://host:port`, or several with commas."""
    nats_user: str | None = None
    """The room's bus user."""
    nats_password: str | None = Field(default=None, repr=False)
    """Its password."""
    http_host: str = "127.0.0.1"
    """Where `/health`, `/ready` and `/metrics` listen."""
    http_port: int = Field(default=8101, ge=1, le=65_535)
    """Their port; each part of the room that runs beside others needs its own."""
    test_clock: Path | None = None
    """A file with seconds to add to the clock; for tests of clock steps only."""
