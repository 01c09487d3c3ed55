"""The supervisor keeps processes running, ends them in order, and takes them along when it dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.host.datadir import DataDir, ProcessStatus, SupervisorState
from services.host.embedded.nats import EmbeddedNats
from services.host.embedded.postgres import EmbeddedPostgres
from services.host.embedded.probe import LOOPBACK, choose_free_port, until
from services.host.embedded.process import ProcessIdentity
from services.host.errors import ChildrenNotReady, DataDirInUse
from services.host.supervisor import child as child_module
from services.host.supervisor.child import ChildSpec
from services.host.supervisor.supervise import Supervisor, stop_running

pytestmark = pytest.mark.integration

WAIT_S = 60.0
FOREVER = "import time; time.sleep(600)"
TELL_END = """
import pathlib, signal, sys, time
def end(*_):
    with pathlib.Path(sys.argv[2]).open("a") as journal:
        journal.write(sys.argv[1] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[2] + "." + sys.argv[1]).touch()
time.sleep(600)
"""
STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""
NATS_CONFIG = """
host: 127.0.0.1
port: {nats}
http: "127.0.0.1:{nats_http}"
jetstream {{ store_dir: "{home}/js" }}
"""
UP = """
import asyncio, json, pathlib, sys
from services.host.datadir import DataDir
from services.host.embedded.nats import EmbeddedNats
from services.host.embedded.postgres import EmbeddedPostgres
from services.host.supervisor.child import ChildSpec
from services.host.supervisor.detach import detach
from services.host.supervisor.supervise import Supervisor

data_dir = DataDir(pathlib.Path(sys.argv[1]))
children = json.loads(sys.argv[2])
ports = {name: data_dir.port(name) for name in ("postgres", "nats", "nats_http")}

def write_config(home):
    path = home / "nats.conf"
    path.write_text(NATS_CONFIG.format(home=home, **ports))
    return path

async def up():
    async with Supervisor(data_dir, url="http://127.0.0.1:1", ports=ports) as supervisor:
        if "with-servers" in sys.argv:
            await supervisor.start(EmbeddedPostgres(
                data_dir.postgres_home, port=ports["postgres"],
                password=data_dir.secret("postgres"), log_path=data_dir.log_path("postgres"),
            ))
            await supervisor.start(EmbeddedNats(
                data_dir.nats_home, port=ports["nats"], http_port=ports["nats_http"],
                write_config=write_config, log_path=data_dir.log_path("nats"),
            ))
        for name, argv in children.items():
            await supervisor.start(
                ChildSpec(name=name, argv=argv, env={}, log_path=data_dir.log_path(name))
            )
        if "stuck" in sys.argv:
            await asyncio.sleep(600)
        await supervisor.wait_ready(wait_s=60)
        await supervisor.wait_for_stop()

with data_dir.lock() as lock:
    if "detached" in sys.argv:
        pid = detach(data_dir.log_path("supervisor"))
        if pid is not None:
            sys.stdout.write(f"{pid}\\n")
            sys.exit(0)
        lock.claim()
    asyncio.run(up())
