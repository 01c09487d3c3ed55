"""The data directory: where everything of one installation lies, and who runs on it now.

    DIR/lock          held by the supervisor       DIR/postgres/, DIR/nats/  the servers
    DIR/secrets.json  passwords, made once         DIR/rooms/<room>.env      a room's settings
    DIR/ports.json    ports, chosen once           DIR/logs/<process>.log    output
    DIR/admin.json    the operator's credentials   DIR/state.json            of this run

The one thing not to break: nothing here is readable by others, not even for an instant, and a file
is either the old one or the new one, never half of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, TypeAdapter, ValidationError

from services.host.embedded.probe import choose_free_port
from services.host.embedded.process import ProcessIdentity
from services.host.errors import DataDirBroken, DataDirInUse, DataDirUnusable

SECRET_BYTES = 16
"""128 random bits, written as one letter and 32 hex digits."""
SECRET_LETTER = "p"  # noqa: S105 - a prefix, not a password

ProcessState = Literal["starting", "running", "waiting", "stopped"]
"""`waiting`: it died and its restart is due later; `stopped`: the supervisor ended it."""


class ProcessStatus(BaseModel):
    """One supervised process as `rienda status` shows it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    pid: int | None
    start_mark: str | None = None
    state: ProcessState
    restarts: int
    ready: bool


class SupervisorState(BaseModel):
    """What the running supervisor says about itself (`state.json`)."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pid: int
    start_mark: str
    started_at: AwareDatetime
    url: str | None
    ports: dict[str, int]
    processes: list[ProcessStatus]

    @property
    def identity(self) -> ProcessIdentity:
        """The supervisor's process; its pid alone could belong to somebody else by now."""
        return ProcessIdentity(self.pid, self.start_mark)


_Shape = TypeVar("_Shape")
_TEXTS = TypeAdapter(dict[str, str])
_PORTS = TypeAdapter(dict[str, int])


class DirLock:
    """The exclusive lock of one data directory; it ends with the last process that holds it.

    A fork (detaching) shares it: the starter may exit, and the detached process calls `claim`.
    """

    def __init__(self, descriptor: int) -> None:
        """Take an open descriptor on which the lock is already held."""
        self._descriptor = descriptor

    def claim(self) -> None:
        """Write this process's pid into the lock file, for the message of whoever comes second."""
        text = f"{os.getpid()}\n".encode("ascii")
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def release(self) -> None:
        """Let go of this process's share (closing: LOCK_UN would take it from a fork as well)."""
        os.close(self._descriptor)


