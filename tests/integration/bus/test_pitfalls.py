"""What went wrong once with accounts: a test for each pitfall that a server shows.

Pitfalls 6 and 8 are in `test_attacks.py` and `tests/unit/host/test_nats_config.py`, which also has
the written side of 1, 2, 3 and 7.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import nats
import nats.errors
import pytest

from contracts.bootstrap import org_account
from contracts.catalog import DURABLES, DurableSpec
from contracts.channel import RunFinished
from contracts.envelope import Actor, Answer, Ask
from contracts.errors import Forbidden
from contracts.ledger import Authorization, Authorize
from contracts.types import OnUnreachable, RunStatus
from services.channels.errors import RiendaUnreachable
from services.channels.over_nats import NatsTransport
from services.channels.transport import Said, Verdict
from services.host.bootstrap.accounts import ORG_CONNECTIONS_MAX
from services.host.bootstrap.credentials import BusUsers
from services.host.bootstrap.keys import new_seed, public_key
from services.host.bootstrap.reload import (
    SystemConnection,
    answer_probes,
    gets_through,
)
from services.host.bootstrap.streams import prepare_streams
from shared.bus import Bus, BusAddress, BusUnavailable
from shared.outbox import Message
from shared.pull import Puller
from shared.questions import ASKING_OF_ONE_MAX, Asker, Question, Responder
from tests.integration.bus.house import ANSWER_S_MAX, BARE, House
from tests.waiting import eventually

pytestmark = pytest.mark.integration
AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
QUESTION = Authorize(
    request_id="q1",
    run_id="r1",
    root_run_id="r1",
    agent_id="a1",
    root_agent_id="a1",
    user_id=None,
    started_by_user_id=None,
    model="m",
)
ASK = "rienda.ask.acme.channel.c1.ledger.authorize"
BODY = Ask[Authorize](data=QUESTION).model_dump_json().encode()
EVENT = "rienda.event.acme.channel.c1.run_started.v1"


class Ledger:
    """The floor's own responder in the ledger's place; keeps what it was asked."""

    def __init__(self, address: BusAddress) -> None:
        self.asked: list[Question] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.bus = Bus(address)
        self.responder = Responder(self.bus, room="ledger", answers={"authorize": self.answer})

    async def answer(self, question: Question) -> Authorization:
        self.asked.append(question)
        await self.gate.wait()
        return Authorization(
            request_id="q1",
            allowed=True,
            sentence="Within every cap.",
            on_unreachable=OnUnreachable.REFUSE,
            decided_at=AT,
        )


@pytest.fixture
async def ledger(house: House) -> AsyncIterator[Ledger]:
    made = Ledger(house.address("ledger"))
    await made.bus.start()
    await made.bus.client.flush()
    yield made
    await made.bus.stop()


async def test_1_the_api_under_its_own_name_answers_a_room_not_enabled(house: House) -> None:
    """Hence the prefix `bus`: with the server's own import the room would never start."""
    bare = (await house.log_in(f"{BARE}:ROOM_ledger")).client
    own = await bare.request("$JS.API.CONSUMER.INFO.CHANNEL.ledger", timeout=ANSWER_S_MAX)
    imported = await bare.request("bus.CONSUMER.INFO.CHANNEL.ledger", timeout=ANSWER_S_MAX)
    assert json.loads(own.data)["error"]["err_code"] == 10039
    assert json.loads(imported.data)["name"] == "ledger"


async def test_2_a_new_organization_gets_through_after_two_reloads(house: House) -> None:
    await answer_probes((await house.log_in("bootstrap")).client)
    seed = new_seed()
    BusUsers(house.home).change_channels({"fresh.c1": public_key(seed)})
    system = SystemConnection(house.server.url, nkey_seed=house.seeds["sys"])
    await system.connect()
    for _ in range(2):
        await system.reload()
    await system.close()
    assert await gets_through(house.server.url, user="fresh.c1", nkey_seed=seed)
    client = await nats.connect(
        house.server.url, nkeys_seed_str=seed, inbox_prefix=b"_INBOX.fresh.c1"
    )
    said = "rienda.event.fresh.channel.c1.run_started.v1"
    reply = await client.request(said, b"{}", timeout=ANSWER_S_MAX)
    assert json.loads(reply.data)["stream"] == "CHANNEL"
    await client.close()


async def test_2_a_probe_fails_for_a_key_that_the_server_does_not_know(house: House) -> None:
    await answer_probes((await house.log_in("bootstrap")).client)
    assert not await gets_through(house.server.url, user="acme.c1", nkey_seed=new_seed())


async def test_2_a_probe_fails_where_what_is_imported_does_not_arrive(house: House) -> None:
    seed = house.seeds["acme.c1"]
    assert not await gets_through(house.server.url, user="acme.c1", nkey_seed=seed)
    await answer_probes((await house.log_in("bootstrap")).client)
    assert await gets_through(house.server.url, user="acme.c1", nkey_seed=seed)


async def test_2_a_full_organization_still_gets_keys(house: House) -> None:
    for _ in range(ORG_CONNECTIONS_MAX):
        await house.log_in("acme.c1")
    seed = house.seeds["acme.c2"]
    assert await gets_through(house.server.url, user="acme.c2", nkey_seed=seed)


