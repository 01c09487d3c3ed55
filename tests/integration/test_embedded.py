"""The embedded PostgreSQL keeps its data, survives crashes, and runs for root and for others."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import asyncpg
import pytest

from services.host.embedded import probe
from services.host.embedded.account import (
    USER_NAMESPACE,
    choose_placement,
    find_nobody,
    find_programs,
    is_open_to_others,
)
from services.host.embedded.postgres import EmbeddedPostgres
from services.host.embedded.probe import LOOPBACK, choose_free_port, until
from services.host.errors import (
    EmbeddedServerFailed,
    EmbeddedServerMissing,
    PortTaken,
)

pytestmark = pytest.mark.integration

T = TypeVar("T")
PASSWORD = "p0123456789abcdef"
WAIT_S = 30.0
IS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not IS_ROOT, reason="only root may choose another user")


def make_postgres(home: Path, *, stage_root: Path | None = None) -> EmbeddedPostgres:
    more = {} if stage_root is None else {"stage_root": stage_root}
    log_path = home.parent / "postgres.log"
    port = choose_free_port()
    return EmbeddedPostgres(home, port=port, password=PASSWORD, log_path=log_path, **more)


async def ask(server: EmbeddedPostgres, statement: str) -> object:
    connection = await asyncpg.connect(server.superuser_dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def running(server: EmbeddedPostgres, then: Callable[[], Awaitable[T]]) -> T:
    """Run `then` against the started server and stop it whatever happens."""
    try:
        await server.start()
        return await then()
    finally:
        await server.stop()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may enter, which the test's own folders are not for root."""
    folder = Path(tempfile.mkdtemp(prefix="rienda-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_keeps_its_rows_and_its_port_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGOPTIONS", "--nonsense")
    server = make_postgres(tmp_path / "postgres")

    async def scenario() -> None:
        async def first() -> None:
            assert await server.is_ready()
            assert server.pid is not None
            await ask(server, "CREATE TABLE kept AS SELECT 42 AS n")
            shown = [await ask(server, f"SHOW {n}") for n in ("fsync", "max_connections")]
            assert shown == ["on", "200"]
            assert await ask(server, "SELECT pg_encoding_to_char(encoding) FROM pg_database") == (
                "UTF8"
            )
            await server.start()  # Starting what runs is no second server.

        await running(server, first)
        assert not server.is_alive()
        assert server.pid is None
        assert not await server.is_ready()
        other = EmbeddedPostgres(
            server.home, port=server.port, password=PASSWORD, log_path=server.log_path
        )
        assert await running(other, lambda: ask(other, "SELECT n FROM kept")) == 42

    asyncio.run(scenario())


def test_refuses_a_wrong_password(tmp_path: Path) -> None:
    server = make_postgres(tmp_path / "postgres")

    async def scenario() -> None:
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(server.superuser_dsn.replace(PASSWORD, "wrong"))

    asyncio.run(running(server, scenario))


def test_recovers_when_the_postmaster_is_killed_under_a_busy_session(tmp_path: Path) -> None:
    server = make_postgres(tmp_path / "postgres")

    async def scenario() -> None:
        await ask(server, "CREATE TABLE kept AS SELECT 42 AS n")
        busy = await asyncpg.connect(server.superuser_dsn)
        query = asyncio.create_task(busy.fetchval("SELECT sum(n) FROM generate_series(1, 1e12) n"))
        watcher = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT sum%'"
        async with asyncio.timeout(WAIT_S):
            seen: object = 0
            while seen != 1:
                seen = await ask(server, watcher)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert await until(lambda: not server.is_alive(), wait_s=WAIT_S)
        await server.start()
        assert await ask(server, "SELECT n FROM kept") == 42
        with pytest.raises((OSError, asyncpg.PostgresError)):
            await query
        busy.terminate()

    asyncio.run(running(server, scenario))


@pytest.mark.parametrize("holder", ["stranger", "zombie", "nobody"])
def test_is_not_stopped_by_a_stale_pid_file(tmp_path: Path, holder: str) -> None:
    server = make_postgres(tmp_path / "postgres")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        if holder != "stranger":
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if holder == "nobody":
            process.wait()

        async def scenario() -> object:
            await server.start()
            pid_file = server.data / "postmaster.pid"
            lines = pid_file.read_text(encoding="utf-8").splitlines()
            await server.stop()
            lines[0] = str(process.pid)
            pid_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            return await running(server, lambda: ask(server, "SELECT 1"))

        assert asyncio.run(scenario()) == 1
    finally:
        process.kill()
        process.wait()


def test_does_not_take_an_interrupted_initdb_for_data(tmp_path: Path) -> None:
    half = tmp_path / "postgres" / "data-new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n", encoding="utf-8")
    server = make_postgres(tmp_path / "postgres")
    assert asyncio.run(running(server, lambda: ask(server, "SELECT 1"))) == 1
    assert not half.exists()


def test_shows_the_log_when_postgres_cannot_start(tmp_path: Path) -> None:
    server = make_postgres(tmp_path / "postgres")

    async def scenario() -> None:
        await server.start()
        await server.stop()
        with (server.data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write("reins_in_hand = yes\n")
        await server.start()

    with pytest.raises(EmbeddedServerFailed) as told:
        asyncio.run(scenario())
    assert told.value.code == "embedded-server-failed"
    assert 0 < len(told.value.log_lines) <= 20
    assert any("reins_in_hand" in line for line in told.value.log_lines)
    assert "reins_in_hand" in str(told.value)
    assert not server.is_alive()


def test_names_the_port_when_another_program_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PORT_WAIT_S", 0.1)
    server = make_postgres(tmp_path / "postgres")
    with socket.create_server((LOOPBACK, server.port)), pytest.raises(PortTaken) as told:
        asyncio.run(server.start())
    assert told.value.port == server.port


def test_says_what_to_install_when_the_programs_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIENDA_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedServerMissing, match="rienda\\[embedded\\]"):
        asyncio.run(make_postgres(tmp_path / "postgres").start())


