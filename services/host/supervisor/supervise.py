"""The supervisor: one event loop that starts, watches, starts again and ends processes.

    async with Supervisor(data_dir, url=url, ports=ports) as supervisor:
        await supervisor.start(postgres)
        await supervisor.start(ChildSpec(name="ledger", ...))
        await supervisor.wait_ready(wait_s=30)
        await supervisor.wait_for_stop()

The one thing not to break: nobody else decides that a process stays dead, and whatever way the body
is left (signal, error, end), everything that was started is ended, last first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from services.host.datadir import DataDir, ProcessState, ProcessStatus, SupervisorState
from services.host.embedded.probe import until
from services.host.embedded.process import ProcessIdentity, read_log_tail, retire
from services.host.errors import ChildrenNotReady, HostError, LeftoverProcess
from services.host.supervisor.child import Child, ChildSpec, Supervised

RESTART_DELAY_S_MIN = 0.2
RESTART_DELAY_S_MAX = 10.0
STEADY_LIFE_S = 30.0
"""A process that lived this long died of something new: its delay begins again."""
WATCH_S = 0.1
"""How often each process is looked at; a death is noticed within this time."""
READY_CHECK_S = 1.0
"""How often a process that was ready is asked again."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger("rienda.host.supervisor")


def next_delay_s(previous_delay_s: float | None, *, life_s: float) -> float:
    """Return how long to wait before the next restart: 0.2 s doubling to 10 s, reset after 30 s.

    `previous_delay_s` is None before the first restart; `life_s` is how long the process ran.
    """
    if previous_delay_s is None or life_s >= STEADY_LIFE_S:
        return RESTART_DELAY_S_MIN
    return min(previous_delay_s * 2, RESTART_DELAY_S_MAX)


