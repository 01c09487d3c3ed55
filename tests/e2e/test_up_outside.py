"""`rienda up` beside servers of somebody else's: RIENDA_POSTGRES_URL and RIENDA_NATS_URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.host.bootstrap.nats_config import Listen
from services.host.embedded.nats import EmbeddedNats
from services.host.embedded.postgres import EmbeddedPostgres
from services.host.embedded.probe import choose_free_port
from tests.e2e.running import Rienda
from tests.plain_nats import PlainConfig

pytestmark = [pytest.mark.integration, pytest.mark.long]


USER, PASSWORD = "somebody", "p5ome-pa5sword"


class Others:
    """Servers of somebody else's, each with one login."""

    def __init__(self, folder: Path) -> None:
        self.postgres = EmbeddedPostgres(
            folder / "postgres",
            port=choose_free_port(),
            password=PASSWORD,
            log_path=folder / "postgres.log",
        )
        listen = Listen(port=choose_free_port(), http_port=choose_free_port())
        self.nats = EmbeddedNats(
            folder / "nats",
            port=listen.port,
            http_port=listen.http_port,
            write_config=PlainConfig(listen, USER, PASSWORD),
            log_path=folder / "nats.log",
        )


@pytest.fixture
async def others(tmp_path: Path) -> AsyncIterator[Others]:
    """Servers of their own: a deployment sets the passwords of the roles that it finds."""
    folder = tmp_path / "others"
    folder.mkdir()
    servers = Others(folder)
    try:
        await servers.postgres.start()
        await servers.nats.start()
        yield servers
    finally:
        await servers.nats.stop()
        await servers.postgres.stop()


async def test_it_uses_the_servers_that_it_is_given(others: Others, tmp_path: Path) -> None:
    rienda = Rienda(
        tmp_path / "data",
        environ={
            "RIENDA_POSTGRES_URL": others.postgres.superuser_dsn,
            "RIENDA_NATS_URL": others.nats.url.replace("//", f"//{USER}:{PASSWORD}@"),
        },
    )
    try:
        started = rienda.up()
        assert started.code == 0, started.err
        assert "Refused: Demo agent monthly budget exhausted" in started.out
        assert not {"postgres", "nats"} & rienda.pids().keys()
        assert rienda.status()["ready"] is True
        assert PASSWORD not in rienda.call("status", "--json").out
        # Its users are made by whoever runs the server; over HTTP the channel works at once.
        channel = rienda.post("channels", {"channel_id": "slack", "name": "Slack", "rights": []})
        assert channel["nats"]["available"] is False
    finally:
        rienda.end()
