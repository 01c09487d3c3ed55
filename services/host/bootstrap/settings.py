"""Settings of the bootstrap step, from the environment (`RIENDA_BOOTSTRAP_…`).

The one thing not to break: the superuser's address is read by `prepare` alone; the process that
stays up never has it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.catalog import CHANNEL_AGE_S
from services.host.bootstrap.environment import DATABASE, all_roles
from services.host.bootstrap.errors import BootstrapSettingsMissing
from services.host.bootstrap.floods import MESSAGES_PER_S_MAX, PAUSE_S
from shared.bus import BusAddress

PREFIX: Final = "RIENDA_BOOTSTRAP_"
NAME: Final = "bootstrap"
Port = Annotated[int, Field(ge=1, le=65_535)]
_Settings = TypeVar("_Settings", bound=BaseSettings)


def _require_all_roles(passwords: dict[str, SecretStr]) -> dict[str, SecretStr]:
    if missing := [role for role in all_roles() if role not in passwords]:
        raise ValueError(f"no password for {', '.join(missing)}")
    return passwords


class _BusSettings(BaseSettings):
    """The login that may do everything in the account."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    nats_url: str
    """Address of the bus, without credentials."""
    nats_nkey_seed: SecretStr | None = None
    """Seed of the user of the account that holds JetStream; the embedded server asks for it."""
    nats_user: str | None = None
    """The same user's name on a server of somebody else's, where it asks for one."""
    nats_password: SecretStr | None = None
    """Its password."""

    @property
    def address(self) -> BusAddress:
        """Where the bus is and who signs in, secrets in the clear."""
        return BusAddress(
            url=self.nats_url,
            name=NAME,
            nkey_seed=self.nats_nkey_seed.get_secret_value() if self.nats_nkey_seed else None,
            user=self.nats_user,
            password=self.nats_password.get_secret_value() if self.nats_password else None,
        )


class PrepareSettings(_BusSettings):
    """What `prepare` needs."""

    postgres_url: SecretStr
    """A login that may make roles and databases; any database of the server."""
    database: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")] = DATABASE
    """Name of the database that holds the rooms' schemas."""
    role_passwords: Annotated[dict[str, SecretStr], AfterValidator(_require_all_roles)]
    """JSON object: each role of each room (`ledger`, `ledger_owner`, …) to its password."""
    channel_age_s: Annotated[int, Field(ge=3_600, le=366 * 86_400)] = CHANNEL_AGE_S
    """Seconds that the stream CHANNEL keeps a message; also the bound that an erasure states."""


class ServeSettings(_BusSettings):
    """What `serve` needs."""

    sys_nkey_seed: SecretStr | None = None
    """Seed of the user of the embedded server's system account."""
    config_folder: Path | None = None
    """Where the embedded server's configuration lies; none with a server of somebody else's."""
    channel_nats_url: str | None = None
    """Address that channels are told, where it differs from `nats_url`."""
    channel_messages_per_s_max: Annotated[int, Field(ge=100)] = MESSAGES_PER_S_MAX
    """Messages a second that one channel may send; beyond it is cut and paused (ADR 0029)."""
    channel_pause_s: Annotated[float, Field(ge=0.1, le=3_600)] = PAUSE_S
    """The first pause of a channel that sent too much; the second is 6 times as long, others 30."""
    http_host: str = "127.0.0.1"
    """Where `/health`, `/ready` and `/metrics` listen."""
    http_port: Port
    """Port of the same."""


def read_settings(kind: Callable[[], _Settings]) -> _Settings:
    """Read settings of one kind.

    Errors: BootstrapSettingsMissing names the variables.
    """
    try:
        return kind()
    except ValidationError as error:
        problems = [_problem(item) for item in error.errors(include_input=False)]
        raise BootstrapSettingsMissing(problems) from None


def _problem(item: Any) -> str:
    name = PREFIX + "_".join(str(part) for part in item["loc"]).upper()
    return f"{name}: {item['msg'].lower()}"
