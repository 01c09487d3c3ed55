"""The bus users of channels on disk: one private record, and the configuration written from it.

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
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from services.host.bootstrap.accounts import BUS
from services.host.bootstrap.nats_config import (
    ORGANIZATIONS_FILE,
    STORE_FOLDER,
    BusLogins,
    Listen,
    organizations_text,
    server_text,
)
from services.host.datadir import write_private
from services.host.errors import DataDirBroken

SERVER_FILE: Final = "nats.conf"
RECORD_FILE: Final = "users.json"
LOCK_FILE: Final = "users.lock"
ONE_ACCOUNT_FILE: Final = "users.conf"
"""Written when the bus was one account; it held passwords."""
ONE_ACCOUNT: Final = "RIENDA"
"""The account that held the streams then."""


class UsersRecord(BaseModel):
    """Every channel's user (`users.json`, mode 0600)."""

    # Records from before there were keys also hold the deployment's own passwords: dropped.
    model_config = ConfigDict(frozen=True, extra="ignore")

    channels: dict[str, str] = {}
    """`<org>.<channel>` to its public key; to its password in a record from before keys, which
    holds until the channel is issued again."""


class BusUsers:
    """The record of one server, in the folder of its configuration."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is written before `keep` or `change_channels`."""
        self.paused: frozenset[str] = frozenset()
        """Channel users that the configuration leaves out for a while; no part of the record."""
        self._folder = folder
        self._path = folder / RECORD_FILE

    def channels(self) -> dict[str, str]:
        """Return the channel users; empty before the first.

        Errors: DataDirBroken.
        """
        record = self._read()
        return dict(record.channels) if record else {}

    def keep(self) -> None:
        """Begin the record, or keep what is there, and write the configuration from it.

        Errors: DataDirBroken.
        """
        with self._locked():
            self._write(self._read() or UsersRecord())
            (self._folder / ONE_ACCOUNT_FILE).unlink(missing_ok=True)

    def change_channels(self, changes: Mapping[str, str | None]) -> None:
        """Give channel users a public key, or remove them (None), and write the configuration.

        Errors: DataDirBroken, also when the server was never configured from this folder.
        """
        with self._locked():
            record = self._read()
            if record is None:
                raise DataDirBroken(self._path, "it is missing")
            merged: dict[str, str | None] = {**record.channels, **changes}
            kept = {name: key for name, key in merged.items() if key is not None}
            self._write(UsersRecord(channels=kept))

    def _write(self, record: UsersRecord) -> None:
        text = organizations_text(record.channels, paused=self.paused)
        write_private(self._path, record.model_dump_json(indent=2) + "\n")
        write_private(self._folder / ORGANIZATIONS_FILE, text)

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
        """Write `nats.conf` and `organizations.conf` into `home`.

        Errors: DataDirBroken.
        """
        BusUsers(home).keep()
        path, store = home / SERVER_FILE, home.absolute() / STORE_FOLDER
        _move_one_account(store)
        write_private(path, server_text(self.listen, self.logins, store=store))
        return path


def _move_one_account(store: Path) -> None:
    """Take over the streams of a directory whose bus was one account.

    The server keeps an account's streams in a folder of its name; a server that runs has either
    none of the old name or both, so that this does something only before a start.
    """
    accounts = store / "jetstream"
    if (accounts / ONE_ACCOUNT).is_dir() and not (accounts / BUS).exists():
        (accounts / ONE_ACCOUNT).rename(accounts / BUS)
