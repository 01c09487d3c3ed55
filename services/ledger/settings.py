"""What an operator sets for the ledger, by environment `RIENDA_LEDGER_<NAME>`."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.bus import PLAIN_PREFIX, BusAddress


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
    nats_nkey_seed: str | None = Field(default=None, repr=False)
    """Seed of the room's bus user; the embedded server asks for it."""
    nats_user: str | None = None
    """The room's user on a server of somebody else's, where it asks for one."""
    nats_password: str | None = Field(default=None, repr=False)
    """Its password."""
    nats_js_prefix: str = PLAIN_PREFIX
    """What JetStream's API is called in the room's account; `bus` on the embedded server."""
    http_host: str = "127.0.0.1"
    """Where `/health`, `/ready` and `/metrics` listen."""
    http_port: int = Field(default=8101, ge=1, le=65_535)
    """Their port; each part of the room that runs beside others needs its own."""
    nok_per_usd: Decimal | None = Field(
        default=None,
        gt=0,
        lt=10**9,
        max_digits=32,
        allow_inf_nan=False,
        validation_alias=AliasChoices("RIENDA_LEDGER_NOK_PER_USD", "STAV_NOK_PER_USD"),
    )
    """Norwegian kroner per US dollar, kept by the operator: 10 divides kroner by 10. Without it
    amounts in kroner are not used. No rate is ever asked for anywhere (the seed)."""
    stale_run_reaped_after_seconds: int = Field(
        default=120,
        ge=0,
        le=31_536_000,
        validation_alias=AliasChoices(
            "RIENDA_LEDGER_STALE_RUN_REAPED_AFTER_SECONDS", "STALE_RUN_REAPED_AFTER_SECONDS"
        ),
    )
    """Seconds without a sign of life after which a run is failed; 0: never (facts.md 3.6)."""
    ingest_niceness: int = Field(default=10, ge=0, le=19)
    """How far `ingest` stands back on a busy machine (POSIX `nice`), where it is a process of its
    own: somebody waits for an answer, nobody for a batch. At 10 it keeps a tenth of a processor
    that is asked for by others all the time; 0: as important as answers."""
    reap_every_s: float = Field(default=60.0, ge=0.05, le=3_600)
    """Seconds between two looks for such runs."""
    test_clock: Path | None = None
    """A file with seconds to add to the clock; for tests of clock steps only."""

    @field_validator("nok_per_usd", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if isinstance(value, str) and not value.strip() else value

    @property
    def rates(self) -> dict[str, Decimal]:
        """Units of a currency per US dollar."""
        return {} if self.nok_per_usd is None else {"NOK": self.nok_per_usd}

    def bus_address(self, room: str) -> BusAddress:
        """Where the bus is and who connects."""
        return BusAddress(
            url=self.nats_url,
            name=room,
            nkey_seed=self.nats_nkey_seed,
            user=self.nats_user,
            password=self.nats_password,
            js_prefix=self.nats_js_prefix,
        )
