"""A real PostgreSQL as a child process, on one fixed port of 127.0.0.1.

Data lives in `<home>/data` and survives restarts and crashes. The one thing not to break: the
caller holds the lock of the data directory, so whatever still runs on it belongs to an earlier
start of ours that is ending; it is waited for, never raced.

Source: dependencies.md 1.2 and 1.3 (tried recipe and its pitfalls).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

from services.host.embedded.account import (
    SERVER,
    STAGE_ROOT,
    Placement,
    choose_placement,
    take_ownership,
)
from services.host.embedded.probe import LOOPBACK, until, wait_for_port
from services.host.embedded.process import (
    LEFTOVER_WAIT_S,
    ProcessIdentity,
    is_pid_occupied,
    read_command_lines,
    read_log_tail,
    read_program_name,
    read_working_directory,
    retire,
    spawn,
)
from services.host.errors import EmbeddedServerFailed, LeftoverProcess

START_WAIT_S = 60.0
"""Ready within this time, recovery after a crash included (usually 0.2 s)."""
STOP_WAIT_S = 15.0
WAL_SEGMENT_MIB = 4
"""A young server fills a new segment with zeros and flushes it while every commit waits: 20 to 100
ms at the default of 16, a few at 4. Data of before keeps its own size."""
CONNECTIONS_MAX = 200
SUPERUSER = "postgres"
ORPHAN_PATIENCE_S = 2.0
"""Backends that outlive their postmaster end at once unless they are busy computing."""
RETRY_S = 0.2
STILL_IN_USE = ("is still in use", 'lock file "postmaster.pid" already exists')
"""What a new postmaster writes while the rest of the old one has not gone yet."""
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class EmbeddedPostgres:
    """One PostgreSQL server: `start`, `stop`, `is_alive`, `is_ready`; start again after a crash."""

    name = SERVER

    def __init__(
        self,
        home: Path,
        *,
        port: int,
        password: str,
        log_path: Path,
        stage_root: Path = STAGE_ROOT,
        flushes: bool = True,
    ) -> None:
        """Take what the caller keeps: the same home, port and superuser password at every start.

        `password` matters at the first start, which gives it to the superuser. Only tests do not
        flush: what a killed process wrote is still the system's, a power cut would lose it.
        """
        self.home = home.absolute()
        self.port = port
        self.log_path = log_path
        self._password = password
        self._stage_root = stage_root
        self._fsync = "on" if flushes else "off"
        self._placement: Placement | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The postmaster's pid; None while it does not run."""
        return self._process.pid if self._process is not None and self.is_alive() else None

    @property
    def superuser_dsn(self) -> str:
        """URL of the superuser: for bootstrap and operators only, never for a room.

        `sslmode=disable` is a must: the wheel has no TLS, and trying reads files below HOME.
        """
        login = f"{SUPERUSER}:{quote(self._password, safe='')}"
        return f"postgresql://{login}@{LOOPBACK}:{self.port}/postgres?sslmode=disable"

    @property
    def data(self) -> Path:
        """The data directory in use (elsewhere than `home` when it had to be staged)."""
        return self._place().home / "data"

    def is_alive(self) -> bool:
        """Tell whether the postmaster runs."""
        return self._process is not None and self._process.poll() is None

    async def is_ready(self) -> bool:
        """Tell whether it accepts connections, by the status line of its own pid file."""
        return self._is_accepting()

    async def start(self) -> None:
        """Bring the server up and return when it accepts connections; make the data at first.

        Errors: EmbeddedServerMissing, EmbeddedServerFailed, PortTaken, LeftoverProcess.
        """
        if self.is_alive():
            return
        place = self._place()
        place.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        take_ownership(place.home, place.owner)
        await self._clear_leftovers()
        await wait_for_port(SERVER, self.port)
        if not (self.data / "PG_VERSION").exists():
            await self._create_data()
        take_ownership(self.data, place.owner)
        await self._launch_until_ready()

    async def stop(self) -> None:
        """End the server in order (open sessions are cut, data is flushed); idempotent.

        SIGINT is the fast shutdown; SIGTERM would wait for clients to leave.
        """
        process = self._process
        if process is None:
            return
        for signal_number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(signal_number)
            if await until(lambda: process.poll() is not None, wait_s=STOP_WAIT_S):
                return
        raise LeftoverProcess(SERVER, process.pid)

    def _place(self) -> Placement:
        if self._placement is None:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._placement = choose_placement(self.home, stage_root=self._stage_root)
        return self._placement

    async def _launch_until_ready(self) -> None:
        """Start the postmaster, again while the rest of an old one still holds shared memory."""
        place = self._place()
        loop = asyncio.get_running_loop()
        retry_until = loop.time() + LEFTOVER_WAIT_S
        while not await self._launch(place):
            reason = "it is not ready yet" if self.is_alive() else "it ended while starting"
            told = read_log_tail(self.log_path)
            blocked = any(words in line for line in told for words in STILL_IN_USE)
            if self.is_alive() or not blocked or loop.time() >= retry_until:
                await self.stop()
                raise EmbeddedServerFailed(SERVER, reason, log_lines=told)
            await asyncio.sleep(RETRY_S)

    async def _launch(self, place: Placement) -> bool:
        """Start the postmaster once; False when it ended or was not ready in time."""
        process = spawn(
            [*place.prefix, place.programs / "postgres", *self._arguments()],
            env=_environment(),
            log_path=self.log_path,
            death_signal=signal.SIGINT,
            account=place.account,
        )
        self._process = process
        await until(lambda: self._is_accepting() or process.poll() is not None, wait_s=START_WAIT_S)
        return self._is_accepting()

    def _arguments(self) -> list[str]:
        settings = {
            "port": self.port,
            "listen_addresses": LOOPBACK,
            # Sockets have a path limit of 107 bytes and nobody needs one.
            "unix_socket_directories": "",
            "max_connections": CONNECTIONS_MAX,
            "fsync": self._fsync,
            "cluster_name": self._cluster_name,
            "log_line_prefix": "%m [%p] %q%u@%d ",
            "log_timezone": "UTC",
            "timezone": "UTC",
        }
        arguments = ["-D", str(self.data)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        return arguments

    def _is_accepting(self) -> bool:
        """Read line 8 of postmaster.pid, as pg_ctl does; line 1 proves that it is our server's."""
        if self._process is None or self._process.poll() is not None:
            return False
        lines = _read_pid_file(self.data)
        return (
            len(lines) >= 8
            and lines[0].strip() == str(self._process.pid)
            and lines[7].strip() == "ready"
        )

    async def _create_data(self) -> None:
        """Run initdb beside and rename, so that an interrupted one never looks like data."""
        place = self._place()
        fresh = place.home / "data-new"
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir(mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=place.home, prefix="password-") as password:
            password.write(self._password)
            password.flush()
            for path in (fresh, Path(password.name)):
                if place.account is not None:
                    os.chown(path, place.account.uid, place.account.gid)
            process = spawn(
                [
                    *place.prefix,
                    place.programs / "initdb",
                    *("-D", fresh, "-U", SUPERUSER, "-A", "scram-sha-256"),
                    *(f"--pwfile={password.name}", "-E", "UTF8", "--no-sync"),
                    *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
                    f"--wal-segsize={WAL_SEGMENT_MIB}",
                ],
                env=_environment(),
                log_path=self.log_path,
                account=place.account,
            )
            try:
                await until(lambda: process.poll() is not None, wait_s=START_WAIT_S)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
        if process.returncode != 0:
            tail = read_log_tail(self.log_path)
            raise EmbeddedServerFailed(SERVER, "initdb failed", log_lines=tail)
        fresh.rename(self.data)

    async def _clear_leftovers(self) -> None:
        """Wait for the postmaster of an earlier start and its backends; drop a stale pid file."""
        lines = _read_pid_file(self.data)
        if lines and lines[0].strip().isdigit():
            await self._clear_postmaster(int(lines[0]))
        for pid, title in read_command_lines().items():
            orphan = ProcessIdentity.of(pid)
            if orphan is not None and title.startswith(f"postgres: {self._cluster_name}: "):
                await retire(
                    "A PostgreSQL backend",
                    orphan,
                    signals=(signal.SIGTERM, signal.SIGKILL),
                    patience_s=ORPHAN_PATIENCE_S,
                )

    async def _clear_postmaster(self, pid: int) -> None:
        """Wait for the holder of the pid file if it is a server, drop the file if it is stale.

        A server is asked to end only when it surely runs on this data; when the system hides what
        it runs on, only waiting is safe.
        """
        identity = ProcessIdentity.of(pid)
        is_ours = str(self.data) in read_command_lines().get(pid, "")
        where = read_working_directory(pid)
        is_hidden = where is None or where == self.data.resolve()
        if identity is not None and read_program_name(pid) == "postgres" and (is_ours or is_hidden):
            signals = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL) if is_ours else ()
            await retire("PostgreSQL", identity, signals=signals)
        pid_file = self.data / "postmaster.pid"
        if is_pid_occupied(pid) and pid_file.exists():
            # A stranger or a zombie has the pid now; PostgreSQL would take it for a live server.
            pid_file.unlink()

    @property
    def _cluster_name(self) -> str:
        """Name in the title of every backend, by which orphans of this data are found."""
        return "rienda-" + hashlib.sha256(str(self.data).encode()).hexdigest()[:12]


def _read_pid_file(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def _environment() -> dict[str, str]:
    """Pass on only what finds programs; PG* variables and secrets of the caller stay outside."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C", "TZ": "UTC"}
