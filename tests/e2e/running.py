"""The `rienda` command as a test sees it: a program with arguments, output and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.host.embedded.probe import choose_free_port
from services.host.embedded.process import Account

REPOSITORY = Path(__file__).parents[2]
RIENDA = Path(sys.executable).with_name("rienda")
COMMAND_S_MAX = 180.0
"""Generous: it decides no verdict but "it never ended"."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str


class Rienda:
    """One data directory and the commands on it; `end` whatever happens."""

    def __init__(
        self,
        data_dir: Path,
        *,
        program: Sequence[str] = (str(RIENDA),),
        environ: Mapping[str, str] | None = None,
        account: Account | None = None,
    ) -> None:
        """`account`: who calls the commands, where the tests run as root."""
        self.data_dir = data_dir
        self.port = choose_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._program = program
        self._account = account
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self._environ = {**kept, "HOME": str(data_dir.parent), **(environ or {})}

    def call(self, *arguments: str) -> Ended:
        """Run `rienda <arguments> --data-dir …` to its end."""
        done = subprocess.run(
            [*self._program, *arguments, "--data-dir", self.data_dir],
            env=self._environ,
            cwd=self.data_dir.parent,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
            user=self._account.uid if self._account else None,
            group=self._account.gid if self._account else None,
            extra_groups=[] if self._account else None,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def up(self, *options: str) -> Ended:
        """`rienda up --detach` on a port of its own."""
        return self.call("up", "--detach", "--port", str(self.port), *options)

    def status(self) -> dict[str, Any]:
        """`rienda status --json`."""
        found: dict[str, Any] = json.loads(self.call("status", "--json").out)
        return found

    def pids(self) -> dict[str, int]:
        """Every supervised process with its pid."""
        return pids_of(self.status())

    def admin(self) -> dict[str, str]:
        """What `admin.json` holds."""
        held: dict[str, str] = json.loads((self.data_dir / "admin.json").read_text())
        return held

    def get(self, path: str, *, key: str | None = None) -> Any:
        """Ask the API with the admin's key."""
        return self._ask(path, None, key or self.admin()["api_key"])

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Make something with the admin's key."""
        return self._ask(path, json.dumps(body).encode(), self.admin()["api_key"])

    def end(self) -> None:
        """Stop what runs."""
        self.call("down")

    def _ask(self, path: str, body: bytes | None, key: str) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}",
            data=body,
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        # No proxy of the environment reaches this machine's own loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return json.load(answer)


def program_of(account: Account) -> tuple[Sequence[str], Mapping[str, str]] | None:
    """How that user can call `rienda`, and with which environment; None when there is no way.

    The interpreter of the tests may lie where only root may enter; the system's own will do when it
    has the same version, because the packages were built for it, too.
    """
    packages = os.pathsep.join((str(REPOSITORY), sysconfig.get_path("platlib")))
    environ = {
        "PYTHONPATH": packages,
        "PATH": os.pathsep.join((sysconfig.get_path("scripts"), os.defpath)),
    }
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        try:
            looked = subprocess.run(
                [python, "-c", "import sys, services; print(*sys.version_info[:2])"],
                env=environ,
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
                user=account.uid,
                group=account.gid,
                extra_groups=[],
            )
        except (PermissionError, FileNotFoundError):
            continue
        if looked.stdout.split() == [str(part) for part in sys.version_info[:2]]:
            return (python, "-c", "from services.host.cli import main; main()"), environ
    return None


def pids_of(report: Mapping[str, Any]) -> dict[str, int]:
    """Every supervised process of a status with its pid; a status takes seconds of three more."""
    return {process["name"]: process["pid"] for process in report["processes"]}


def status_of(error: urllib.error.HTTPError) -> int:
    """The status of an answer that is a problem."""
    with error:
        return error.code
