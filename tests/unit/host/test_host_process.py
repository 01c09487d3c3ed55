"""Children are known by more than their pid, start from the main thread, and leave bounded logs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from services.host.embedded import probe
from services.host.embedded.probe import choose_free_port, http_get, is_port_free, until
from services.host.embedded.process import (
    LOG_BYTES_MAX,
    ProcessIdentity,
    command_lines_from_ps,
    mark_from_ps,
    open_log,
    read_command_lines,
    read_log_tail,
    spawn,
)
from services.host.errors import ChildOutsideMainThread, DetachTooLate, HostError
from services.host.supervisor.detach import detach
from services.host.supervisor.supervise import next_delay_s

FOREVER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_knows_a_process_by_its_start_and_not_by_its_pid() -> None:
    process = subprocess.Popen(FOREVER)
    try:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        assert identity.is_alive()
        assert not ProcessIdentity(process.pid, "another start").is_alive()
        ProcessIdentity(process.pid, "another start").send(signal.SIGKILL)
        assert process.poll() is None
    finally:
        process.kill()
    # Unreaped it is a zombie, which holds nothing and counts as gone.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_alive()
    assert ProcessIdentity.of(process.pid) is None
    process.wait()
    identity.send(signal.SIGTERM)


@pytest.mark.skipif(shutil.which("ps") is None, reason="there is no ps here")
def test_reads_the_start_from_ps_where_there_is_no_proc() -> None:
    mine = mark_from_ps(os.getpid())
    assert mine
    assert mark_from_ps(os.getpid()) == mine
    process = subprocess.Popen(["true"])
    process.wait()
    assert mark_from_ps(process.pid) is None


@pytest.mark.skipif(shutil.which("ps") is None, reason="there is no ps here")
def test_finds_the_command_line_of_a_process() -> None:
    argv = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        # The kernel shows an empty line until the new program has been set up.
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        assert read_command_lines()[process.pid] == " ".join(argv)
        assert command_lines_from_ps()[process.pid] == " ".join(argv)
    finally:
        process.communicate()


def test_refuses_to_start_a_child_from_another_thread(tmp_path: Path) -> None:
    caught: list[HostError] = []

    def start() -> None:
        try:
            spawn(FOREVER, env={}, log_path=tmp_path / "log")
        except HostError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert [type(error) for error in caught] == [ChildOutsideMainThread]


def test_gives_a_child_its_own_session_its_environment_and_a_private_log(tmp_path: Path) -> None:
    log_path = tmp_path / "child.log"
    words = "import os; print(os.getsid(0) == os.getpid(), sorted(os.environ), flush=True)"
    env = {"ONLY": "this", "LC_ALL": "C.UTF-8"}
    process = spawn([sys.executable, "-c", words], env=env, log_path=log_path)
    assert process.wait(30) == 0
    assert read_log_tail(log_path) == ["True ['LC_ALL', 'ONLY']"]
    assert stat.S_IMODE(log_path.stat().st_mode) == 0o600


def test_sets_a_large_log_aside_and_appends_to_a_small_one(tmp_path: Path) -> None:
    log_path = tmp_path / "room.log"
    for text in (b"first\n", b"second\n"):
        descriptor = open_log(log_path)
        os.write(descriptor, text)
        os.close(descriptor)
    assert log_path.read_bytes() == b"first\nsecond\n"
    with log_path.open("ab") as log:
        log.truncate(LOG_BYTES_MAX + 1)
    os.close(open_log(log_path))
    assert log_path.stat().st_size == 0
    assert (tmp_path / "room.log.1").stat().st_size == LOG_BYTES_MAX + 1


def test_reads_the_end_of_a_log_only(tmp_path: Path) -> None:
    log_path = tmp_path / "room.log"
    assert read_log_tail(log_path) == []
    log_path.write_text("".join(f"line {n}\n" for n in range(50)), encoding="utf-8")
    assert read_log_tail(log_path) == [f"line {n}" for n in range(30, 50)]
    assert read_log_tail(log_path, offset=log_path.stat().st_size - 8) == ["line 49"]


def test_tells_a_used_port_from_a_free_one() -> None:
    port = choose_free_port()
    assert is_port_free(port)

    async def serve_once() -> tuple[bool, tuple[int, bytes] | None]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.0 503 Busy\r\n\r\nnot yet")
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", port):
            return is_port_free(port), await http_get(f"http://127.0.0.1:{port}/ready?x=1")

    assert asyncio.run(serve_once()) == (False, (503, b"not yet"))
    assert asyncio.run(http_get(f"http://127.0.0.1:{port}/ready")) is None


def test_stops_waiting_at_the_deadline() -> None:
    assert asyncio.run(until(lambda: True, wait_s=0))
    assert not asyncio.run(until(lambda: False, wait_s=0))


def test_grows_the_restart_delay_to_ten_seconds_and_forgets_after_a_long_life() -> None:
    delays: list[float] = []
    previous: float | None = None
    for _ in range(8):
        previous = next_delay_s(previous, life_s=1.0)
        delays.append(previous)
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert next_delay_s(previous, life_s=30.0) == 0.2
    assert next_delay_s(previous, life_s=29.9) == 10.0


def test_gives_every_error_a_code_of_its_own() -> None:
    kinds = HostError.__subclasses__()
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(kinds)
    assert all(code == code.lower() and "_" not in code for code in codes)


def test_refuses_to_detach_from_a_running_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(DetachTooLate):
            detach(tmp_path / "log")

    asyncio.run(scenario())


def test_no_port_is_chosen_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ports of one server are chosen before it listens on either."""
    chosen = choose_free_port() - probe.PORT_LOWEST
    other = choose_free_port() - probe.PORT_LOWEST
    probe._CHOSEN.discard(other + probe.PORT_LOWEST)
    drawn = iter((chosen, chosen, other))
    monkeypatch.setattr(probe.secrets, "randbelow", lambda _: next(drawn))
    assert choose_free_port() == other + probe.PORT_LOWEST
