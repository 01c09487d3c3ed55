"""Attacks on what is somebody else's, each as the user that it is tried as.

`bare:<account>` stands in that account without any permissions: whatever holds against it is held
by the accounts alone. After each attack every stream and durable is as it was.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import nats.errors
import pytest
from nats.js import JetStreamContext
from nats.js.errors import APIError

from contracts.catalog import DURABLES, STREAMS
from services.host.embedded.probe import http_get
from tests.integration.bus.house import ACCOUNTS, ANSWER_S_MAX, BARE, CHANNELS, House, User
from tests.waiting import eventually

pytestmark = pytest.mark.integration
SILENCE_S = 0.2
"""How long a request waits that must not be answered; a late answer fails the test as well."""
C1 = "rienda.event.acme.channel.c1.run_started.v1"
C2 = "rienda.event.acme.channel.c2.run_started.v1"
OTHER = "rienda.event.other.channel.c1.run_started.v1"
ATTACKERS = ("ledger", "gateway", *CHANNELS, *(f"{BARE}:{account}" for account in ACCOUNTS))
DESTRUCTION = tuple(
    subject
    for prefix in ("$JS.API", "bus")
    for subject in (
        f"{prefix}.STREAM.DELETE.CHANNEL",
        f"{prefix}.STREAM.PURGE.CHANNEL",
        f"{prefix}.STREAM.DELETE.LEDGER",
        f"{prefix}.CONSUMER.DELETE.CHANNEL.ledger",
        f"{prefix}.CONSUMER.DELETE.DIRECTORY.ledger",
    )
)


@pytest.fixture
async def admin(house: House) -> JetStreamContext:
    """JetStream as the bootstrap process; `CHANNEL` holds one message of another organization."""
    made = await house.administrator()
    await made.publish(OTHER, b"{}")
    return made


@pytest.fixture
async def untouched(house: House, admin: JetStreamContext) -> AsyncIterator[None]:
    """Fails the test that changed a stream or durable."""
    before = await house.everything()
    yield
    assert await house.everything() == before


async def ask_in_silence(user: User, subject: str, body: bytes = b"") -> bytes | None:
    """Ask and return the answer, if there is any."""
    try:
        return (await user.client.request(subject, body, timeout=SILENCE_S)).data
    except (nats.errors.NoRespondersError, TimeoutError):
        return None


async def messages(admin: JetStreamContext, stream: str, subject: str) -> int:
    info = await admin.stream_info(stream, subjects_filter=subject)
    return sum((info.state.subjects or {}).values())


# Streams and consumers: create, update, purge, delete.


@pytest.mark.parametrize("attacker", ATTACKERS)
async def test_changes_no_stream_and_no_durable(
    house: House, untouched: None, attacker: str
) -> None:
    user = await house.log_in(attacker)
    attempts = []
    for prefix in ("bus", "$JS.API"):
        if attacker == f"{BARE}:WITNESS" and prefix == "$JS.API":
            continue  # JetStream of its own: looked at below.
        jetstream = user.client.jetstream(prefix=prefix, timeout=SILENCE_S)
        attempts += [
            jetstream.add_stream(name="MINE", subjects=["mine.>"]),
            jetstream.update_stream(name="CHANNEL", subjects=["x"], max_msgs=1),
            jetstream.purge_stream("CHANNEL"),
            jetstream.delete_msg("CHANNEL", 1),
            jetstream.delete_stream("CHANNEL"),
            jetstream.add_consumer("CHANNEL", durable_name="mine"),
            jetstream.delete_consumer("CHANNEL", "ledger"),
            jetstream.get_msg("CHANNEL", 1),
        ]
    # At once: most are refused by silence, which is waited for only once.
    for outcome in await asyncio.gather(*attempts, return_exceptions=True):
        assert isinstance(outcome, (nats.errors.Error, APIError, TimeoutError)), outcome


async def test_the_witness_has_streams_of_its_own_and_none_of_the_bus(
    house: House, untouched: None, admin: JetStreamContext
) -> None:
    witness = await house.log_in("witness")
    own = JetStreamContext(witness.client)
    await own.add_stream(name="CHANNEL", subjects=["rienda.witness.*"])
    ledger = await house.log_in("ledger")
    reply = await ledger.client.request("rienda.witness.ledger", b"head", timeout=ANSWER_S_MAX)
    assert json.loads(reply.data)["stream"] == "CHANNEL"
    assert (await own.stream_info("CHANNEL")).state.messages == 1
    # Neither the bus's administrator nor the room that said it can take it back.
    await admin.purge_stream("DEAD")
    for user in (ledger, await house.log_in("bootstrap")):
        await user.may_publish("$JS.API.STREAM.PURGE.WITNESS")
        await user.may_publish("rienda.witness.ledger", reply="$JS.API.STREAM.DELETE.CHANNEL")
    assert (await own.stream_info("CHANNEL")).state.messages == 2
    await own.delete_stream("CHANNEL")


@pytest.mark.parametrize("target", DESTRUCTION)
@pytest.mark.parametrize("attacker", ["ledger", f"{BARE}:ROOM_ledger"])
async def test_no_empty_pull_deletes_by_its_reply_subject(
    house: House, untouched: None, attacker: str, target: str
) -> None:
    """In one account this deleted the stream, `deny_delete` notwithstanding."""
    user = await house.log_in(attacker)
    pull = json.dumps({"batch": 1, "no_wait": True}).encode()
    for spec in DURABLES:
        if spec.stream == "CHANNEL":
            continue  # Not empty: its message would be taken, which is the ledger's right.
        where = f"{spec.stream}.{spec.durable}"
        for call in ("MSG.NEXT", "INFO"):
            await user.client.publish(f"bus.CONSUMER.{call}.{where}", pull, reply=target)
    await user.settle()


@pytest.mark.parametrize("target", DESTRUCTION)
@pytest.mark.parametrize(
    ("attacker", "subject"),
    [
        ("acme.c1", "rienda.probe.acme"),
        ("acme.c1", "rienda.ask.acme.channel.c1.ledger.authorize"),
        (f"{BARE}:ORG_acme", "rienda.probe.acme"),
        (f"{BARE}:ORG_acme", "rienda.ask.acme.channel.c2.ledger.authorize"),
        ("gateway", "rienda.ask._.room.gateway.bootstrap.issue"),
        (f"{BARE}:ROOM_gateway", "rienda.ask.acme.room.gateway.ledger.get_spend"),
    ],
)
async def test_no_answer_deletes_by_its_reply_subject(
    house: House, untouched: None, attacker: str, subject: str, target: str
) -> None:
    for responder, asked in (
        ("bootstrap", "rienda.probe.*"),
        ("bootstrap", "rienda.ask._.room.gateway.bootstrap.*"),
        ("ledger", "rienda.ask.*.*.*.ledger.*"),
    ):
        answering = (await house.log_in(responder)).client

        async def answer(message, answering=answering) -> None:
            if message.reply:
                await answering.publish(message.reply, b"{}")

        await answering.subscribe(asked, queue=responder, cb=answer)
        await answering.flush()
    user = await house.log_in(attacker)
    await user.client.publish(subject, b"{}", reply=target)
    await user.settle()
    assert await house.administrator()


@pytest.mark.parametrize("target", DESTRUCTION)
@pytest.mark.parametrize("attacker", ["acme.c1", f"{BARE}:ORG_acme", "gateway"])
async def test_no_acknowledgement_of_an_event_deletes_by_its_reply_subject(
    house: House, admin: JetStreamContext, attacker: str, target: str
) -> None:
    user = await house.log_in(attacker)
    await user.client.publish(C1, b"{}", reply=target)
    await user.settle()

    async def kept() -> int:
        return (await admin.stream_info("CHANNEL")).state.messages

    # The server stores what it has read when it comes to it.
    await eventually(kept, lambda messages: messages == 2)
    assert {info.config.name for info in await admin.streams_info()} == {s.name for s in STREAMS}
    assert (await admin.consumer_info("CHANNEL", "ledger")).num_pending == 2


# Acknowledging what somebody else was given.


@pytest.mark.parametrize("attacker", [one for one in ATTACKERS if "ledger" not in one])
async def test_acknowledges_nothing_of_the_ledgers(
    house: House, admin: JetStreamContext, attacker: str
) -> None:
    ledger = (await house.log_in("ledger")).client.jetstream(prefix="bus")
    taken = await ledger.pull_subscribe_bind(
        durable="ledger", stream="CHANNEL", inbox_prefix=b"_INBOX.ledger."
    )
    (message,) = await taken.fetch(1, timeout=ANSWER_S_MAX)
    before = await admin.consumer_info("CHANNEL", "ledger")
    user = await house.log_in(attacker)
    for body in (b"+ACK", b"+TERM", b"-NAK", b"+NXT"):
        await user.client.publish(message.reply, body, reply=message.reply)
    own = {"acme.c1": C1, "acme.c2": C2, "other.c1": OTHER, "gateway": C1}.get(attacker)
    if own:  # The stream's word on an event of its own, sent on as an acknowledgement.
        await user.client.publish(own, b"+ACK", reply=message.reply)
    await user.settle()
    after = await admin.consumer_info("CHANNEL", "ledger")
    assert (after.ack_floor, after.num_ack_pending) == (before.ack_floor, before.num_ack_pending)
    assert after.num_ack_pending == 1
    await message.ack_sync(timeout=ANSWER_S_MAX)
    assert (await admin.consumer_info("CHANNEL", "ledger")).num_ack_pending == 0


@pytest.mark.parametrize("attacker", [one for one in ATTACKERS if "ledger" not in one])
async def test_takes_nothing_from_the_ledgers_durables(
    house: House, untouched: None, attacker: str
) -> None:
    user = await house.log_in(attacker)
    heard: list[str] = []

    async def hear(message) -> None:
        if not (message.headers or {}).get("Status") and b'"error"' not in message.data:
            heard.append(message.subject)

    inbox = user.client.new_inbox()
    await user.client.subscribe(inbox, cb=hear)
    for prefix in ("bus", "$JS.API"):
        for spec in DURABLES:
            subject = f"{prefix}.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}"
            await user.client.publish(subject, b"1", reply=inbox)
    await user.settle()
    assert heard == []


# Speaking as somebody else.


@pytest.mark.parametrize("attacker", [f"{BARE}:ORG_acme", "acme.c2", "other.c1", "ledger"])
async def test_stores_no_event_of_another_organization_or_room(
    house: House, untouched: None, attacker: str
) -> None:
    user = await house.log_in(attacker)
    for subject in (
        "rienda.event.third.channel.c1.usage_reported.v1",
        "rienda.event.acme.gateway.audit_recorded.v1",
        "rienda.event.acme.directory.0f.organization_changed.v1",
        "rienda.event._.gateway.security_noticed.v1",
        "rienda.dead.gateway",
        "rienda.heard.other.ledger.run_changed.v1",
    ):
        assert await ask_in_silence(user, subject, b"{}") is None, subject


@pytest.mark.parametrize("attacker", ["acme.c1", f"{BARE}:ORG_acme"])
async def test_no_answer_is_stored_as_an_event_of_another_channel(
    house: House, admin: JetStreamContext, attacker: str
) -> None:
    """Pitfall 6: with a literal event import the answer would be an event of channel `c2`."""
    ledger = (await house.log_in("ledger")).client

    async def answer(message) -> None:
        await ledger.publish(message.reply, b"an answer")

    await ledger.subscribe("rienda.ask.*.*.*.ledger.*", queue="ledger", cb=answer)
    await ledger.flush()
    user = await house.log_in(attacker)
    ask = "rienda.ask.acme.channel.c1.ledger.authorize"
    # As acme.c1 the reply subject is not its own; the server does not look at it.
    for reply in (C2, OTHER, "rienda.event.acme.ledger.run_changed.v1"):
        await user.client.publish(ask, b"{}", reply=reply)
        await user.client.publish(C1, b"{}", reply=reply)
    await user.settle()
    await ledger.flush()
    assert await messages(admin, "CHANNEL", C2) == 0
    assert await messages(admin, "CHANNEL", OTHER) == 1
    assert (await admin.stream_info("LEDGER")).state.messages == 0


@pytest.mark.parametrize("attacker", ["acme.c1", f"{BARE}:ORG_acme", "gateway"])
async def test_no_header_removes_expires_or_multiplies_messages(
    house: House, admin: JetStreamContext, attacker: str
) -> None:
    user = await house.log_in(attacker)
    for header, value in {
        "Nats-Rollup": "all",
        "Nats-TTL": "1s",
        "Nats-Incr": "+1",
        "Nats-Schedule": "@every 1s",
        "Nats-Batch-Id": "b",
    }.items():
        headers = {header: value, "Nats-Batch-Sequence": "1"}
        reply = await user.client.request(C1, b"{}", timeout=ANSWER_S_MAX, headers=headers)
        assert b'"error"' in reply.data, (header, reply.data)
    assert (await admin.stream_info("CHANNEL")).state.messages == 1


# Hearing what is somebody else's.


@pytest.mark.parametrize(
    "attacker",
    [f"{BARE}:ORG_acme", f"{BARE}:ROOM_ledger", f"{BARE}:ROOM_gateway", f"{BARE}:WITNESS"],
)
async def test_hears_nothing_that_another_organization_says_asks_or_is_told(
    house: House, admin: JetStreamContext, attacker: str
) -> None:
    ledger, victim = await house.log_in("ledger"), await house.log_in("other.c1")

    async def answer(message) -> None:
        await ledger.client.publish(message.reply, b"for other alone")

    await ledger.client.subscribe("rienda.ask.*.*.*.ledger.*", queue="ledger", cb=answer)
    await ledger.settle()
    user = await house.log_in(attacker)
    heard: list[tuple[str, bytes]] = []

    async def hear(message) -> None:
        heard.append((message.subject, message.data))

    for subject in (">", "rienda.>", "_INBOX.>", "$JS.>", "$SYS.>", "bus.>"):
        await user.client.subscribe(subject, cb=hear)
    await user.settle()
    await victim.client.request(OTHER, b"said by other", timeout=ANSWER_S_MAX)
    pulse = "rienda.pulse.other.channel.c1.run_heartbeat.v1.0f"
    await victim.client.request(pulse, b"said by other", timeout=ANSWER_S_MAX)
    ask = "rienda.ask.other.channel.c1.ledger.authorize"
    reply = await victim.client.request(ask, b"asked by other", timeout=ANSWER_S_MAX)
    assert reply.data == b"for other alone"
    await user.settle()
    if attacker == f"{BARE}:ROOM_ledger":
        # It shares the room that is asked and answers: that much is the room's.
        heard = [one for one in heard if not one[0].startswith(("rienda.ask.", "_R_."))]
    assert [one for one in heard if b"other" in one[1] or "other" in one[0]] == []


async def test_acme_c2_hears_no_answer_to_acme_c1(house: House) -> None:
    user = await house.log_in("acme.c2")
    for subject in ("_INBOX.acme.c1.>", "_INBOX.acme.>", "_INBOX.>", "_R_.>", ">"):
        assert not await user.may_hear(subject), subject


async def test_the_ledger_answers_into_no_foreign_inbox(house: House) -> None:
    victim = await house.log_in("gateway")
    heard: list[bytes] = []

    async def hear(message) -> None:
        heard.append(message.data)

    await victim.client.subscribe("_INBOX.gateway.>", cb=hear)
    await victim.settle()
    for attacker in ("ledger", f"{BARE}:ROOM_ledger", f"{BARE}:ORG_acme", "acme.c1"):
        user = await house.log_in(attacker)
        for subject in ("_INBOX.gateway.guess", "_R_.guess.guess"):
            await user.may_publish(subject)
    await victim.settle()
    assert heard == []


# The server itself.


@pytest.mark.parametrize("attacker", ATTACKERS)
async def test_commands_nothing_of_the_server(house: House, untouched: None, attacker: str) -> None:
    async def server_state() -> dict[str, object]:
        answer = await http_get(f"{house.server.monitor_url}/varz")
        assert answer is not None
        page = json.loads(answer[1])
        return {"id": page["server_id"], "loaded": page["config_load_time"]}

    before = await server_state()
    user = await house.log_in(attacker)
    # Other accounts' connections must not show in any answer that it gets about its own.
    for subject in (
        f"$SYS.REQ.SERVER.{before['id']}.RELOAD",
        f"$SYS.REQ.SERVER.{before['id']}.KICK",
        "$SYS.REQ.SERVER.PING.CONNZ",
        "$SYS.REQ.SERVER.PING.JSZ",
        "$SYS.REQ.ACCOUNT.BUS.CONNZ",
        "$SYS.REQ.ACCOUNT.ORG_other.CONNZ",
        "$SYS.REQ.ACCOUNT.PING.CONNZ",
        "$SYS.REQ.CLAIMS.UPDATE",
    ):
        answer = await ask_in_silence(user, subject, b'{"cid": 1, "auth": true}')
        told = b"" if answer is None else answer
        for account in {"BUS", "SYS", *ACCOUNTS} - {user.account}:
            assert f'"account":"{account}"'.encode() not in told, subject
    assert await server_state() == before
    await asyncio.sleep(0)
    assert user.client.is_connected