""".replace("NATS_CONFIG", repr(NATS_CONFIG))


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "data")
    made.create()
    return made


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def python(words: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", words, *map(str, arguments)]


def spec(data_dir: DataDir, name: str, argv: list[str], ready_url: str | None = None) -> ChildSpec:
    log_path = data_dir.log_path(name)
    return ChildSpec(name=name, argv=argv, env={}, log_path=log_path, ready_url=ready_url)


def up(data_dir: DataDir, children: dict[str, list[str]], *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        python(UP, data_dir.path, json.dumps(children), *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_state(data_dir: DataDir, fits: Callable[[SupervisorState], bool]) -> SupervisorState:
    ends_at_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_at_s:
        state = data_dir.read_running_state()
        if state is not None and fits(state):
            return state
        time.sleep(0.02)
    pytest.fail(f"no such state within {WAIT_S:g} s: {data_dir.read_state()}")


def all_ready(count: int) -> Callable[[SupervisorState], bool]:
    return lambda state: len(state.processes) == count and all(p.ready for p in state.processes)


def identities(state: SupervisorState) -> list[ProcessIdentity]:
    return [
        ProcessIdentity(process.pid, process.start_mark)
        for process in state.processes
        if process.pid is not None and process.start_mark is not None
    ]


def wait_until_gone(processes: list[ProcessIdentity]) -> None:
    assert asyncio.run(until(lambda: not any(p.is_alive() for p in processes), wait_s=WAIT_S))


def find(supervisor: Supervisor, name: str) -> ProcessStatus:
    return next(status for status in supervisor.status() if status.name == name)


def test_starts_a_killed_child_again_while_the_others_go_on(data_dir: DataDir) -> None:
    async def scenario() -> None:
        async with Supervisor(data_dir) as supervisor:
            for name in ("ledger", "gateway", "relay"):
                await supervisor.start(spec(data_dir, name, python(FOREVER)))
            await supervisor.wait_ready(wait_s=WAIT_S)
            before = {status.name: status.pid for status in supervisor.status()}
            killed = before["gateway"]
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            assert await until(
                lambda: (
                    find(supervisor, "gateway").restarts == 1 and find(supervisor, "gateway").ready
                ),
                wait_s=WAIT_S,
            )
            after = {status.name: status.pid for status in supervisor.status()}
            assert after["gateway"] not in (None, killed)
            assert (after["ledger"], after["relay"]) == (before["ledger"], before["relay"])
            state = data_dir.read_state()
            assert state is not None
            assert state.processes == supervisor.status()
        assert {status.state for status in supervisor.status()} == {"stopped"}
        assert data_dir.read_state() is None

    asyncio.run(scenario())


def test_tries_again_and_again_without_disturbing_the_others(data_dir: DataDir) -> None:
    async def scenario() -> None:
        async with Supervisor(data_dir) as supervisor:
            await supervisor.start(spec(data_dir, "steady", python(FOREVER)))
            await supervisor.start(spec(data_dir, "crashing", python("raise SystemExit('no')")))
            steady = find(supervisor, "steady").pid
            assert await until(lambda: find(supervisor, "crashing").restarts >= 3, wait_s=WAIT_S)
            assert find(supervisor, "steady").pid == steady
            assert find(supervisor, "steady").restarts == 0
        assert data_dir.log_path("crashing").read_text().count("no\n") >= 3

    asyncio.run(scenario())


def test_goes_on_trying_when_the_program_itself_is_gone(data_dir: DataDir, tmp_path: Path) -> None:
    program = tmp_path / "program"

    async def scenario() -> None:
        program.symlink_to(sys.executable)
        async with Supervisor(data_dir) as supervisor:
            await supervisor.start(spec(data_dir, "room", [str(program), "-c", FOREVER]))
            pid = find(supervisor, "room").pid
            assert pid is not None
            program.unlink()
            os.kill(pid, signal.SIGKILL)
            assert await until(lambda: find(supervisor, "room").restarts >= 2, wait_s=WAIT_S)
            assert find(supervisor, "room").state == "waiting"
            program.symlink_to(sys.executable)
            assert await until(lambda: find(supervisor, "room").ready, wait_s=WAIT_S)

    asyncio.run(scenario())


def test_brings_killed_servers_back_on_the_same_ports(data_dir: DataDir) -> None:
    def write_config(home: Path) -> Path:
        path = home / "nats.conf"
        text = NATS_CONFIG.format(home=home, nats=bus.port, nats_http=bus.http_port)
        path.write_text(text, encoding="utf-8")
        return path

    postgres = EmbeddedPostgres(
        data_dir.postgres_home,
        port=data_dir.port("postgres"),
        password=data_dir.secret("postgres"),
        log_path=data_dir.log_path("postgres"),
    )
    bus = EmbeddedNats(
        data_dir.nats_home,
        port=data_dir.port("nats"),
        http_port=data_dir.port("nats_http"),
        write_config=write_config,
        log_path=data_dir.log_path("nats"),
    )

    async def scenario() -> None:
        async with Supervisor(data_dir) as supervisor:
            await supervisor.start(postgres)
            await supervisor.start(bus)
            await supervisor.start(spec(data_dir, "room", python(FOREVER)))
            await supervisor.wait_ready(wait_s=WAIT_S)
            room = find(supervisor, "room").pid
            for server in (postgres, bus):
                killed, port = server.pid, server.port
                assert killed is not None
                os.kill(killed, signal.SIGKILL)
                assert await until(
                    lambda name=server.name: (  # type: ignore[misc]
                        find(supervisor, name).restarts == 1 and find(supervisor, name).ready
                    ),
                    wait_s=WAIT_S,
                )
                assert server.pid not in (None, killed)
                assert server.port == port
            assert find(supervisor, "room").pid == room
        assert not postgres.is_alive()
        assert not bus.is_alive()

    asyncio.run(scenario())


def test_ends_in_reverse_order_when_told_to(
    data_dir: DataDir, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    journal = tmp_path / "journal"
    names = ["first", "second", "third"]
    started.append(up(data_dir, {name: python(TELL_END, name, journal) for name in names}))
    wait_for_state(data_dir, all_ready(3))
    ready = [Path(f"{journal}.{name}") for name in names]
    assert asyncio.run(until(lambda: all(path.exists() for path in ready), wait_s=WAIT_S))
    assert asyncio.run(stop_running(data_dir, wait_s=WAIT_S))
    assert started[0].wait(WAIT_S) == 0
    assert journal.read_text(encoding="utf-8").split() == names[::-1]
    assert data_dir.read_state() is None
    assert not asyncio.run(stop_running(data_dir, wait_s=WAIT_S))


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ends_in_order_even_while_it_is_still_starting(
    data_dir: DataDir, started: list[subprocess.Popen[str]], signal_number: signal.Signals
) -> None:
    started.append(up(data_dir, {"room": python(FOREVER)}, "stuck"))
    state = wait_for_state(data_dir, all_ready(1))
    started[0].send_signal(signal_number)
    assert started[0].communicate(timeout=WAIT_S) == ("", "")
    assert started[0].returncode == 0
    assert not any(process.is_alive() for process in identities(state))


def test_ends_everything_when_the_body_fails(data_dir: DataDir) -> None:
    left: list[ProcessIdentity] = []

    async def scenario() -> None:
        async with Supervisor(data_dir) as supervisor:
            await supervisor.start(spec(data_dir, "room", python(FOREVER)))
            state = data_dir.read_state()
            assert state is not None
            left.extend(identities(state))
            raise LookupError("the bootstrap failed")

    with pytest.raises(LookupError):
        asyncio.run(scenario())
    assert len(left) == 1
    assert not left[0].is_alive()


def test_kills_a_child_that_does_not_end(
    data_dir: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "STOP_GRACE_S", 0.2)
    deaf = tmp_path / "deaf"

    async def scenario() -> None:
        async with Supervisor(data_dir) as supervisor:
            await supervisor.start(spec(data_dir, "stubborn", python(STUBBORN, deaf)))
            assert await until(deaf.exists, wait_s=WAIT_S)
            pid = find(supervisor, "stubborn").pid
            assert pid is not None
            identity = ProcessIdentity.of(pid)
        assert identity is not None
        assert not identity.is_alive()

    asyncio.run(scenario())


def test_tells_ready_from_alive(data_dir: DataDir) -> None:
    port = choose_free_port()
    url = f"http://{LOOPBACK}:{port}/"
    serve = [sys.executable, "-m", "http.server", "--bind", LOOPBACK, str(port)]

    async def scenario() -> None:
        async with Supervisor(data_dir) as supervisor:
            await supervisor.start(spec(data_dir, "room", serve, url))
            assert not find(supervisor, "room").ready
            await supervisor.wait_ready(wait_s=WAIT_S)
            words = "print('waiting for the bus', flush=True); " + FOREVER
            await supervisor.start(spec(data_dir, "late", python(words), url + "missing"))
            late = data_dir.log_path("late")
            assert await until(lambda: late.stat().st_size > 0, wait_s=WAIT_S)
            await supervisor.wait_ready(wait_s=0.3)

    with pytest.raises(ChildrenNotReady) as told:
        asyncio.run(scenario())
    assert told.value.names == ("late",)
    assert "waiting for the bus" in str(told.value)


def test_takes_everything_along_when_it_is_killed_and_starts_again_at_once(
    data_dir: DataDir, started: list[subprocess.Popen[str]]
) -> None:
    children = {"ledger": python(FOREVER), "gateway": python(FOREVER)}
    started.append(up(data_dir, children, "with-servers"))
    state = wait_for_state(data_dir, all_ready(4))
    with pytest.raises(DataDirInUse) as told, data_dir.lock():
        pass
    assert told.value.pid == started[0].pid
    assert told.value.url == "http://127.0.0.1:1"

    started[0].kill()
    started[0].wait()
    # At once: the servers of the killed one may still be ending, and the ports are the same.
    started.append(up(data_dir, children, "with-servers"))
    fresh = wait_for_state(data_dir, all_ready(4))
    assert fresh.pid == started[1].pid
    assert fresh.ports == state.ports
    assert not any(process.is_alive() for process in identities(state))

    started[1].kill()
    started[1].wait()
    wait_until_gone(identities(fresh))


def test_outlives_its_starter_when_detached(data_dir: DataDir) -> None:
    starter = up(data_dir, {"room": python(FOREVER)}, "detached")
    told, complaint = starter.communicate(timeout=WAIT_S)
    assert (starter.returncode, complaint) == (0, "")
    try:
        state = wait_for_state(data_dir, all_ready(1))
        assert state.pid == int(told)
        assert os.getsid(state.pid) not in (state.pid, os.getsid(0))
        assert all(process.is_alive() for process in identities(state))
        with pytest.raises(DataDirInUse) as refused, data_dir.lock():
            pass
        assert refused.value.pid == state.pid
    finally:
        assert asyncio.run(stop_running(data_dir, wait_s=WAIT_S))
    wait_until_gone(identities(state))
    assert data_dir.log_path("supervisor").read_text(encoding="utf-8") == ""