def has_user_namespaces() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run([*USER_NAMESPACE, "true"], capture_output=True, check=False).returncode
        == 0
    )


def modes_above(path: Path) -> list[tuple[int, int]]:
    found = [folder.stat() for folder in (path, *path.parents)]
    return [(entry.st_mode, entry.st_uid) for entry in found]


@only_root
def test_runs_for_root_in_a_closed_tree_without_opening_it(tmp_path: Path) -> None:
    if not has_user_namespaces():
        pytest.skip("user namespaces are refused here")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = modes_above(closed)
    server = make_postgres(closed / "postgres")

    async def scenario() -> None:
        await ask(server, "CREATE TABLE kept AS SELECT 42 AS n")
        assert server.data == closed / "postgres" / "data"
        assert server.is_alive()

    asyncio.run(running(server, scenario))
    assert choose_placement(closed / "postgres").prefix == USER_NAMESPACE
    assert modes_above(closed) == before
    assert {path.stat().st_uid for path in closed.rglob("*")} == {0}


@only_root
def test_runs_for_root_as_nobody_in_an_open_tree(open_folder: Path) -> None:
    if not is_open_to_others(find_programs()):
        pytest.skip("others cannot reach the installed programs here")
    nobody = find_nobody()
    assert nobody is not None
    before = modes_above(open_folder)
    server = make_postgres(open_folder / "postgres")

    async def scenario() -> None:
        assert server.pid is not None
        assert Path(f"/proc/{server.pid}").stat().st_uid == nobody.uid
        assert await ask(server, "SELECT 1") == 1

    asyncio.run(running(server, scenario))
    assert modes_above(open_folder) == before
    assert server.data.stat().st_uid == nobody.uid
    assert stat.S_IMODE((open_folder / "postgres").stat().st_mode) == 0o700


@only_root
def test_runs_for_root_from_a_copy_where_namespaces_are_refused(
    tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = modes_above(closed)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))  # No `unshare` is found, as in a slim container.
    stage_root = open_folder / "made"
    server = make_postgres(closed / "postgres", stage_root=stage_root)

    async def create() -> None:
        await ask(server, "CREATE TABLE kept AS SELECT 42 AS n")
        assert server.data.is_relative_to(stage_root)

    umask = os.umask(0o077)
    try:
        asyncio.run(running(server, create))
    finally:
        os.umask(umask)
    # With namespaces allowed again the data must not seem to be gone.
    monkeypatch.setenv("PATH", path)
    again = make_postgres(closed / "postgres", stage_root=stage_root)
    assert asyncio.run(running(again, lambda: ask(again, "SELECT n FROM kept"))) == 42
    assert modes_above(closed) == before


@only_root
def test_refuses_to_show_an_empty_database_where_the_data_cannot_be_reached(
    tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("18\n", encoding="utf-8")
    monkeypatch.setenv("PATH", str(tmp_path))
    server = make_postgres(tmp_path / "postgres", stage_root=open_folder)
    with pytest.raises(EmbeddedServerFailed, match="RIENDA_POSTGRES_URL"):
        asyncio.run(server.start())


ORDINARY_USER = """
import asyncio, os, sys
from pathlib import Path
import asyncpg, nats, nats.js
from services.host.datadir import DataDir
from services.host.embedded.nats import EmbeddedNats
from services.host.embedded.postgres import EmbeddedPostgres
import encodings.ascii, encodings.idna, encodings.latin_1, getpass, pwd

home, uid = Path(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
data_dir = DataDir(home / "data")

def write_config(folder):
    path = folder / "nats.conf"
    path.write_text(
        f'host: 127.0.0.1\\nport: {data_dir.port("nats")}\\n'
        f'http: "127.0.0.1:{data_dir.port("nats_http")}"\\n'
        f'jetstream {{ store_dir: "{folder}/js" }}\\n'
    )
    return path

async def main():
    postgres = EmbeddedPostgres(
        data_dir.postgres_home, port=data_dir.port("postgres"),
        password=data_dir.secret("postgres"), log_path=data_dir.log_path("postgres"),
    )
    bus = EmbeddedNats(
        data_dir.nats_home, port=data_dir.port("nats"), http_port=data_dir.port("nats_http"),
        write_config=write_config, log_path=data_dir.log_path("nats"),
    )
    try:
        await postgres.start()
        await bus.start()
        connection = await asyncpg.connect(postgres.superuser_dsn)
        answer = await connection.fetchval("SELECT 41 + 1")
        await connection.close()
        sys.stdout.write(f"{os.geteuid()} {answer} {await bus.is_ready()}\\n")
    finally:
        await bus.stop()
        await postgres.stop()

with data_dir.lock():
    asyncio.run(main())
"""


@only_root
def test_runs_for_an_ordinary_user(open_folder: Path) -> None:
    nobody = find_nobody()
    if nobody is None or not is_open_to_others(find_programs()):
        pytest.skip("an ordinary user cannot reach the installed programs here")
    os.chown(open_folder, nobody.uid, nobody.gid)
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY_USER, str(open_folder), str(nobody.uid)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == f"{nobody.uid} 42 True\n"
    assert {path.stat().st_uid for path in open_folder.rglob("*")} == {nobody.uid}
