"""The bus as it was before there were accounts: what an attack did there, and how it is taken over.

The attack is shown to work where it may, so that its failure elsewhere says something.
"""

from __future__ import annotations

import json
from pathlib import Path

import nats
import pytest

from contracts.catalog import ROOMS
from services.host.bootstrap.credentials import BusUsers, ServerConfig
from services.host.bootstrap.keys import new_seed
from services.host.bootstrap.nats_config import BusLogins, Listen
from services.host.bootstrap.streams import Catalogue, prepare_streams
from services.host.embedded.nats import EmbeddedNats
from services.host.embedded.probe import LOOPBACK, choose_free_port
from tests.integration.bus.house import ANSWER_S_MAX
from tests.waiting import eventually

pytestmark = pytest.mark.integration
CONFIG = """
server_name: rienda
host: "{host}"
port: {port}
http: "{host}:{http_port}"
jetstream {{ store_dir: "{home}/jetstream" }}
accounts {{ RIENDA {{ jetstream: enabled, users: [
  {{ user: bootstrap, password: pboot }}
  {{ user: ledger, password: pledger, permissions: {{
     publish: {{ allow: ["$JS.API.CONSUMER.MSG.NEXT.DIRECTORY.ledger"] }}
     subscribe: {{ allow: ["_INBOX.ledger.>"] }} }} }}
] }} }}
"""
EVENT = "rienda.event.acme.channel.c1.run_started.v1"


class OneAccount:
    """A server of before, in the folder that the next one is started on."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "nats"
        self.log_path = folder / "nats.log"
        self.port, self.http_port = choose_free_port(), choose_free_port()

    def server(self, write_config) -> EmbeddedNats:
        return EmbeddedNats(
            self.home,
            port=self.port,
            http_port=self.http_port,
            write_config=write_config,
            log_path=self.log_path,
        )

    def write(self, home: Path) -> Path:
        path = home / "nats.conf"
        path.write_text(
            CONFIG.format(host=LOOPBACK, port=self.port, http_port=self.http_port, home=home)
        )
        record = {
            "bootstrap": "pboot",
            "system": "psys",
            "rooms": {"ledger": "pledger"},
            "channels": {"acme.c1": "pacmec1"},
        }
        (home / "users.json").write_text(json.dumps(record))
        (home / "users.conf").write_text("users: [ { user: bootstrap, password: pboot } ]")
        return path


async def test_there_an_empty_pull_deleted_a_stream_by_its_reply_subject(tmp_path: Path) -> None:
    old = OneAccount(tmp_path)
    server = old.server(old.write)
    await server.start()
    try:
        admin = await nats.connect(server.url, user="bootstrap", password="pboot")
        await prepare_streams(admin.jetstream(), Catalogue())
        room = await nats.connect(server.url, user="ledger", password="pledger")
        pull = json.dumps({"batch": 1, "no_wait": True}).encode()
        subject = "$JS.API.CONSUMER.MSG.NEXT.DIRECTORY.ledger"
        await room.publish(subject, pull, reply="$JS.API.STREAM.DELETE.CHANNEL")
        await room.flush()

        async def names() -> set[str]:
            return {str(info.config.name) for info in await admin.jetstream().streams_info()}

        await eventually(names, lambda found: "CHANNEL" not in found)
        await room.close()
        await admin.close()
    finally:
        await server.stop()


async def test_its_streams_durables_and_channels_go_on_in_accounts(tmp_path: Path) -> None:
    old = OneAccount(tmp_path)
    server = old.server(old.write)
    await server.start()
    admin = await nats.connect(server.url, user="bootstrap", password="pboot")
    await prepare_streams(admin.jetstream(), Catalogue())
    for number in range(3):
        await admin.jetstream().publish(EVENT, str(number).encode())
    taken = await admin.jetstream().pull_subscribe_bind(durable="ledger", stream="CHANNEL")
    for message in await taken.fetch(2, timeout=ANSWER_S_MAX):
        await message.ack_sync(timeout=ANSWER_S_MAX)
    await admin.close()
    await server.stop()

    rooms = {room: new_seed() for room in ROOMS}
    logins = BusLogins(new_seed(), new_seed(), new_seed(), rooms)
    server = old.server(ServerConfig(Listen(port=old.port, http_port=old.http_port), logins))
    await server.start()
    try:
        bootstrap = await nats.connect(server.url, nkeys_seed_str=logins.bootstrap)
        report = await prepare_streams(bootstrap.jetstream(), Catalogue())
        # What lay in memory is gone with every stop.
        assert report.created == ["PULSE", "PULSE/ledger"]
        assert (await bootstrap.jetstream().stream_info("CHANNEL")).state.messages == 3
        room = await nats.connect(
            server.url, nkeys_seed_str=rooms["ledger"], inbox_prefix=b"_INBOX.ledger"
        )
        pulled = await room.jetstream(prefix="bus").pull_subscribe_bind(
            durable="ledger", stream="CHANNEL", inbox_prefix=b"_INBOX.ledger."
        )
        (message,) = await pulled.fetch(1, timeout=ANSWER_S_MAX)
        assert message.data == b"2"
        channel = await nats.connect(
            server.url, user="acme.c1", password="pacmec1", inbox_prefix=b"_INBOX.acme.c1"
        )
        reply = await channel.request(EVENT, b"{}", timeout=ANSWER_S_MAX)
        assert json.loads(reply.data)["seq"] == 4
        assert BusUsers(old.home).channels() == {"acme.c1": "pacmec1"}
        for client in (bootstrap, room, channel):
            await client.close()
    finally:
        await server.stop()