class DataDir:
    """The layout of one data directory and its private files."""

    def __init__(self, path: Path) -> None:
        """Name the directory; nothing is made before `create`."""
        self.path = path.expanduser().absolute()

    @property
    def postgres_home(self) -> Path:
        """Home of the embedded PostgreSQL."""
        return self.path / "postgres"

    @property
    def nats_home(self) -> Path:
        """Home of the embedded nats-server."""
        return self.path / "nats"

    @property
    def admin_path(self) -> Path:
        """File with the operator's credentials."""
        return self.path / "admin.json"

    @property
    def ports_path(self) -> Path:
        """File with the ports chosen at the first start; delete it to choose new ones."""
        return self.path / "ports.json"

    def log_path(self, process: str) -> Path:
        """File that collects the output of one process."""
        return self.path / "logs" / f"{process}.log"

    def room_env_path(self, room: str) -> Path:
        """File with the environment of one room."""
        return self.path / "rooms" / f"{room}.env"

    def owner_env_path(self, room: str) -> Path:
        """File with what a room's schema is migrated, rebuilt and repaired with, on top of it."""
        return self.path / "rooms" / f"{room}-owner.env"

    def create(self) -> None:
        """Make the directory (0700) and its folders; what exists keeps its mode and content.

        Errors: DataDirUnusable when this user cannot.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.path, *(self.path / n for n in ("logs", "rooms"))):
                folder.mkdir(mode=0o700, exist_ok=True)
            with os.scandir(self.path):
                pass
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise DataDirUnusable(self.path, error.strerror or str(error)) from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise DataDirUnusable(self.path, "this user may not write there")

    @contextmanager
    def lock(self) -> Iterator[DirLock]:
        """Hold the directory for this process and its forks.

        Errors: DataDirInUse when another supervisor holds it; DataDirUnusable.
        """
        self.create()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(self.path / "lock", flags, 0o600)
        except PermissionError as error:
            raise DataDirUnusable(self.path, "it belongs to another user") from error
        lock = DirLock(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).strip()
            lock.release()
            raise self._in_use(int(holder) if holder.isdigit() else None) from error
        try:
            lock.claim()
            yield lock
        finally:
            lock.release()

    def _in_use(self, pid: int | None) -> DataDirInUse:
        """Name the holder; the state counts only when the holder itself wrote it."""
        state = self.read_state()
        url = state.url if state is not None and state.pid == pid else None
        return DataDirInUse(self.path, pid=pid, url=url)

    def secret(self, name: str, *, make: Callable[[], str] | None = None) -> str:
        """Return the secret of that name; it is made at the first call and then stays.

        Without `make` a letter, then hex: nats-server reads `$NAME` values as configuration, and a
        value that begins with a digit or a sign keeps it from starting (dependencies.md 1.4).
        """
        path = self.path / "secrets.json"
        kept = self._read(path, _TEXTS) or {}
        if name not in kept:
            kept[name] = make() if make else SECRET_LETTER + secrets.token_hex(SECRET_BYTES)
            write_private(path, json.dumps(kept, indent=2) + "\n")
        return kept[name]

    def port(self, name: str) -> int:
        """Return the port kept under that name; a free one is chosen at the first call.

        The same port at every start, so that clients find the server again.
        """
        kept = self.kept_ports()
        if name not in kept:
            port = choose_free_port()
            while port in kept.values():
                port = choose_free_port()
            self.keep_port(name, port)
            return port
        return kept[name]

    def kept_ports(self) -> dict[str, int]:
        """Return the ports that are kept, by name; empty before the first start."""
        return self._read(self.ports_path, _PORTS) or {}

    def keep_port(self, name: str, port: int) -> None:
        """Keep a port that was chosen elsewhere (for instance by `--port`)."""
        kept = self.kept_ports() | {name: port}
        write_private(self.ports_path, json.dumps(kept, indent=2) + "\n")

    def write_admin(self, credentials: Mapping[str, str]) -> None:
        """Replace `admin.json` (keys as in the issue: base_url, org, api_key, deployment_key)."""
        write_private(self.admin_path, json.dumps(dict(credentials), indent=2) + "\n")

    def read_admin(self) -> dict[str, str] | None:
        """Return the operator's credentials; None before the first start has written them."""
        return self._read(self.admin_path, _TEXTS)

    def write_state(self, state: SupervisorState) -> None:
        """Replace what the running supervisor says about itself."""
        write_private(self.path / "state.json", state.model_dump_json(indent=2) + "\n")

    def read_state(self) -> SupervisorState | None:
        """Return the last words of a supervisor; it may have died since (`read_running_state`)."""
        return self._read(self.path / "state.json", TypeAdapter(SupervisorState))

    def read_running_state(self) -> SupervisorState | None:
        """Return the state of a supervisor that runs now; None when there is none."""
        state = self.read_state()
        return state if state is not None and state.identity.is_alive() else None

    def clear_state(self) -> None:
        """Forget the state after an orderly end."""
        (self.path / "state.json").unlink(missing_ok=True)

    def _read(self, path: Path, shape: TypeAdapter[_Shape]) -> _Shape | None:
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return shape.validate_json(text)
        except ValidationError as error:
            raise DataDirBroken(path, str(error.errors()[0]["msg"])) from error


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, with mode 0600 from its first byte on, safe on disk."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
