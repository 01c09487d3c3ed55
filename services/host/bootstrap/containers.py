"""The files of a deployment in containers (`compose.yaml`): a folder for each container.

The one thing not to break: a folder holds what its container alone may know, since each is a volume
of its own there. Secrets are made once; every call writes the same files from them (ADR 0019).
"""

from __future__ import annotations

import hashlib
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.catalog import ROOMS
from services.host.bootstrap.credentials import SERVER_FILE, BusUsers
from services.host.bootstrap.environment import (
    Deployment,
    make_logins,
    migration_environment,
    prepare_environment,
    room_environment,
    serve_environment,
)
from services.host.bootstrap.nats_config import Listen, server_text
from services.host.datadir import DataDir, write_private

EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - within a container; compose.yaml says what is published
ROOM_PORT: Final = 8100
"""Every process has a network of its own, so all of them listen on one port."""
NATS_PORT: Final = 4222
NATS_HTTP_PORT: Final = 8222
STORE: Final = Path("/data")
"""Where the volume of the streams is mounted."""
READABLE: Final = 0o644
KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the containers find one another."""

    nats_url: str = f"nats://nats:{NATS_PORT}"
    postgres_host: str = "postgres:5432"
    store: Path = STORE


def folders() -> tuple[str, ...]:
    """Names of the folders, each a volume: who mounts it may read all of it."""
    rooms = [name for room in ROOMS for name in (room, f"{room}-migrate")]
    return ("secrets", "admin", "postgres", "nats", "prepare", "bootstrap", *rooms)


def write_folders(root: Path, place: Place) -> None:
    """Write every folder's files below `root`; what was made before stays as it is.

    Errors: DataDirUnusable, DataDirBroken.
    """
    for name in folders():
        (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = DataDir(root / "secrets")
    logins = make_logins(kept.secret)
    password = kept.secret("postgres")
    key = kept.secret("deployment_key", make=_new_key)
    _write_readable(root / "postgres" / "password", password)
    write_private(root / "admin" / "deployment_key", key + "\n")
    listen = Listen(port=_port_of(place), http_port=NATS_HTTP_PORT, host=EVERYWHERE)
    write_private(root / "nats" / SERVER_FILE, server_text(listen, logins.bus, store=place.store))
    BusUsers(root / "nats").keep()
    deployment = Deployment(
        nats_url=place.nats_url,
        postgres_admin_url=f"postgresql://postgres:{password}@{place.postgres_host}/postgres",
        logins=logins,
    )
    _write_env(root / "prepare", prepare_environment(deployment))
    serving = serve_environment(
        deployment, config_folder=root / "nats", http_port=ROOM_PORT, http_host=EVERYWHERE
    )
    _write_env(root / "bootstrap", serving)
    for room in ROOMS:
        own = room_environment(room, deployment, http_port=ROOM_PORT, http_host=EVERYWHERE)
        if room == "gateway":
            digest = hashlib.sha256(key.encode()).hexdigest()
            own["RIENDA_GATEWAY_DEPLOYMENT_KEY_SHA256"] = digest
        _write_env(root / room, own)
        _write_env(root / f"{room}-migrate", own | migration_environment(room, deployment))


def _write_env(folder: Path, settings: Mapping[str, str]) -> None:
    """Write what a shell reads; a variable that the container was given goes first."""
    lines = [
        f'[ -n "${{{name}+set}}" ] || export {name}={shlex.quote(value)}'
        for name, value in sorted(settings.items())
    ]
    write_private(folder / "env", "\n".join(lines) + "\n")


def _write_readable(path: Path, text: str) -> None:
    """The database's image reads it as a user of its own; nobody else mounts that folder."""
    write_private(path, text + "\n")
    path.chmod(READABLE)
    path.parent.chmod(0o755)


def _port_of(place: Place) -> int:
    return int(place.nats_url.rpartition(":")[2])


def _new_key() -> str:
    return "rd_" + secrets.token_urlsafe(KEY_BYTES)
