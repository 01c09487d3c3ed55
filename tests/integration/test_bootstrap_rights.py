"""Least rights on the bus: every user tries what it must not do, and does what it must."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import nats.errors
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import APIError

from contracts.catalog import DURABLES, QUESTIONS, ROOMS, STREAMS
from services.host.bootstrap.credentials import BusUsers
from tests.servers import Servers

pytestmark = pytest.mark.integration

CHANNELS = {"acme.c1": "pacmec1", "acme.c2": "pacmec2", "other.c1": "potherc1"}
ANSWER_S_MAX = 5.0
SILENCE_S = 0.2
"""How long a request waits that must not be answered; a late answer fails the test as well."""


@dataclass
class User:
    """One logged-in user and what the server told it."""

    name: str
    client: Client
    errors: list[str] = field(default_factory=list)

    async def may_publish(self, subject: str) -> bool:
        """Publish and tell whether the server let it: its complaint comes before its pong."""
        self.errors.clear()
        await self.client.publish(subject, b"{}")
        return not await self._was_forbidden()

    async def may_hear(self, subject: str, queue: str = "") -> bool:
        """Subscribe and tell the same."""
        self.errors.clear()
        subscription = await self.client.subscribe(subject, queue=queue)
        if await self._was_forbidden():
            return False
        await subscription.unsubscribe()
        return True

    async def _was_forbidden(self) -> bool:
        # nats-py sends the ping of a flush before what was written earlier: the second one counts.
        await self.client.flush()
        await self.client.flush()
        assert all("permissions violation" in error.lower() for error in self.errors), self.errors
        return bool(self.errors)


@pytest.fixture
async def users(servers: Servers, fresh_streams: None) -> AsyncIterator[dict[str, User]]:
    """Every room, and three channels of two organizations."""
    BusUsers(servers.directory.nats_home).change_channels(CHANNELS)
    await servers.nats.reload()
    logged_in: dict[str, User] = {}
    for name in ("bootstrap", *ROOMS, *CHANNELS):
        errors: list[str] = []
        client = await servers.log_in(name, CHANNELS.get(name), errors)
        logged_in[name] = User(name, client, errors)
    yield logged_in
    for user in logged_in.values():
        await user.client.close()
    BusUsers(servers.directory.nats_home).change_channels(dict.fromkeys(CHANNELS))
    await servers.nats.reload()


EVENT_SUBJECTS = {
    "rienda.event.acme.ledger.run_changed.v1": {"ledger"},
    "rienda.event._.ledger.security_noticed.v1": {"ledger"},
    "rienda.event.acme.gateway.audit_recorded.v1": {"gateway"},
    "rienda.event.acme.directory.0f.agent_published.v1": {"gateway"},
    "rienda.event.acme.channel.c1.usage_reported.v1": {"gateway", "acme.c1"},
    "rienda.pulse.acme.channel.c1.run_heartbeat.v1.0f": {"gateway", "acme.c1"},
    "rienda.event.acme.channel.c2.usage_reported.v1": {"gateway", "acme.c2"},
    "rienda.event.other.channel.c1.usage_reported.v1": {"gateway", "other.c1"},
    "rienda.dead.ledger": {"ledger"},
    "rienda.dead.gateway": {"gateway"},
    "rienda.event.acme.bootstrap.anything.v1": set(),
    "rienda.event.acme.approvals.call_decided.v1": set(),
    "anything.else": set(),
}
QUESTION_SUBJECTS = {
    "rienda.ask.acme.channel.c1.ledger.authorize": {"acme.c1"},
    "rienda.ask.acme.channel.c2.ledger.authorize": {"acme.c2"},
    "rienda.ask.other.channel.c1.ledger.authorize": {"other.c1"},
    "rienda.ask.acme.channel.c1.ledger.get_spend": set(),
    "rienda.ask.acme.channel.c1.bootstrap.issue": set(),
    "rienda.ask.acme.room.gateway.ledger.get_spend": {"gateway"},
    "rienda.ask._.room.gateway.bootstrap.issue": {"gateway"},
    "rienda.ask._.room.ledger.bootstrap.issue": set(),
    "rienda.ask._.room.ledger.gateway.get_directory": {"ledger"},
    "rienda.ask._.room.gateway.gateway.get_directory": set(),
}


@pytest.mark.parametrize("subjects", [EVENT_SUBJECTS, QUESTION_SUBJECTS], ids=["events", "asks"])
async def test_publishes_by_the_matrix_and_nothing_else(
    users: dict[str, User], subjects: dict[str, set[str]]
) -> None:
    for subject, allowed in subjects.items():
        for name, user in users.items():
            if name != "bootstrap":
                said = f"{name} on {subject}"
                assert await user.may_publish(subject) == (name in allowed), said


@pytest.mark.parametrize("name", [*ROOMS, *CHANNELS])
async def test_administers_nothing(users: dict[str, User], name: str) -> None:
    user = users[name]
    forbidden = ["$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.CREATE.MINE"]
    forbidden += ["$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ"]
    for stream in STREAMS:
        forbidden += [
            f"$JS.API.STREAM.{verb}.{stream.name}"
            for verb in ("INFO", "UPDATE", "DELETE", "PURGE", "MSG.GET", "MSG.DELETE", "SNAPSHOT")
        ]
        forbidden += [
            f"$JS.API.CONSUMER.{verb}.{stream.name}.mine"
            for verb in ("CREATE", "DURABLE.CREATE", "DELETE", "INFO", "MSG.NEXT")
        ]
        forbidden.append(f"$JS.API.DIRECT.GET.{stream.name}")
    for durable in DURABLES:
        if durable.room != name:
            forbidden.append(f"$JS.API.CONSUMER.MSG.NEXT.{durable.stream}.{durable.durable}")
            forbidden.append(f"$JS.ACK.{durable.stream}.{durable.durable}.1.1.1.1.0")
    for subject in forbidden:
        assert not await user.may_publish(subject), subject


@pytest.mark.parametrize("name", [*ROOMS, *CHANNELS])
async def test_hears_only_its_inbox_and_its_questions(users: dict[str, User], name: str) -> None:
    user = users[name]
    forbidden = [">", "rienda.>", "rienda.event.>", "rienda.ask.>", "_INBOX.>", "$JS.>", "$SYS.>"]
    forbidden += [f"_INBOX.{other}.>" for other in users if other != name]
    forbidden += [f"rienda.ask.*.*.*.{room}.*" for room in (*ROOMS, "bootstrap")]
    for subject in forbidden:
        assert not await user.may_hear(subject), subject
    assert await user.may_hear(f"_INBOX.{name}.x.>")
    for room in (*ROOMS, "bootstrap"):
        answers = room == name and any(question.room == room for question in QUESTIONS)
        asked = f"rienda.ask.*.*.*.{room}.*"
        assert await user.may_hear(asked, queue=room) == answers, asked
        assert not await user.may_hear(asked, queue="another"), asked


async def test_streams_survive_a_room_that_tries_to_change_them(users: dict[str, User]) -> None:
    admin = JetStreamContext(users["bootstrap"].client)
    await admin.publish("rienda.event.acme.channel.c1.run_started.v1", b"{}")
    for name in (*ROOMS, *CHANNELS):
        jetstream = JetStreamContext(users[name].client, timeout=SILENCE_S)
        for attempt in (
            lambda js=jetstream: js.add_stream(name="MINE", subjects=["mine.>"]),
            lambda js=jetstream: js.purge_stream("CHANNEL"),
            lambda js=jetstream: js.delete_stream("CHANNEL"),
            lambda js=jetstream: js.add_consumer("CHANNEL", durable_name="mine"),
        ):
            with pytest.raises((nats.errors.Error, APIError, asyncio.TimeoutError)):
                await attempt()
    assert (await admin.stream_info("CHANNEL")).state.messages == 1
    streams = {info.config.name for info in await admin.streams_info()}
    assert streams == {spec.name for spec in STREAMS}


async def test_a_channel_publishes_with_acknowledgement_and_the_ledger_takes_it(
    users: dict[str, User],
) -> None:
    reply = await users["acme.c1"].client.request(
        "rienda.event.acme.channel.c1.run_started.v1", b"{}", timeout=ANSWER_S_MAX
    )
    assert b'"stream":"CHANNEL"' in reply.data
    jetstream = JetStreamContext(users["ledger"].client)
    subscription = await jetstream.pull_subscribe(
        "", durable="ledger", stream="CHANNEL", inbox_prefix=b"_INBOX.ledger."
    )
    (message,) = await subscription.fetch(1, timeout=ANSWER_S_MAX)
    assert message.subject == "rienda.event.acme.channel.c1.run_started.v1"
    await message.ack_sync(timeout=ANSWER_S_MAX)
    admin = JetStreamContext(users["bootstrap"].client)
    info = await admin.consumer_info("CHANNEL", "ledger")
    assert info.num_ack_pending == 0
    assert users["ledger"].errors == []


@pytest.mark.parametrize(
    ("asker", "subject"),
    [
        ("acme.c1", "rienda.ask.acme.channel.c1.ledger.authorize"),
        ("gateway", "rienda.ask.acme.room.gateway.ledger.get_spend"),
    ],
)
async def test_an_answer_reaches_whoever_asked_also_after_a_reload(
    servers: Servers, users: dict[str, User], asker: str, subject: str
) -> None:
    ledger = users["ledger"].client

    async def answer(message) -> None:
        await ledger.publish(message.reply, b"answered " + message.subject.encode())

    await ledger.subscribe("rienda.ask.*.*.*.ledger.*", queue="ledger", cb=answer)
    await ledger.flush()
    for _ in range(2):
        reply = await users[asker].client.request(subject, b"{}", timeout=ANSWER_S_MAX)
        assert reply.data == b"answered " + subject.encode()
        await servers.nats.reload()


async def test_no_headers_of_a_channel_change_the_stream(users: dict[str, User]) -> None:
    channel = users["acme.c1"].client
    subject = "rienda.event.acme.channel.c1.run_started.v1"
    await channel.request(subject, b"{}", timeout=ANSWER_S_MAX)
    for header, value in {
        "Nats-Rollup": "all",
        "Nats-TTL": "1s",
        "Nats-Incr": "+1",
        "Nats-Schedule": "@every 1s",
        "Nats-Batch-Id": "b",
    }.items():
        reply = await channel.request(
            subject,
            b"{}",
            timeout=ANSWER_S_MAX,
            headers={header: value, "Nats-Batch-Sequence": "1"},
        )
        assert b'"error"' in reply.data, (header, reply.data)
    admin = JetStreamContext(users["bootstrap"].client)
    assert (await admin.stream_info("CHANNEL")).state.messages == 1


async def test_a_wrong_password_or_none_is_refused(servers: Servers) -> None:
    for user, password in (("ledger", "pwrong"), ("nobody", "p")):
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await servers.log_in(user, password)
    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await nats.connect(servers.nats.url, allow_reconnect=False, error_cb=_ignore)


async def _ignore(error: Exception) -> None:
    """The refusal itself is what the test looks at."""
