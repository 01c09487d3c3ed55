"""The data directory keeps secrets private, files whole, and one supervisor at a time."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.host.datadir import DataDir, ProcessStatus, SupervisorState, write_private
from services.host.embedded.process import ProcessIdentity
from services.host.errors import DataDirBroken, DataDirInUse, DataDirUnusable

HOLD_LOCK = """
import sys
from pathlib import Path
from services.host.datadir import DataDir
with DataDir(Path(sys.argv[1])).lock():
    sys.stdout.write("held\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "data")
    made.create()
    return made


def state_of(pid: int, start_mark: str, url: str | None) -> SupervisorState:
    return SupervisorState(
        pid=pid,
        start_mark=start_mark,
        started_at=datetime(2026, 3, 1, tzinfo=UTC),
        url=url,
        ports={"http": 8080},
        processes=[
            ProcessStatus(name="ledger", pid=7, state="running", restarts=2, ready=True),
        ],
    )


def test_is_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        data_dir = DataDir(tmp_path / "data")
        with data_dir.lock():
            data_dir.secret("postgres")
            data_dir.port("nats")
            data_dir.write_admin({"org": "demo"})
    finally:
        os.umask(before)
    folders = [data_dir.path, data_dir.path / "logs", data_dir.path / "rooms"]
    assert {mode_of(folder) for folder in folders} == {0o700}
    files = [entry for entry in data_dir.path.iterdir() if entry.is_file()]
    assert {entry.name for entry in files} == {"lock", "secrets.json", "ports.json", "admin.json"}
    assert {mode_of(entry) for entry in files} == {0o600}


def test_replaces_a_readable_file_by_a_private_one(tmp_path: Path) -> None:
    path = tmp_path / "admin.json"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert mode_of(path) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["admin.json"]


def test_follows_no_link_that_somebody_left_for_the_new_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched", encoding="utf-8")
    (tmp_path / f".admin.json.{os.getpid()}.new").symlink_to(victim)
    write_private(tmp_path / "admin.json", "secret")
    assert victim.read_text(encoding="utf-8") == "untouched"


def test_makes_a_secret_once_and_reads_it_again(data_dir: DataDir) -> None:
    first = data_dir.secret("ledger")
    again = DataDir(data_dir.path).secret("ledger")
    assert first == again
    assert data_dir.secret("gateway") != first
    assert first[0].isalpha()
    assert len(first) == 33
    int(first[1:], 16)


def test_keeps_the_ports_it_chose(data_dir: DataDir) -> None:
    ports = {name: data_dir.port(name) for name in ("postgres", "nats", "nats_http")}
    assert len(set(ports.values())) == 3
    assert {name: DataDir(data_dir.path).port(name) for name in ports} == ports
    data_dir.keep_port("nats", 4222)
    assert data_dir.port("nats") == 4222


def test_reads_admin_back(data_dir: DataDir) -> None:
    assert data_dir.read_admin() is None
    data_dir.write_admin({"base_url": "http://127.0.0.1:8080", "org": "demo"})
    assert data_dir.read_admin() == {"base_url": "http://127.0.0.1:8080", "org": "demo"}


def test_never_guesses_what_a_damaged_file_held(data_dir: DataDir) -> None:
    path = data_dir.path / "secrets.json"
    path.write_text('{"ledger": "p12', encoding="utf-8")
    with pytest.raises(DataDirBroken) as told:
        data_dir.secret("ledger")
    assert told.value.code == "data-dir-broken"
    assert path.read_text(encoding="utf-8") == '{"ledger": "p12'


def test_round_trips_the_state_and_forgets_it(data_dir: DataDir) -> None:
    assert data_dir.read_state() is None
    state = state_of(os.getpid(), "mark", "http://127.0.0.1:8080")
    data_dir.write_state(state)
    assert data_dir.read_state() == state
    data_dir.clear_state()
    assert data_dir.read_state() is None


def test_does_not_take_a_reused_pid_for_the_supervisor(data_dir: DataDir) -> None:
    me = ProcessIdentity.of(os.getpid())
    assert me is not None
    data_dir.write_state(state_of(me.pid, me.start_mark, None))
    assert data_dir.read_running_state() is not None
    data_dir.write_state(state_of(me.pid, "another start", None))
    assert data_dir.read_running_state() is None


def test_refuses_a_second_holder_and_names_the_first(data_dir: DataDir) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(data_dir.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        data_dir.write_state(state_of(holder.pid, "mark", "http://127.0.0.1:8123"))
        with pytest.raises(DataDirInUse) as told, data_dir.lock():
            pass
        assert told.value.pid == holder.pid
        assert told.value.url == "http://127.0.0.1:8123"
        assert str(holder.pid) in str(told.value)
        assert "http://127.0.0.1:8123" in str(told.value)
    finally:
        holder.communicate()
    with data_dir.lock():
        pass


def test_does_not_ascribe_an_old_url_to_a_new_holder(data_dir: DataDir) -> None:
    data_dir.write_state(state_of(1, "mark", "http://127.0.0.1:8123"))
    with data_dir.lock(), pytest.raises(DataDirInUse) as told, DataDir(data_dir.path).lock():
        pass
    assert told.value.pid == os.getpid()
    assert told.value.url is None


def test_keeps_the_lock_with_a_fork_when_the_starter_lets_go(data_dir: DataDir) -> None:
    reader, writer = os.pipe()
    with data_dir.lock():
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with pytest.raises(DataDirInUse), data_dir.lock():
            pass
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)
    with data_dir.lock():
        pass


def test_says_so_when_a_file_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("", encoding="utf-8")
    with pytest.raises(DataDirUnusable) as told, DataDir(tmp_path / "data").lock():
        pass
    assert told.value.code == "data-dir-unusable"


def test_leaves_the_mode_of_a_directory_that_existed(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    DataDir(path).create()
    assert mode_of(path) == 0o755
    assert mode_of(path / "logs") == 0o700