@dataclass(eq=False)
class _Watched:
    """What the supervisor remembers about one process; `born_at_s` is None when it never ran."""

    thing: Supervised
    state: ProcessState = "starting"
    restarts: int = 0
    ready: bool = False
    delay_s: float | None = None
    born_at_s: float | None = None
    task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process; only what started has a life to count."""
        self.born_at_s = None
        await self.thing.start()
        self.born_at_s = time.monotonic()
        self.state = "running"
        log.info("%s runs as process %s", self.thing.name, self.thing.pid)

    def status(self) -> ProcessStatus:
        """Describe it for `rienda status`."""
        pid = self.thing.pid
        identity = None if pid is None else ProcessIdentity.of(pid)
        return ProcessStatus(
            name=self.thing.name,
            pid=pid,
            start_mark=None if identity is None else identity.start_mark,
            state=self.state,
            restarts=self.restarts,
            ready=self.ready,
        )


class Supervisor:
    """Runs processes until a signal or `request_stop`; the caller holds the directory's lock."""

    def __init__(
        self,
        data_dir: DataDir,
        *,
        url: str | None = None,
        ports: Mapping[str, int] | None = None,
    ) -> None:
        """Take what `state.json` shall say besides the processes."""
        self._data_dir = data_dir
        self._url = url
        self._ports = dict(ports or {})
        self._started_at = datetime.now(UTC)
        self._watched: list[_Watched] = []
        self._handled: list[signal.Signals] = []
        self._body: asyncio.Task[object] | None = None
        self._stop_requested = False
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        """Take over: leftovers of a supervisor that was killed, the state file, signals.

        Errors: LeftoverProcess when a process of an earlier start does not end.
        """
        await self._clear_leftovers()
        self._write_state()
        self._body = asyncio.current_task()
        for signal_number in STOP_SIGNALS:
            # `nohup` asks for hang-ups to be ignored; that wish stays.
            if signal.getsignal(signal_number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(signal_number, self.request_stop)
                self._handled.append(signal_number)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """End everything; a stop that was asked for is no error of the body."""
        self._body = None  # A second signal while stopping must not cut the stopping short.
        asked = self._stop_requested and isinstance(error, asyncio.CancelledError)
        if asked and (task := asyncio.current_task()) is not None:
            task.uncancel()
        try:
            await self._stop_all()
        finally:
            for signal_number in self._handled:
                asyncio.get_running_loop().remove_signal_handler(signal_number)
        if self._failure is not None and (error is None or asked):
            raise self._failure
        return asked

    def request_stop(self) -> None:
        """End the body of `async with` wherever it waits; idempotent (signals call it too)."""
        if not self._stop_requested:
            self._stop_requested = True
            if self._body is not None:
                self._body.cancel()

    async def start(self, thing: Supervised | ChildSpec) -> None:
        """Start a server or a child and keep it running from now on.

        Errors: what its first start raises; later deaths only cause restarts.
        """
        watched = _Watched(Child(thing) if isinstance(thing, ChildSpec) else thing)
        self._watched.append(watched)
        await watched.start()
        watched.task = asyncio.create_task(self._watch(watched), name=watched.thing.name)
        watched.task.add_done_callback(self._notice_bug)
        self._tell_state()

    async def wait_ready(self, *, wait_s: float) -> None:
        """Return when all that was started is ready.

        Errors: ChildrenNotReady after `wait_s` seconds, with the last log lines of the first one.
        """
        if await until(lambda: all(w.ready for w in self._watched), wait_s=wait_s):
            return
        late = [w.thing for w in self._watched if not w.ready]
        lines = read_log_tail(late[0].log_path) if late else []
        raise ChildrenNotReady([thing.name for thing in late], wait_s, log_lines=lines)

    async def wait_for_stop(self) -> None:
        """Wait until a signal or `request_stop` ends the body of `async with`."""
        await asyncio.get_running_loop().create_future()

    def status(self) -> list[ProcessStatus]:
        """Describe every process, in the order of their start."""
        return [watched.status() for watched in self._watched]

    async def _watch(self, watched: _Watched) -> None:
        """Keep one process running; each has its own task, so that the others go on."""
        while True:
            await self._follow_until_death(watched)
            born_at_s = watched.born_at_s
            life_s = 0.0 if born_at_s is None else time.monotonic() - born_at_s
            watched.delay_s = next_delay_s(watched.delay_s, life_s=life_s)
            watched.state, watched.ready = "waiting", False
            self._tell_state()
            log.warning(
                "%s is dead after %.1f s and is started again in %.1f s; see %s",
                watched.thing.name,
                life_s,
                watched.delay_s,
                watched.thing.log_path,
            )
            await asyncio.sleep(watched.delay_s)
            watched.restarts += 1
            try:
                await watched.start()
            except (HostError, OSError) as error:
                log.error("%s cannot be started again: %s", watched.thing.name, error)
            self._tell_state()

    async def _follow_until_death(self, watched: _Watched) -> None:
        """Return when the process is dead; keep `ready` current meanwhile."""
        asked_at_s = -READY_CHECK_S
        while watched.thing.is_alive():
            now_s = time.monotonic()
            if not watched.ready or now_s - asked_at_s >= READY_CHECK_S:
                asked_at_s = now_s
                ready = await watched.thing.is_ready()
                if ready != watched.ready:
                    watched.ready = ready
                    self._tell_state()
            await asyncio.sleep(WATCH_S)

    def _notice_bug(self, task: asyncio.Task[None]) -> None:
        """Stop everything when a watcher itself failed: unwatched processes are worse than none."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the watcher of %s failed", task.get_name(), exc_info=error)
            self._failure = error
            self.request_stop()

    async def _stop_all(self) -> None:
        """End the watchers first, or they would start again what is being ended."""
        tasks = [watched.task for watched in self._watched if watched.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        survivors: list[LeftoverProcess] = []
        for watched in reversed(self._watched):
            try:
                await watched.thing.stop()
            except LeftoverProcess as error:
                survivors.append(error)
            watched.state, watched.ready = "stopped", False
            log.info("%s has been stopped", watched.thing.name)
            self._tell_state()
        if survivors:
            raise survivors[0]
        self._data_dir.clear_state()

    async def _clear_leftovers(self) -> None:
        """Wait for the children of a supervisor that was killed; they are ending already."""
        state = self._data_dir.read_state()
        if state is None:
            return
        for old in reversed(state.processes):
            if old.pid is None or old.start_mark is None:
                continue
            await retire(
                old.name,
                ProcessIdentity(old.pid, old.start_mark),
                signals=(signal.SIGTERM, signal.SIGINT, signal.SIGKILL),
            )

    def _tell_state(self) -> None:
        """Write the state; a full disk is no reason to stop what runs."""
        try:
            self._write_state()
        except OSError as error:
            log.error("state.json cannot be written: %s", error)

    def _write_state(self) -> None:
        identity = ProcessIdentity.of(os.getpid())
        assert identity is not None, "the process that asks is alive"  # noqa: S101
        self._data_dir.write_state(
            SupervisorState(
                pid=identity.pid,
                start_mark=identity.start_mark,
                started_at=self._started_at,
                url=self._url,
                ports=self._ports,
                processes=self.status(),
            )
        )


async def stop_running(data_dir: DataDir, *, wait_s: float) -> bool:
    """Ask the supervisor of this directory to end and wait; False when none was running.

    Errors: LeftoverProcess when it is still there after `wait_s` seconds.
    """
    state = data_dir.read_running_state()
    if state is None:
        return False
    identity = state.identity
    identity.send(signal.SIGTERM)
    if not await until(lambda: not identity.is_alive(), wait_s=wait_s):
        raise LeftoverProcess("The supervisor", identity.pid)
    return True
