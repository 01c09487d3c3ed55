"""What the supervisor can run: the shape it expects, and one program that is kept running.

The one thing not to break: `stop` always ends; a program that ignores SIGTERM is killed.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.host.embedded.probe import http_get, until
from services.host.embedded.process import spawn
from services.host.errors import LeftoverProcess

STOP_GRACE_S = 15.0
"""Between SIGTERM and SIGKILL, for each child."""
KILL_WAIT_S = 5.0

log = logging.getLogger("rienda.host.supervisor")


class Supervised(Protocol):
    """What the supervisor can run: the embedded servers and `Child`."""

    log_path: Path

    @property
    def name(self) -> str:
        """Name in `status`, unique in one supervisor."""

    @property
    def pid(self) -> int | None:
        """Its pid while it runs."""

    def is_alive(self) -> bool:
        """Tell whether it runs."""

    async def is_ready(self) -> bool:
        """Tell whether it can serve."""

    async def start(self) -> None:
        """Start it, or start it again on the same port."""

    async def stop(self) -> None:
        """End it in order; idempotent."""


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """A program to keep running; `env` is its whole environment, nothing is inherited."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log_path: Path
    ready_url: str | None = None


class Child:
    """One running program of a `ChildSpec`; ready when `ready_url` says 200, or else when alive."""

    def __init__(self, spec: ChildSpec) -> None:
        """Take the description; nothing starts yet."""
        self.spec = spec
        self.name = spec.name
        self.log_path = spec.log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its pid while it runs."""
        return self._process.pid if self._process is not None and self.is_alive() else None

    def is_alive(self) -> bool:
        """Tell whether it runs."""
        return self._process is not None and self._process.poll() is None

    async def is_ready(self) -> bool:
        """Ask it whether it can serve."""
        if not self.is_alive() or self.spec.ready_url is None:
            return self.is_alive()
        answer = await http_get(self.spec.ready_url)
        return answer is not None and answer[0] == 200

    async def start(self) -> None:
        """Start it without waiting for it to be ready."""
        if not self.is_alive():
            self._process = spawn(self.spec.argv, env=self.spec.env, log_path=self.log_path)

    async def stop(self) -> None:
        """Ask it to end, and kill its whole process group after the grace.

        Errors: LeftoverProcess when even that does not end it.
        """
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        if await until(lambda: process.poll() is not None, wait_s=STOP_GRACE_S):
            return
        log.warning("%s did not end within %g s and is killed", self.name, STOP_GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
        if not await until(lambda: process.poll() is not None, wait_s=KILL_WAIT_S):
            raise LeftoverProcess(self.name, process.pid)