async def test_4_a_room_still_answers_after_a_reload(house: House, ledger: Ledger) -> None:
    asking = (await house.log_in("acme.c1")).client
    for _ in range(3):
        reply = await asking.request(ASK, BODY, timeout=ANSWER_S_MAX)
        assert Answer[Authorization].model_validate_json(reply.data).data
        await house.server.reload()
    assert len(ledger.asked) == 3


@pytest.mark.parametrize("attacker", ["acme.c2", f"{BARE}:ORG_acme"])
async def test_5_a_question_that_lost_its_reply_subject_is_not_asked(
    house: House, ledger: Ledger, attacker: str
) -> None:
    """Answers and acknowledgements redirected to a question would ask it in another's name."""
    user = await house.log_in(attacker)
    for subject in (
        "rienda.ask.acme.channel.c2.ledger.authorize",
        "rienda.event.acme.channel.c2.run_started.v1",
    ):
        await user.client.publish(subject, BODY, reply=ASK)
    await user.settle()
    await ledger.bus.client.flush()
    assert [one.asked.asker for one in ledger.asked if one.asked.asker != "c2"] == []


async def test_9_a_reload_under_traffic_loses_nothing_and_cuts_nobody(house: House) -> None:
    """A publish into the hole is refused as "try again", and says nothing twice when it is."""
    bus = Bus(house.address("gateway"))
    await bus.start()
    reloading = asyncio.create_task(_reload(house, times=10))
    kept, reasons = 0, set()
    while not reloading.done() or kept < 100:
        try:
            await bus.publish(Message(EVENT, f"m{kept}", b"{}"))
        except BusUnavailable as error:
            reasons.add(error.reason)
        else:
            kept += 1
    await reloading
    admin = await house.administrator()
    assert (await admin.stream_info("CHANNEL")).state.messages == kept
    assert reasons <= {"noresponderserror"}
    assert bus.client.stats["reconnects"] == 0
    await bus.stop()


async def test_9_a_channel_takes_nobody_there_for_not_now(house: House) -> None:
    transport = NatsTransport(
        house.server.url, org="acme", channel_id="c1", nkey_seed=house.seeds["acme.c1"]
    )
    reloading = asyncio.create_task(_reload(house, times=5))
    number = 0
    while not reloading.done():
        data = RunFinished(run_id=f"r{number}", status=RunStatus.COMPLETED, ended_at=AT)
        try:
            outcomes = await transport.publish([Said(id=f"e{number}", time=AT, data=data)])
        except RiendaUnreachable:
            continue
        assert outcomes[0].verdict is Verdict.ACCEPTED
        number += 1
    await reloading
    admin = await house.administrator()
    assert (await admin.stream_info("CHANNEL")).state.messages == number
    await transport.close()


async def _reload(house: House, *, times: int) -> None:
    for _ in range(times):
        await house.server.reload()


async def test_10_a_room_waits_for_durables_that_are_not_made_yet(house: House) -> None:
    admin = await house.administrator()
    await admin.delete_consumer("CHANNEL", "ledger")
    durables = [spec for spec in DURABLES if spec.room == "ledger"]
    bus = Bus(house.address("ledger"))
    starting = asyncio.create_task(bus.start(durables))
    done, _ = await asyncio.wait({starting}, timeout=0.5)
    assert not done
    await prepare_streams(admin, house.catalogue)
    await asyncio.wait_for(starting, ANSWER_S_MAX)
    heard = await _hear_one(house, bus, durables[0])
    assert heard == [EVENT]
    await bus.stop()


async def _hear_one(house: House, bus: Bus, spec: DurableSpec) -> list[str]:
    heard: list[str] = []

    async def on_messages(messages) -> None:
        for message in messages:
            heard.append(message.subject)
            await message.ack()

    pulling = asyncio.create_task(
        Puller(
            bus,
            SimpleNamespace(
                durable=spec, on_messages=on_messages, read_ahead=lambda messages: None
            ),
        ).run()
    )
    user = await house.log_in("acme.c1")
    await user.client.request(EVENT, b"{}", timeout=ANSWER_S_MAX)

    async def first() -> list[str]:
        return heard

    await eventually(first)
    pulling.cancel()
    return heard


async def test_11_an_answer_echoes_no_header_of_the_question(house: House, ledger: Ledger) -> None:
    asking = (await house.log_in("acme.c1")).client
    headers = {"Nats-Msg-Id": "mine", "X-Mine": "1"}
    reply = await asking.request(ASK, BODY, timeout=ANSWER_S_MAX, headers=headers)
    assert not {*headers} & {*(reply.headers or {})}


# Who asks: the subject, and the server's own word.


