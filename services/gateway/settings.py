"""Settings of the gateway, from the environment; read by `app.py` and `ops.py` only."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field, SecretStr, StringConstraints, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.gateway.domain.money import parse_usd
from shared.bus import PLAIN_PREFIX, BusAddress


class GatewaySettings(BaseSettings):
    """`RIENDA_GATEWAY_<FIELD>`; a wrong value stops the start and is named."""

    model_config = SettingsConfigDict(env_prefix="RIENDA_GATEWAY_", extra="ignore")

    postgres_url: SecretStr
    """`postgresql://` URL of the runtime role `gateway`."""
    postgres_owner_url: SecretStr | None = None
    """`postgresql://` URL of the role `gateway_owner`; needed by `migrate` only."""
    nats_url: str
    """`nats://host:port`."""
    nats_nkey_seed: SecretStr | None = None
    """Seed of the room's bus user; the embedded server asks for it."""
    nats_user: str | None = None
    """The room's user on a server of somebody else's, where it asks for one."""
    nats_password: SecretStr | None = None
    """Its password."""
    nats_js_prefix: str = PLAIN_PREFIX
    """What JetStream's API is called in the room's account; `bus` on the embedded server."""
    http_host: str = "127.0.0.1"
    """Address that is listened on."""
    http_port: Annotated[int, Field(ge=1, le=65_535)] = 8080
    """TCP port; each part of the room needs its own."""
    deployment_key_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")]
    """SHA-256 in hex of the whole deployment key `rd_…`."""
    org_monthly_budget_default_usd: str = Field(
        default="100",
        validation_alias=AliasChoices(
            "RIENDA_GATEWAY_ORG_MONTHLY_BUDGET_DEFAULT_USD", "DEFAULT_ORG_MONTHLY_BUDGET_USD"
        ),
    )
    """Cap of a new organization that names none: USD above 0, empty for none (facts.md 2.1)."""

    session_age_hours: Annotated[int, Field(ge=1, le=24 * 30)] = 12
    """How long a sign-in lasts; nothing prolongs it."""
    session_cookie_secure: bool = True
    """Browsers send the session's cookie over HTTPS only; false for plain HTTP in a closed net."""

    @field_validator("org_monthly_budget_default_usd")
    @classmethod
    def _is_a_cap(cls, value: str) -> str:
        if value.strip() and parse_usd(value.strip()) == 0:
            raise ValueError("write an amount above zero, or nothing for no cap")
        return value.strip()

    @property
    def org_monthly_budget_nanousd(self) -> int | None:
        """The default cap in nano-USD; None where new organizations have none."""
        text = self.org_monthly_budget_default_usd
        return parse_usd(text) if text else None

    def bus_address(self, room: str) -> BusAddress:
        """Where the bus is and who connects."""
        seed, password = self.nats_nkey_seed, self.nats_password
        return BusAddress(
            url=self.nats_url,
            name=room,
            nkey_seed=seed.get_secret_value() if seed else None,
            user=self.nats_user,
            password=password.get_secret_value() if password else None,
            js_prefix=self.nats_js_prefix,
        )
