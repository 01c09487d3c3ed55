"""`rienda up` beside servers of somebody else's: RIENDA_POSTGRES_URL and RIENDA_NATS_URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.host.bootstrap.nats_config import BOOTSTRAP_USER
from tests.e2e.running import Rienda
from tests.servers import Servers

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture
async def others(tmp_path: Path) -> AsyncIterator[Servers]:
    """Servers of their own: a deployment sets the passwords of the roles that it finds."""
    servers = Servers(tmp_path / "others")
    try:
        await servers.postgres.start()
        await servers.nats.start()
        yield servers
    finally:
        await servers.nats.stop()
        await servers.postgres.stop()


async def test_it_uses_the_servers_that_it_is_given(others: Servers, tmp_path: Path) -> None:
    login = f"{BOOTSTRAP_USER}:{others.logins.bus.bootstrap}"
    rienda = Rienda(
        tmp_path / "data",
        environ={
            "RIENDA_POSTGRES_URL": others.postgres.superuser_dsn,
            "RIENDA_NATS_URL": others.nats.url.replace("//", f"//{login}@"),
        },
    )
    try:
        started = rienda.up()
        assert started.code == 0, started.err
        assert "Refused: Demo agent monthly budget exhausted" in started.out
        assert not {"postgres", "nats"} & rienda.pids().keys()
        assert rienda.status()["ready"] is True
        assert others.logins.bus.bootstrap not in rienda.call("status", "--json").out
        # Its users are made by whoever runs the server; over HTTP the channel works at once.
        channel = rienda.post("channels", {"channel_id": "slack", "name": "Slack", "rights": []})
        assert channel["nats"]["available"] is False
    finally:
        rienda.end()