async def test_a_forged_word_of_the_server_is_overwritten(house: House, ledger: Ledger) -> None:
    told: list[str] = []

    async def note(message) -> None:
        told.append((message.headers or {})["Nats-Request-Info"])

    watching = (await house.log_in(f"{BARE}:ROOM_ledger")).client
    await watching.subscribe(ASK, cb=note)
    await watching.flush()
    asking = (await house.log_in("acme.c1")).client
    forged = {"Nats-Request-Info": json.dumps({"acc": "ROOM_gateway", "user": "gateway"})}
    reply = await asking.request(ASK, BODY, timeout=ANSWER_S_MAX, headers=forged)
    assert Answer[Authorization].model_validate_json(reply.data).data
    await watching.flush()
    assert [json.loads(one)["acc"] for one in told] == [org_account("acme")]
    (question,) = ledger.asked
    assert (question.asked.org, question.asked.kind, question.asked.asker) == (
        "acme",
        "channel",
        "c1",
    )


@pytest.mark.parametrize(
    "told", ['{"acc": "ORG_other"}', '{"acc": "ROOM_gateway"}', '{"acc": null}', "[]", "no json"]
)
async def test_a_subject_that_the_servers_word_denies_is_refused(house: House, told: str) -> None:
    """Only who shares the room's account can write that header; elsewhere the server does."""
    # A responder that may answer inside its account too, which a room may not.
    unbound = replace(house.address("ledger"), nkey_seed=house.seeds[f"{BARE}:ROOM_ledger"])
    ledger = Ledger(unbound)
    await ledger.bus.start()
    await ledger.bus.client.flush()
    asking = (await house.log_in(f"{BARE}:ROOM_ledger")).client
    header = {"Nats-Request-Info": told}
    reply = await asking.request(ASK, BODY, timeout=ANSWER_S_MAX, headers=header)
    error = Answer[Authorization].model_validate_json(reply.data).error
    assert error is not None
    assert (error.code, error.reason) == (Forbidden.code, "not_for_you")
    assert ledger.asked == []
    await ledger.bus.stop()


async def test_a_channels_actor_is_not_read(house: House, ledger: Ledger) -> None:
    asking = (await house.log_in("acme.c1")).client
    actor = Actor(pseudonym="root", permissions=("budgets:manage",))
    body = Ask[Authorize](data=QUESTION, actor=actor).model_dump_json().encode()
    reply = await asking.request(ASK, body, timeout=ANSWER_S_MAX)
    assert Answer[Authorization].model_validate_json(reply.data).data
    assert [one.actor for one in ledger.asked] == [None]


@pytest.mark.parametrize("attacker", [f"{BARE}:ORG_acme", "acme.c1", "other.c1", f"{BARE}:WITNESS"])
async def test_asks_nothing_as_the_gateway_or_of_the_bootstrap_process(
    house: House, ledger: Ledger, attacker: str
) -> None:
    asked: list[str] = []

    async def note(message) -> None:
        asked.append(message.subject)

    bootstrap = (await house.log_in("bootstrap")).client
    await bootstrap.subscribe("rienda.ask.>", cb=note)
    await bootstrap.flush()
    user = await house.log_in(attacker)
    for subject in (
        "rienda.ask.acme.room.gateway.ledger.get_spend",
        "rienda.ask.acme.channel.c1.ledger.get_spend",
        "rienda.ask.third.channel.c1.ledger.authorize",
        "rienda.ask._.room.gateway.bootstrap.issue",
        "rienda.ask.acme.channel.c1.bootstrap.issue",
    ):
        await user.client.publish(subject, BODY, reply=user.client.new_inbox())
    await user.settle()
    await bootstrap.flush()
    await ledger.bus.client.flush()
    assert (asked, ledger.asked) == ([], [])


async def test_the_gateway_asks_for_every_organization_and_carries_the_actor(
    house: House, ledger: Ledger
) -> None:
    bus = Bus(house.address("gateway"))
    await bus.start()
    asker = Asker(bus, name="gateway")
    actor = Actor(pseudonym="u1", permissions=("runs:view",))
    for org in ("acme", "third"):
        await asker.ask(
            "ledger", "authorize", QUESTION, Authorization, org=org, actor=actor, timeout_s=5
        )
    assert [(one.org, one.actor) for one in ledger.asked] == [("acme", actor), ("third", actor)]
    await bus.stop()


async def test_a_flood_of_one_organizations_questions_leaves_places_to_the_others(
    house: House, ledger: Ledger
) -> None:
    acme, other = [(await house.log_in(name)).client for name in ("acme.c1", "other.c1")]
    ledger.gate.clear()
    body = Ask[Authorize](data=QUESTION, timeout_ms=60_000).model_dump_json().encode()
    flood = [
        asyncio.create_task(acme.request(ASK, body, timeout=60))
        for _ in range(ASKING_OF_ONE_MAX + 50)
    ]
    for refused, answered in enumerate(asyncio.as_completed(flood), start=1):
        error = Answer[Authorization].model_validate_json((await answered).data).error
        assert error is not None
        assert error.reason == "busy"
        if refused == 50:
            break
    theirs = asyncio.create_task(other.request(ASK.replace("acme", "other"), body, timeout=60))

    async def is_asked() -> bool:
        return any(one.org == "other" for one in ledger.asked)

    await eventually(is_asked)
    ledger.gate.set()
    assert Answer[Authorization].model_validate_json((await theirs).data).data
    assert all([(await one).data for one in flood])
