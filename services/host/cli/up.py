"""`rienda up`: in the foreground, or detached with the terminal following the start.

The one thing not to break: nothing is started before the fork of `--detach`; children end with the
thread that forked them (`supervisor/detach.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TextIO

from rich.console import Console

from contracts.errors import Fault
from services.host.cli.tour import Tour
from services.host.datadir import DataDir
from services.host.embedded.process import ProcessIdentity, open_log, read_log_tail
from services.host.errors import HostError, NotRunning, StartFailed
from services.host.first_run.seeding import Admin, read_admin
from services.host.starting import Wanted, run
from services.host.supervisor.detach import detach

LOG_NAME: Final = "supervisor"
LOGGER: Final = "rienda.host"
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """What was asked for on the command line."""

    directory: DataDir
    port: int | None
    has_samples: bool
    decisions: tuple[str, ...]
    command: str
    """How this program is called, for lines that people copy."""
    options: str
    """` --data-dir …` where the same lines need it."""

    @property
    def wanted(self) -> Wanted:
        """As the start hears it."""
        return Wanted(
            directory=self.directory,
            port=self.port,
            environ=dict(os.environ),
            decisions=self.decisions,
        )

    def tour(self, admin: Admin, console: Console) -> Tour:
        """What is shown once everything serves."""
        return Tour(
            admin,
            self.directory,
            console,
            has_samples=self.has_samples,
            command=self.command,
            options=self.options,
        )


def up_here(up: Up) -> bool:
    """Start, show, and serve until a signal; the answer is True after an orderly end.

    Errors: every HostError; Fault when the gateway refuses what a start needs.
    """
    console = Console(highlight=False)
    with up.directory.lock():
        _log_to_file(up.directory)
        # Restarts of children are worth a line in the terminal, too.
        terminal = logging.StreamHandler()
        terminal.setLevel(logging.WARNING)
        logging.getLogger(LOGGER).addHandler(terminal)

        async def then(admin: Admin) -> None:
            await up.tour(admin, console).run()
            console.print("\nServing until Ctrl-C.")

        asyncio.run(run(up.wanted, tell=lambda words: _say_step(console, words), then=then))
        console.print("Stopped.")
    return True


def up_detached(up: Up) -> bool:
    """Start in a process of its own, follow it until it serves, then show; False when not well.

    Errors: StartFailed with the sentence of whatever stopped it; DataDirInUse.
    """
    console = Console(highlight=False)
    log_path = up.directory.log_path(LOG_NAME)
    with up.directory.lock() as lock:
        read_end, write_end = os.pipe()
        offset = log_path.stat().st_size if log_path.exists() else 0
        pid = detach(log_path)
        if pid is None:
            os.close(read_end)
            lock.claim()
            return _serve_detached(up, write_end)
        os.close(write_end)
    identity = ProcessIdentity.of(pid)
    try:
        _follow(read_end, console)
    except KeyboardInterrupt:
        if identity is not None:
            identity.send(signal.SIGTERM)
        raise StartFailed("The start was interrupted and is being taken back.") from None
    except _SilentEnd as error:
        tail = "".join(f"\n  | {line}" for line in read_log_tail(log_path, offset=offset))
        raise StartFailed(f"The start ended without a word; see {log_path}.{tail}") from error
    admin = read_admin(up.directory)
    if admin is None:
        raise NotRunning(up.directory.path)
    try:
        return asyncio.run(up.tour(admin, console).run())
    except KeyboardInterrupt:
        console.print(f"Interrupted. Rienda goes on at {admin.base_url}.", markup=False)
        return False


class _SilentEnd(Exception):
    """The detached process closed its end of the pipe without having become ready."""


def _serve_detached(up: Up, write_end: int) -> bool:
    """Run in the detached process; what whoever waits must know goes into the pipe."""
    _log_to(sys.stderr)
    log = logging.getLogger(LOGGER)

    def say(**message: str | bool) -> None:
        try:
            os.write(write_end, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            # The terminal is gone: no reason to stop.
            log.info("nobody follows the start any more")

    has_served = False

    async def then(_: Admin) -> None:
        nonlocal has_served
        has_served = True
        say(ready=True)

    try:
        asyncio.run(run(up.wanted, tell=lambda words: say(step=words), then=then))
    except (HostError, Fault) as error:
        log.error("%s", error)
        say(error=str(error))
        return False
    else:
        if not has_served:
            say(error="It was stopped before it was ready.")
        return has_served
    finally:
        os.close(write_end)


def _follow(read_end: int, console: Console) -> None:
    """Show the steps until the detached process says that it serves.

    Errors: StartFailed with its sentence; _SilentEnd when it died.
    """
    with os.fdopen(read_end, encoding="utf-8") as pipe:
        for message in _messages(pipe):
            if "error" in message:
                raise StartFailed(message["error"])
            if message.get("ready"):
                return
            _say_step(console, message["step"])
    raise _SilentEnd


def _messages(pipe: Any) -> Iterator[dict[str, Any]]:
    for line in pipe:
        yield json.loads(line)


def _say_step(console: Console, words: str) -> None:
    console.print(f"· {words}", style="dim", markup=False)


def _log_to_file(directory: DataDir) -> None:
    descriptor = open_log(directory.log_path(LOG_NAME))
    _log_to(os.fdopen(descriptor, "a", encoding="utf-8"))


def _log_to(stream: TextIO) -> None:
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=stream)
    # One line per call of our own would bury what happened.
    logging.getLogger("httpx").setLevel(logging.WARNING)
