"""The bus users on disk: one private record, and the configuration that is written from it.

Two processes write here: whoever starts the server, and the bootstrap process that makes channel
users while it runs. The one thing not to break: both hold the file lock, the record is written
first, and the configuration is never anything but its image.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from services.host.bootstrap.nats_config import (
    STORE_FOLDER,
    USERS_FILE,
    BusLogins,
    Listen,
    server_text,
    users_text,
)
from services.host.datadir import write_private
from services.host.errors import DataDirBroken

SERVER_FILE = "nats.conf"
RECORD_FILE = "users.json"
LOCK_FILE = "users.lock"


class UsersRecord(BaseModel):
    """Every user of the account with its password (`users.json`, mode 0600)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap: str
    system: str
    rooms: dict[str, str]
    channels: dict[str, str] = {}
    """`<org>.<channel>` to password."""


class BusUsers:
    """The record of one server, in the folder of its configuration."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is written before `keep` or `change_channels`."""
        self._folder = folder
        self._path = folder / RECORD_FILE

    def channels(self) -> dict[str, str]:
        """Return the channel users; empty before the first.

        Errors: DataDirBroken.
        """
        record = self._read()
        return dict(record.channels) if record else {}

    def keep(self, logins: BusLogins) -> None:
        """Record the deployment's own users, keep the channels, write `users.conf`.

        Errors: DataDirBroken.
        """
        with self._locked():
            old = self._read()
            self._write(
                UsersRecord(
                    bootstrap=logins.bootstrap,
                    system=logins.system,
                    rooms=dict(logins.rooms),
                    channels=old.channels if old else {},
                )
            )

    def change_channels(self, changes: Mapping[str, str | None]) -> None:
        """Give channel users a password, or remove them (None), and write `users.conf`.

        Errors: DataDirBroken, also when the server was never configured from this folder.
        """
        with self._locked():
            record = self._read()
            if record is None:
                raise DataDirBroken(self._path, "it is missing")
            merged: dict[str, str | None] = {**record.channels, **changes}
            kept = {name: password for name, password in merged.items() if password is not None}
            self._write(record.model_copy(update={"channels": kept}))

    def _write(self, record: UsersRecord) -> None:
        logins = BusLogins(record.bootstrap, record.system, record.rooms)
        text = users_text(logins, record.channels)
        write_private(self._path, record.model_dump_json(indent=2) + "\n")
        write_private(self._folder / USERS_FILE, text)

    def _read(self) -> UsersRecord | None:
        try:
            return UsersRecord.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise DataDirBroken(self._path, str(error.errors()[0]["msg"])) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the folder; others hold it for two small writes at most."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._folder / LOCK_FILE, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Writes the configuration of the embedded server; the `write_config` of `EmbeddedNats`."""

    listen: Listen
    logins: BusLogins

    def __call__(self, home: Path) -> Path:
        """Write `nats.conf` and `users.conf` into `home`, channel users included.

        Errors: DataDirBroken.
        """
        BusUsers(home).keep(self.logins)
        path = home / SERVER_FILE
        store = home.absolute() / STORE_FOLDER
        write_private(
            path, server_text(self.listen, store=store, system_password=self.logins.system)
        )
        return path
