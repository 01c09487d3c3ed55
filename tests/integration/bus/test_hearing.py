"""What channels hear of rooms: copies that the stream itself publishes (pitfall 3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from nats.js import JetStreamContext

from contracts.catalog import DURABLES, STREAMS
from services.host.bootstrap.errors import UnsafeDifference
from services.host.bootstrap.streams import Catalogue, Decision, prepare_streams
from tests.integration.bus.house import ANSWER_S_MAX, House

pytestmark = pytest.mark.integration
SUBJECT = "rienda.event.acme.ledger.cap_stopped.v1"
UNHEARD = "rienda.event.acme.ledger.run_changed.v1"
SILENT = Catalogue(tuple(replace(spec, is_heard=False) for spec in STREAMS), DURABLES)
"""A server from before channels heard anything."""


@pytest.fixture
async def hearing_house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


@pytest.fixture
async def silent_house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path, catalogue=SILENT)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


async def test_a_channel_hears_its_organizations_events_as_copies_of_the_stream(
    hearing_house: House,
) -> None:
    channel, other, ledger = [
        await hearing_house.log_in(name) for name in ("acme.c1", "other.c1", "ledger")
    ]
    assert not await other.may_hear(SUBJECT)
    mine = await channel.client.subscribe(SUBJECT)
    theirs = await other.client.subscribe(SUBJECT.replace("acme", "other"))
    for user in (channel, other):
        await user.settle()
    reply = await ledger.client.request(SUBJECT, b"for acme", timeout=ANSWER_S_MAX)
    assert b'"stream":"LEDGER"' in reply.data
    message = await mine.next_msg(timeout=ANSWER_S_MAX)
    assert (message.subject, message.data) == (SUBJECT, b"for acme")
    # A copy says where it lies; without this it would be a message that was never kept.
    assert message.headers is not None
    assert (message.headers["Nats-Stream"], message.headers["Nats-Sequence"]) == ("LEDGER", "1")
    assert not await channel.may_hear(UNHEARD)
    await ledger.client.request(UNHEARD, b"not for channels", timeout=ANSWER_S_MAX)
    await ledger.client.request(SUBJECT.replace("acme", "other"), b"x", timeout=ANSWER_S_MAX)
    assert (await theirs.next_msg(timeout=ANSWER_S_MAX)).data == b"x"
    await channel.settle()
    assert (mine.pending_msgs, theirs.pending_msgs) == (0, 0)


async def test_it_hears_on_after_a_reload(hearing_house: House) -> None:
    channel, ledger = [await hearing_house.log_in(name) for name in ("acme.c1", "ledger")]
    mine = await channel.client.subscribe(SUBJECT)
    await channel.settle()
    await hearing_house.server.reload()
    await ledger.client.request(SUBJECT, b"{}", timeout=ANSWER_S_MAX)
    assert (await mine.next_msg(timeout=ANSWER_S_MAX)).subject == SUBJECT


async def test_a_channel_that_may_hear_says_nothing_as_the_room(hearing_house: House) -> None:
    for name in ("acme.c1", "bare:ORG_acme", "bare:ROOM_gateway"):
        user = await hearing_house.log_in(name)
        for subject in (SUBJECT, SUBJECT.replace("rienda.event", "rienda.heard")):
            await user.may_publish(subject)
    admin = await hearing_house.administrator()
    assert (await admin.stream_info("LEDGER")).state.messages == 0


async def test_copies_are_begun_at_once_and_ended_by_a_person(silent_house: House) -> None:
    admin: JetStreamContext = await silent_house.administrator()
    report = await prepare_streams(admin, Catalogue())
    assert [one.key for one in report.applied] == ["LEDGER.republish"]
    assert not (await prepare_streams(admin, Catalogue())).changed
    with pytest.raises(UnsafeDifference, match="no longer hear"):
        await prepare_streams(admin, SILENT)
    await prepare_streams(admin, SILENT, decision=Decision(accepted=("LEDGER.republish",)))
    assert (await admin.stream_info("LEDGER")).config.republish is None
