"""Bus users of channels, made and removed while everybody else goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import nats.errors
import pytest
from nats.aio.client import Client

from contracts.bootstrap import Credential, IssueCredential, RevokeCredential, Revoked
from contracts.catalog import DURABLES
from contracts.errors import Forbidden, Retryable
from services.host.bootstrap.credentials import BusUsers
from services.host.bootstrap.keys import new_seed, public_key
from services.host.embedded.probe import http_get, until
from shared.bus import Bus, BusAddress
from shared.pull import Puller
from shared.questions import Asker, NobodyAnswers
from tests.servers import READY_S_MAX, RoomProcess, Servers

pytestmark = pytest.mark.integration

ASK_S_MAX = 20.0
SUBJECT = "rienda.event.acme.channel.{channel}.run_started.v1"


@pytest.fixture
async def bootstrap(servers: Servers, fresh_streams: None) -> AsyncIterator[RoomProcess]:
    """The bootstrap process; channel users are gone afterwards."""
    yield await servers.start_bootstrap()
    await servers.end_processes()
    await servers.remove_channels()


@pytest.fixture
async def gateway(
    servers: Servers, bus_address: Callable[[str], BusAddress]
) -> AsyncIterator[Asker]:
    """Asks as the gateway does."""
    bus = Bus(bus_address("gateway"))
    await bus.start()
    yield Asker(bus, name="gateway")
    await bus.stop()


async def issue(
    asker: Asker, channel_id: str, *, org: str = "acme", timeout_s: float = ASK_S_MAX
) -> Credential:
    return await asker.ask(
        "bootstrap",
        "issue",
        IssueCredential(org=org, channel_id=channel_id),
        Credential,
        org="_",
        timeout_s=timeout_s,
    )


async def revoke(asker: Asker, channel_id: str, *, org: str = "acme") -> bool:
    answer = await asker.ask(
        "bootstrap",
        "revoke",
        RevokeCredential(org=org, channel_id=channel_id),
        Revoked,
        org="_",
        timeout_s=ASK_S_MAX,
    )
    return answer.existed


async def log_in(credential: Credential) -> Client:
    assert credential.url
    return await nats.connect(
        credential.url,
        nkeys_seed_str=credential.nkey_seed,
        inbox_prefix=credential.inbox_prefix or "",
        allow_reconnect=False,
        error_cb=_ignore,
    )


async def _ignore(error: Exception) -> None:
    """A connection that is cut says so; the test looks whether it is."""


def count_reloads(servers: Servers) -> int:
    return servers.directory.log_path("nats").read_text().count("Reloaded server configuration")


async def publish(client: Client, channel: str) -> bytes:
    reply = await client.request(SUBJECT.format(channel=channel), b"{}", timeout=ASK_S_MAX)
    return reply.data


async def test_a_new_channel_works_at_once_and_nobody_is_cut(
    servers: Servers, bootstrap: RoomProcess, gateway: Asker
) -> None:
    first = await log_in(await issue(gateway, "c1"))
    second_credential = await issue(gateway, "c2")
    second = await log_in(second_credential)
    assert b'"stream":"CHANNEL"' in await publish(first, "c1")
    assert b'"stream":"CHANNEL"' in await publish(second, "c2")
    assert second_credential.user == "acme.c2"
    assert second_credential.inbox_prefix == "_INBOX.acme.c2"
    for client in (first, second):
        assert client.is_connected
        await client.close()


async def test_a_revoked_channel_is_cut_and_stays_out(
    servers: Servers, bootstrap: RoomProcess, gateway: Asker
) -> None:
    credential, other = await issue(gateway, "c1"), await issue(gateway, "c2")
    client, stays = await log_in(credential), await log_in(other)
    assert await revoke(gateway, "c1") is True
    assert await until(lambda: client.is_closed, wait_s=READY_S_MAX)
    with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
        await log_in(credential)
    assert b'"stream":"CHANNEL"' in await publish(stays, "c2")
    await stays.close()
    assert await revoke(gateway, "c1") is False


async def test_issuing_again_replaces_the_key_and_cuts_the_old_one(
    servers: Servers, bootstrap: RoomProcess, gateway: Asker
) -> None:
    old = await issue(gateway, "c1")
    client = await log_in(old)
    new = await issue(gateway, "c1")
    assert new.nkey_seed != old.nkey_seed
    assert await until(lambda: client.is_closed, wait_s=READY_S_MAX)
    with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
        await log_in(old)
    await (await log_in(new)).close()


async def test_many_at_once_share_reloads_and_all_get_in(
    servers: Servers, bootstrap: RoomProcess, gateway: Asker
) -> None:
    names = [f"c{number}" for number in range(20)]
    before = count_reloads(servers)
    credentials = await asyncio.gather(*(issue(gateway, name) for name in names))
    clients = await asyncio.gather(*(log_in(credential) for credential in credentials))
    for client in clients:
        await client.close()
    assert count_reloads(servers) - before < len(names)
    assert set(BusUsers(servers.directory.nats_home).channels()) == {f"acme.{n}" for n in names}


async def test_nobody_is_disturbed_while_organizations_come_and_go(
    servers: Servers, bootstrap: RoomProcess, gateway: Asker
) -> None:
    """Every client here would stay closed once it is cut: none may reconnect."""
    staying = [await log_in(await issue(gateway, name)) for name in ("c1", "c2")]
    acknowledged = 0
    done = asyncio.Event()

    async def go_on() -> None:
        nonlocal acknowledged
        while not done.is_set():
            try:
                await publish(staying[0], "c1")
            except nats.errors.NoRespondersError:
                continue  # The hole of a reload: it was not taken and is said again.
            acknowledged += 1

    talking = asyncio.create_task(go_on())
    for number in range(5):
        org = f"org-{number}"
        passing = await log_in(await issue(gateway, "c1", org=org))
        reply = await passing.request(
            SUBJECT.format(channel="c1").replace("acme", org), b"{}", timeout=ASK_S_MAX
        )
        assert b'"stream":"CHANNEL"' in reply.data
        assert await revoke(gateway, "c1", org=org) is True
        assert await until(lambda client=passing: client.is_closed, wait_s=READY_S_MAX)
    done.set()
    await talking
    assert acknowledged > 0
    for client in staying:
        assert client.is_connected
        await client.close()
    written = (servers.directory.nats_home / "organizations.conf").read_text()
    assert "ORG_acme" in written
    assert "ORG_org-" not in written


async def test_channels_survive_a_killed_nats_and_a_killed_bootstrap(
    servers: Servers, bootstrap: RoomProcess, gateway: Asker
) -> None:
    credential = await issue(gateway, "c1")
    await servers.kill_nats()
    await (await log_in(credential)).close()
    await bootstrap.kill()
    await bootstrap.start()
    await (await log_in(credential)).close()
    await (await log_in(await issue(gateway, "c2"))).close()
    assert await revoke(gateway, "c1") is True


async def test_a_change_that_a_dead_process_only_wrote_holds_after_its_restart(
    servers: Servers, bootstrap: RoomProcess, gateway: Asker
) -> None:
    credential = await issue(gateway, "c1")
    client = await log_in(credential)
    await bootstrap.kill()
    seeds = {"acme.c9": new_seed(), "fresh.c1": new_seed()}
    keys = {user: public_key(seed) for user, seed in seeds.items()}
    BusUsers(servers.directory.nats_home).change_channels({"acme.c1": None, **keys})
    assert client.is_connected
    await bootstrap.start()
    assert await until(lambda: client.is_closed, wait_s=READY_S_MAX)
    for user, seed in seeds.items():
        again = await servers.log_in(user, seed)
        org, _, channel = user.partition(".")
        reply = await again.request(
            SUBJECT.format(channel=channel).replace("acme", org), b"{}", timeout=ASK_S_MAX
        )
        assert b'"stream":"CHANNEL"' in reply.data
        await again.close()


async def test_answers_nobody_but_the_gateway(
    servers: Servers, bootstrap: RoomProcess, bus_address: Callable[[str], BusAddress]
) -> None:
    # Not even the user who may publish everything gets an answer on another room's subject.
    bus = Bus(bus_address("bootstrap"))
    await bus.start()
    with pytest.raises(Forbidden, match="only the gateway"):
        await issue(Asker(bus, name="ledger"), "c1")
    with pytest.raises(Forbidden, match="only the gateway"):
        await revoke(Asker(bus, name="ledger"), "c1")
    await bus.stop()
    assert BusUsers(servers.directory.nats_home).channels() == {}


async def test_says_that_an_external_server_is_its_operators(
    servers: Servers, gateway: Asker, rienda_process: object
) -> None:
    await servers.start_bootstrap(external=True)
    credential = await issue(gateway, "c1")
    assert not credential.available
    assert credential.nkey_seed is None
    assert await revoke(gateway, "c1") is False


async def test_a_file_that_the_server_refuses_changes_nothing_and_says_so(
    servers: Servers, bootstrap: RoomProcess, gateway: Asker
) -> None:
    kept = await issue(gateway, "c1")
    main = servers.directory.nats_home / "nats.conf"
    text = main.read_text()
    main.write_text("accounts {")
    with pytest.raises(Retryable, match="keeps its old configuration"):
        await issue(gateway, "c2")
    assert set(BusUsers(servers.directory.nats_home).channels()) == {"acme.c1"}
    main.write_text(text)
    await (await log_in(kept)).close()
    await (await log_in(await issue(gateway, "c2"))).close()


async def test_is_ready_only_while_the_bus_is_there_and_ends_on_sigterm(
    servers: Servers, bootstrap: RoomProcess, gateway: Asker
) -> None:
    assert await http_get(f"{bootstrap.url}/health") is not None
    await servers.nats.stop()
    try:
        await wait_for(bootstrap, ready=False)
        with pytest.raises(NobodyAnswers):
            await issue(gateway, "c1", timeout_s=0.2)
    finally:
        await servers.nats.start()
    await wait_for(bootstrap, ready=True)
    assert await bootstrap.stop() == 0


async def test_ends_on_sigterm_while_it_still_waits_for_the_bus(servers: Servers) -> None:
    process = await servers.start_bootstrap()
    await process.stop()
    await servers.nats.stop()
    try:
        process.launch()
        await wait_for(process, ready=False)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)
        assert await process.stop() == 0
    finally:
        await servers.nats.start()
        await servers.end_processes()


async def wait_for(process: RoomProcess, *, ready: bool) -> None:
    """Wait until `/ready` answers, and says that."""
    expected = 200 if ready else 503
    async with asyncio.timeout(READY_S_MAX):
        while True:
            answer = await http_get(f"{process.url}/ready")
            if answer is not None and answer[0] == expected:
                return
            await asyncio.sleep(0.02)


async def test_a_room_hears_its_durables_with_its_rights_alone(
    servers: Servers, bootstrap: RoomProcess, gateway: Asker
) -> None:
    """The floor's own subscriber, which asks the server for more than a plain fetch does."""
    heard: list[str] = []
    bus = Bus(servers.bus_address("ledger"))

    async def on_messages(messages) -> None:
        for message in messages:
            heard.append(message.subject)
            await message.ack()

    durables = [durable for durable in DURABLES if durable.room == "ledger"]
    await bus.start(durables)
    pulling = [
        asyncio.create_task(
            Puller(
                bus,
                SimpleNamespace(
                    durable=durable, on_messages=on_messages, read_ahead=lambda messages: None
                ),
            ).run()
        )
        for durable in durables
    ]
    client = await log_in(await issue(gateway, "c1"))
    await publish(client, "c1")
    assert await until(lambda: SUBJECT.format(channel="c1") in heard, wait_s=READY_S_MAX)
    for task in pulling:
        task.cancel()
    await client.close()
    await bus.stop()
