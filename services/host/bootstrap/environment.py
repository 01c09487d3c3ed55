"""The environment of every process that the host starts: who logs in where, and with what.

The one thing not to break: a process gets what it needs and nothing more. No room ever sees the
superuser's address, another room's password or the password of its own owner (only `migrate` does).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

from contracts.catalog import ROOMS
from services.host.bootstrap.keys import new_seed
from services.host.bootstrap.nats_config import BusLogins
from services.host.bootstrap.rights import JETSTREAM_PREFIX

DATABASE: Final = "rienda"
PASSED_ON: Final = ("PATH", "LANG", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONPATH")
"""What a child inherits: what finds programs and modules, no secret of whoever started it."""


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of this process's environment that its children get."""
    return {name: environ[name] for name in PASSED_ON if name in environ}


def owner_role(room: str) -> str:
    """The Postgres role that owns a room's schema and migrates it."""
    return f"{room}_owner"


def runtime_role(room: str) -> str:
    """The Postgres role that a room serves with; named as its schema."""
    return room


def all_roles(rooms: Sequence[str] = ROOMS) -> list[str]:
    """Every role of these rooms, owners included."""
    return [role(room) for room in rooms for role in (owner_role, runtime_role)]


@dataclass(frozen=True, slots=True)
class Logins:
    """Every secret of a deployment."""

    bus: BusLogins
    roles: dict[str, str]
    """Postgres role to password; two for each room."""


class SecretStore(Protocol):
    """What makes each secret once and keeps it (`DataDir.secret`)."""

    def __call__(self, name: str, *, make: Callable[[], str] | None = None) -> str:
        """Return the secret of that name; `make` says how, where it is no password."""
        ...


def make_logins(secret: SecretStore) -> Logins:
    """Take every seed and password from a store that makes each once."""

    def seed(user: str) -> str:
        return secret(f"nats_seed_{user}", make=new_seed)

    bus = BusLogins(
        bootstrap=seed("bootstrap"),
        system=seed("sys"),
        witness=seed("witness"),
        rooms={room: seed(room) for room in ROOMS},
    )
    return Logins(bus, {role: secret(f"postgres_{role}") for role in all_roles()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Where the servers are and who logs in."""

    nats_url: str
    """Without credentials."""
    postgres_admin_url: str
    """URL of a superuser (or of a role that may make roles and databases), any database."""
    logins: Logins
    database: str = DATABASE


def role_url(admin_url: str, *, role: str, password: str, database: str) -> str:
    """The URL of another role on the same server.

    The query (`sslmode=…`) stays behind: connections without one use no TLS, as `shared.db` has it.
    """
    parts = urlsplit(admin_url)
    place = parts.netloc.rpartition("@")[2]
    login = f"{role}:{quote(password, safe='')}"
    return urlunsplit((parts.scheme, f"{login}@{place}", f"/{database}", "", ""))


def room_environment(
    room: str, deployment: Deployment, *, http_port: int, http_host: str = "127.0.0.1"
) -> dict[str, str]:
    """What one process of a room is started with (`python -m services.<room> serve`)."""
    return _named(
        room,
        POSTGRES_URL=_role_url(deployment, runtime_role(room)),
        NATS_URL=deployment.nats_url,
        NATS_NKEY_SEED=deployment.logins.bus.rooms[room],
        NATS_JS_PREFIX=JETSTREAM_PREFIX,
        HTTP_HOST=http_host,
        HTTP_PORT=str(http_port),
    )


def migration_environment(room: str, deployment: Deployment) -> dict[str, str]:
    """What `python -m services.<room> migrate` is started with, on top of the room's own."""
    return _named(room, POSTGRES_OWNER_URL=_role_url(deployment, owner_role(room)))


def prepare_environment(deployment: Deployment) -> dict[str, str]:
    """What `python -m services.host.bootstrap prepare` is started with."""
    return _named(
        "bootstrap",
        POSTGRES_URL=deployment.postgres_admin_url,
        DATABASE=deployment.database,
        ROLE_PASSWORDS=json.dumps(deployment.logins.roles),
        NATS_URL=deployment.nats_url,
        NATS_NKEY_SEED=deployment.logins.bus.bootstrap,
    )


def serve_environment(
    deployment: Deployment,
    *,
    config_folder: Path | None,
    http_port: int,
    http_host: str = "127.0.0.1",
) -> dict[str, str]:
    """What `python -m services.host.bootstrap serve` is started with.

    `config_folder` is where the embedded server's configuration lies; None with an external server.
    """
    embedded = {
        "SYS_NKEY_SEED": deployment.logins.bus.system,
        "CONFIG_FOLDER": str(config_folder),
    }
    return _named(
        "bootstrap",
        NATS_URL=deployment.nats_url,
        NATS_NKEY_SEED=deployment.logins.bus.bootstrap,
        HTTP_HOST=http_host,
        HTTP_PORT=str(http_port),
        **(embedded if config_folder else {}),
    )


def _role_url(deployment: Deployment, role: str) -> str:
    return role_url(
        deployment.postgres_admin_url,
        role=role,
        password=deployment.logins.roles[role],
        database=deployment.database,
    )


def _named(who: str, **settings: str) -> dict[str, str]:
    return {f"RIENDA_{who.upper()}_{name}": value for name, value in settings.items()}
