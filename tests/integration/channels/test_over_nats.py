"""The typed client over a real nats-server: acknowledged events, questions, outages, attacks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from contracts import catalog, subjects
from contracts.channel import RunFinished, Tokens
from contracts.envelope import Answer, AnswerError, Ask
from contracts.ledger import Authorization, Authorize
from contracts.types import OnUnreachable, RunStatus, Surface
from contracts.upcast import read_event
from services.channels.client import Channel
from services.channels.errors import BudgetRefused, CredentialRefused, RiendaUnreachable
from services.channels.over_nats import NatsTransport
from services.channels.run import RunContext
from services.channels.transport import Said, Verdict
from services.host.embedded.nats import EmbeddedNats
from services.host.embedded.probe import LOOPBACK, choose_free_port

pytestmark = pytest.mark.integration
AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
WAIT_S = 30.0
CONTEXT: RunContext = {
    "run_id": "r.1",
    "agent_id": "a1",
    "user_id": None,
    "started_by_user_id": None,
    "surface": Surface.API,
}
QUESTION = Authorize(
    request_id="q1",
    run_id="r.1",
    root_run_id="r.1",
    agent_id="a1",
    root_agent_id="a1",
    user_id=None,
    started_by_user_id=None,
    model="m",
)
CONFIG = """
host: {host}
port: {port}
http: "{host}:{http_port}"
jetstream {{ store_dir: "{home}/js" }}
accounts {{ APP {{ jetstream: enabled, users: [
  {{ user: admin, password: pa }}
  {{ user: "{channel_user}", password: p1, permissions: {{
     publish: {{ allow: ["rienda.event.acme.channel.c1.>", "rienda.pulse.acme.channel.c1.>",
                        "rienda.ask.acme.channel.c1.ledger.authorize"] }}
     subscribe: {{ allow: ["_INBOX.acme.c1.>"] }} }} }}
] }} }}
"""


@dataclass
class Bus:
    """A server with the two streams that a channel speaks to, and somebody who answers."""

    server: EmbeddedNats
    url: str
    admin: Client
    channel_user: list[str]
    """Who the server takes for the channel; a reload makes a change hold."""
    answers: list[Answer[Authorization]] = field(default_factory=list)
    asked: list[Ask[Authorize]] = field(default_factory=list)

    def transport(self, **changes: str) -> NatsTransport:
        arguments = {"org": "acme", "channel_id": "c1", "user": "acme.c1", "password": "p1"}
        return NatsTransport(self.url, **(arguments | changes))

    async def answer(self, message: Msg) -> None:
        self.asked.append(Ask[Authorize].model_validate_json(message.data))
        answer = self.answers.pop(0)
        await self.admin.publish(message.reply, answer.model_dump_json().encode())

    async def stored(self, stream: str) -> list[tuple[str, Any]]:
        """Subject and event of every message in a stream."""
        js = self.admin.jetstream()
        info = await js.stream_info(stream)
        found = []
        for sequence in range(max(1, info.state.first_seq), info.state.last_seq + 1):
            with contextlib.suppress(nats.js.errors.NotFoundError):
                message = await js.get_msg(stream, sequence)
                event = read_event(message.subject or "", message.data or b"")[1]
                found.append((message.subject or "", event))
        return found


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    port, http_port = choose_free_port(), choose_free_port()
    users = ["acme.c1"]

    def write_config(home: Path) -> Path:
        path = home / "nats.conf"
        fields = {"host": LOOPBACK, "port": port, "http_port": http_port, "home": home}
        path.write_text(CONFIG.format(**fields, channel_user=users[-1]))
        return path

    server = EmbeddedNats(
        tmp_path / "nats",
        port=port,
        http_port=http_port,
        write_config=write_config,
        log_path=tmp_path / "nats.log",
    )
    await server.start()
    url = f"nats://{LOOPBACK}:{port}"
    admin = await nats.connect(url, user="admin", password="pa", max_reconnect_attempts=-1)
    made = Bus(server, url, admin, users)
    js = admin.jetstream()
    for spec in catalog.STREAMS:
        if spec.name in ("CHANNEL", "PULSE"):
            await js.add_stream(
                StreamConfig(
                    name=spec.name,
                    subjects=list(spec.subjects),
                    storage=StorageType(spec.storage),
                    discard=DiscardPolicy(spec.discard),
                    max_msgs_per_subject=spec.messages_per_subject_max,
                    max_bytes=1024 * 1024,
                )
            )
    await admin.subscribe("rienda.ask.acme.channel.*.ledger.authorize", cb=made.answer)
    await admin.flush()
    try:
        yield made
    finally:
        await admin.close()
        await server.stop()


def allowing(on_unreachable: OnUnreachable = OnUnreachable.REFUSE) -> Answer[Authorization]:
    return Answer[Authorization](
        data=Authorization(
            request_id="q1",
            allowed=True,
            sentence="Within every cap.",
            on_unreachable=on_unreachable,
            decided_at=AT,
        )
    )


def said(number: int) -> Said:
    data = RunFinished(run_id=f"r{number}", status=RunStatus.COMPLETED, ended_at=AT)
    return Said(id=f"e{number}", time=AT, data=data)


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await is_so():
            await asyncio.sleep(0.02)


async def takes(transport: NatsTransport) -> bool:
    try:
        await transport.publish([said(0)])
    except RiendaUnreachable:
        return False
    finally:
        await transport.close()
    return True


async def test_a_run_lies_in_the_streams(bus: Bus) -> None:
    bus.answers = [allowing()]
    channel = Channel(bus.transport(), heartbeat_s=0.01)
    async with channel, channel.run(**CONTEXT) as run:
        async with run.request(model="m", request_id="q1") as request:
            request.report(Tokens(input=5, output=2))
        await until(lambda: bus.stored("PULSE"))
    stored = await bus.stored("CHANNEL")
    assert [subject for subject, _ in stored] == [
        "rienda.event.acme.channel.c1.run_started.v1",
        "rienda.event.acme.channel.c1.usage_reported.v1",
        "rienda.event.acme.channel.c1.run_finished.v1",
    ]
    assert {event.source for _, event in stored} == {"channel/c1"}
    ((subject, beat),) = await bus.stored("PULSE")
    token = subjects.token_of("run", "r.1")
    assert subject == f"rienda.pulse.acme.channel.c1.run_heartbeat.v1.{token}"
    assert beat.data.run_id == "r.1"
    (asked,) = bus.asked
    assert (asked.data.request_id, asked.timeout_ms) == ("q1", 1_000)


async def test_the_same_event_twice_is_a_duplicate_and_a_changed_one_is_not(bus: Bus) -> None:
    transport = bus.transport()
    changed = said(0).data.model_copy(update={"status": RunStatus.FAILED})
    events = [said(number) for number in range(200)]
    first = await transport.publish(events)
    again = await transport.publish([*events, Said(id="e0", time=AT, data=changed)])
    await transport.close()
    assert {outcome.verdict for outcome in first} == {Verdict.ACCEPTED}
    assert [outcome.verdict for outcome in again] == [*[Verdict.DUPLICATE] * 200, Verdict.ACCEPTED]
    assert [outcome.id for outcome in first] == [event.id for event in events]


async def test_an_error_comes_back_as_what_it_was(bus: Bus) -> None:
    transport = bus.transport()
    for code, expected in (
        ("AUTHORIZATION_ERROR", CredentialRefused),
        ("EXTERNAL_SERVICE_ERROR", RiendaUnreachable),
    ):
        error = AnswerError(code=code, reason="why", message="a sentence")
        bus.answers = [Answer[Authorization](error=error)]
        with pytest.raises(expected, match="a sentence"):
            await transport.authorize(QUESTION)
    await transport.close()


async def test_a_refusal_is_an_answer(bus: Bus) -> None:
    allowed = allowing().data
    assert allowed is not None
    refused = allowed.model_copy(update={"allowed": False, "sentence": "Spent."})
    bus.answers = [Answer[Authorization](data=refused)]
    with pytest.raises(BudgetRefused, match="Spent"):
        async with Channel(bus.transport()) as channel, channel.run(**CONTEXT) as run:
            await run.request(model="m").__aenter__()


async def test_a_full_stream_is_not_now(bus: Bus) -> None:
    js = bus.admin.jetstream()
    info = await js.stream_info("CHANNEL")
    await js.update_stream(info.config.evolve(max_bytes=1))
    transport = bus.transport()
    with pytest.raises(RiendaUnreachable, match="takes nothing now"):
        await transport.publish([said(0)])
    await js.update_stream(info.config)
    (outcome,) = await transport.publish([said(0)])
    await transport.close()
    assert outcome.verdict is Verdict.ACCEPTED


async def test_a_wrong_password_is_a_refused_credential(bus: Bus) -> None:
    with pytest.raises(CredentialRefused):
        await bus.transport(password="wrong").open()


async def test_a_revoked_user_is_told_and_a_restored_one_goes_on(bus: Bus) -> None:
    transport = bus.transport()
    await transport.publish([said(0)])
    bus.channel_user.append("acme.c9")
    await bus.server.reload()

    async def is_refused() -> bool:
        try:
            await transport.publish([said(1)])
        except CredentialRefused:
            return True
        except RiendaUnreachable:
            return False
        return False

    await until(is_refused)
    bus.channel_user.append("acme.c1")
    await bus.server.reload()
    (outcome,) = await transport.publish([said(1)])
    await transport.close()
    assert outcome.verdict in (Verdict.ACCEPTED, Verdict.DUPLICATE)


async def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    url = f"nats://{LOOPBACK}:{choose_free_port()}"
    transport = NatsTransport(url, org="acme", channel_id="c1", user="u", password="p")
    with pytest.raises(RiendaUnreachable):
        await transport.open()
    spool = tmp_path / "spool"
    async with Channel(transport, spool_path=spool) as channel, channel.run(**CONTEXT):
        pass
    assert spool.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("url", ["", "nats://", "nats://host:port", "nats://host:70000"])
async def test_what_is_no_address_is_told_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="no address of a bus"):
        NatsTransport(url, org="acme", channel_id="c1", user="u", password="p")


async def test_closes_although_it_never_connected() -> None:
    url = f"nats://{LOOPBACK}:{choose_free_port()}"
    transport = NatsTransport(url, org="acme", channel_id="c1", user="u", password="p")
    await transport.close()
    opening = asyncio.create_task(transport.open())
    await asyncio.sleep(0)
    await transport.close()
    with pytest.raises(RiendaUnreachable):
        await opening


async def test_another_channels_subject_is_not_taken(bus: Bus, monkeypatch: Any) -> None:
    monkeypatch.setattr("services.channels.over_nats.ACK_S", 0.3)
    transport = bus.transport(channel_id="c2")
    with pytest.raises(RiendaUnreachable):
        await transport.publish([said(0)])
    await transport.close()
    assert await bus.stored("CHANNEL") == []


async def test_goes_on_after_the_server_was_away(bus: Bus, tmp_path: Path) -> None:
    bus.answers = [allowing(OnUnreachable.ALLOW)]
    channel = Channel(bus.transport(), spool_path=tmp_path / "spool")
    async with channel, channel.run(**CONTEXT) as run:
        async with run.request(model="m") as request:
            request.report(Tokens(input=1))
        await bus.server.stop()
        async with run.request(model="m") as request:
            request.report(Tokens(input=2))
        await bus.server.start()
        # The memory stream of the pulses went with the server; the other one is as it was.
        await until(lambda: takes(bus.transport()))
    events = [event.data for _, event in await bus.stored("CHANNEL")]
    usage = sorted(
        (data.tokens.input, data.unauthorized_reason) for data in events if hasattr(data, "tokens")
    )
    assert usage == [(1, None), (2, "rienda did not answer")]
    assert len(events) == 4 + 1
    assert (tmp_path / "spool").read_bytes() == b""
