"""A real nats-server as a child process, on fixed ports of 127.0.0.1.

What it is configured to allow is written by the caller (`write_config`); this file runs it. The one
thing not to break: `reload` returns only when the server has said that it uses the new file.

Source: dependencies.md 1.4 and 10.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

from services.host.datadir import write_private
from services.host.embedded.probe import LOOPBACK, POLL_S, http_get, until, wait_for_port
from services.host.embedded.process import (
    ProcessIdentity,
    read_log_tail,
    retire,
    spawn,
)
from services.host.errors import (
    EmbeddedServerFailed,
    EmbeddedServerMissing,
    LeftoverProcess,
    NatsConfigRefused,
)

SERVER = "nats"
PROGRAM = "nats-server"
NATS_BIN_SETTING = "RIENDA_NATS_BIN"
START_WAIT_S = 60.0
"""Ready within this time, reading its streams back included (usually 20 ms)."""
STOP_WAIT_S = 15.0
RELOAD_WAIT_S = 15.0
"""5 000 organizations reload in 0.9 s (dependencies.md 10)."""
REFUSAL = "Failed to reload server configuration: "
IDENTITY_FILE = "process.json"


def find_program() -> Path:
    """Return `nats-server`: RIENDA_NATS_BIN, else the virtual environment's, else the PATH's.

    Errors: EmbeddedServerMissing.
    """
    if chosen := os.environ.get(NATS_BIN_SETTING):
        candidate = Path(chosen)
        if not candidate.is_file():
            raise EmbeddedServerMissing(f"nats-server ({chosen})", setting=NATS_BIN_SETTING)
        return candidate
    candidate = Path(sysconfig.get_path("scripts")) / PROGRAM
    if candidate.is_file():
        return candidate
    if found := shutil.which(PROGRAM):
        return Path(found)
    raise EmbeddedServerMissing(PROGRAM, setting=NATS_BIN_SETTING)


class EmbeddedNats:
    """One nats-server: `start`, `stop`, `reload`, `is_alive`, `is_ready`."""

    name = SERVER

    def __init__(
        self,
        home: Path,
        *,
        port: int,
        http_port: int,
        write_config: Callable[[Path], Path],
        log_path: Path,
    ) -> None:
        """Take the fixed ports and the writer of the configuration.

        `write_config(home)` is called before every start and reload; it replaces the file in one
        step and returns its path. The file must name `host: 127.0.0.1`, `port`,
        `http: "127.0.0.1:<http_port>"` and a `store_dir` below `home`.
        """
        self.home = home.absolute()
        self.port = port
        self.http_port = http_port
        self.log_path = log_path
        self._write_config = write_config
        self._process: subprocess.Popen[bytes] | None = None
        self._reload_turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The server's pid; None while it does not run."""
        return self._process.pid if self._process is not None and self.is_alive() else None

    @property
    def url(self) -> str:
        """Address for clients, without credentials."""
        return f"nats://{LOOPBACK}:{self.port}"

    @property
    def monitor_url(self) -> str:
        """Address of the monitoring pages (`/varz`, `/jsz`, `/connz`, `/healthz`)."""
        return f"http://{LOOPBACK}:{self.http_port}"

    def is_alive(self) -> bool:
        """Tell whether the server runs."""
        return self._process is not None and self._process.poll() is None

    async def is_ready(self) -> bool:
        """Tell whether it accepts connections and JetStream is enabled."""
        if not self.is_alive():
            return False
        answer = await http_get(f"{self.monitor_url}/healthz?js-enabled-only=true")
        return answer is not None and answer[0] == 200

    async def start(self) -> None:
        """Write the configuration, bring the server up, return when it is ready.

        Errors: EmbeddedServerMissing, EmbeddedServerFailed, PortTaken, LeftoverProcess.
        """
        if self.is_alive():
            return
        program = find_program()
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._clear_leftover()
        for port in (self.port, self.http_port):
            await wait_for_port(SERVER, port)
        self._process = spawn(
            [program, "-c", self._write_config(self.home)],
            env={"PATH": os.environ.get("PATH", os.defpath), "TZ": "UTC"},
            log_path=self.log_path,
            death_signal=signal.SIGTERM,
        )
        self._remember(self._process.pid)
        await self._wait_until_ready()

    async def stop(self) -> None:
        """End the server in order; idempotent."""
        process = self._process
        if process is None:
            return
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(signal_number)
            if await until(lambda: process.poll() is not None, wait_s=STOP_WAIT_S):
                return
        raise LeftoverProcess(SERVER, process.pid)

    async def reload(self) -> None:
        """Write the configuration again and return when the server uses it.

        Service imports of an account that is new in this reload work only after a second one
        (dependencies.md 10, pitfall 2); that is the caller's to know.

        Errors: NatsConfigRefused when the server keeps its old configuration (it goes on serving).
        """
        async with self._reload_turn:
            loaded_before = await self._read_load_time()
            if self._process is None or loaded_before is None:
                raise NatsConfigRefused("the server is not running")
            offset = self.log_path.stat().st_size
            self._write_config(self.home)
            self._process.send_signal(signal.SIGHUP)
            ends_at = asyncio.get_running_loop().time() + RELOAD_WAIT_S
            while asyncio.get_running_loop().time() < ends_at:
                if refusal := self._find_refusal(offset):
                    raise NatsConfigRefused(refusal)
                if await self._read_load_time() not in (None, loaded_before):
                    return
                await asyncio.sleep(POLL_S)
            raise NatsConfigRefused(f"no answer within {RELOAD_WAIT_S:g} s")

    async def _read_load_time(self) -> str | None:
        answer = await http_get(f"{self.monitor_url}/varz")
        if answer is None or answer[0] != 200:
            return None
        return str(json.loads(answer[1])["config_load_time"])

    def _find_refusal(self, offset: int) -> str | None:
        for line in read_log_tail(self.log_path, offset=offset):
            if REFUSAL in line:
                return line.partition(REFUSAL)[2]
        return None

    async def _wait_until_ready(self) -> None:
        ends_at = asyncio.get_running_loop().time() + START_WAIT_S
        while self.is_alive() and asyncio.get_running_loop().time() < ends_at:
            if await self.is_ready():
                return
            await asyncio.sleep(POLL_S)
        reason = "it is not ready yet" if self.is_alive() else "it ended while starting"
        await self.stop()
        raise EmbeddedServerFailed(SERVER, reason, log_lines=read_log_tail(self.log_path))

    def _remember(self, pid: int) -> None:
        identity = ProcessIdentity.of(pid)
        if identity is not None:
            note = {"pid": identity.pid, "start_mark": identity.start_mark}
            write_private(self.home / IDENTITY_FILE, json.dumps(note))

    async def _clear_leftover(self) -> None:
        """Wait for the server of an earlier start, which the note next to its data names."""
        try:
            note = json.loads((self.home / IDENTITY_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        identity = ProcessIdentity(int(note["pid"]), str(note["start_mark"]))
        await retire("nats-server", identity, signals=(signal.SIGTERM, signal.SIGKILL))
