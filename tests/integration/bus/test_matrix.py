"""Who may publish and hear what: `matrix.json`, walked user by subject against a real server.

Twice: by the users of a deployment, whose permissions the server checks; and by users without any
permissions in the same accounts, so that only what accounts import can carry anything across.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.catalog import DURABLES, EVENTS, QUESTIONS, ROOMS, STREAMS
from contracts.subjects import event_subject
from tests.integration.bus.house import ACCOUNTS, BARE, CHANNELS, House, Watch, account_of

pytestmark = pytest.mark.integration
MATRIX: dict[str, Any] = json.loads(Path(__file__).with_name("matrix.json").read_text())
USERS: list[str] = MATRIX["users"]


def says(allowed: Any) -> set[str]:
    """Who the server lets publish; a row has two lists where accounts stop what rights let by."""
    return set(allowed["says"] if isinstance(allowed, dict) else allowed)


def arrives(allowed: Any) -> set[str]:
    """Whose message reaches another account."""
    return set(allowed["arrives"] if isinstance(allowed, dict) else allowed)


def in_bus(subject: str) -> str:
    """What a subject is called where it arrives: JetStream's own name for its API."""
    return subject.replace("bus.", "$JS.API.", 1) if subject.startswith("bus.") else subject


@pytest.mark.parametrize("name", USERS)
async def test_publishes_by_the_matrix_and_nothing_else(house: House, name: str) -> None:
    watch = Watch(house)
    await watch.begin()
    user = await house.log_in(name)
    for subject, allowed in MATRIX["publish"].items():
        assert await user.may_publish(subject) == (name in says(allowed)), subject
    expected = {
        (name, in_bus(subject))
        for subject, allowed in MATRIX["publish"].items()
        if name in arrives(allowed)
    }
    assert await watch.end() == expected


@pytest.mark.parametrize("account", ACCOUNTS)
async def test_accounts_alone_let_nothing_across_that_no_user_of_theirs_may_say(
    house: House, account: str
) -> None:
    before = await house.everything()
    watch = Watch(house)
    await watch.begin()
    name = f"{BARE}:{account}"
    user = await house.log_in(name)
    for subject in MATRIX["publish"]:
        await user.may_publish(subject)
    may_cross = {
        in_bus(subject)
        for subject, allowed in MATRIX["publish"].items()
        if account in {account_of(one) for one in arrives(allowed)}
    }
    assert {subject for _, subject in await watch.end()} - may_cross == set()
    after = await house.everything()
    assert after.keys() == before.keys()
    for where, (config, *_) in before.items():
        assert after[where][0] == config, where


@pytest.mark.parametrize("name", USERS)
async def test_hears_by_the_matrix_and_nothing_else(house: House, name: str) -> None:
    user = await house.log_in(name)
    for row, allowed in MATRIX["hear"].items():
        subject, _, queue = row.partition(" ")
        assert await user.may_hear(subject, queue) == (name in allowed), row


def test_the_matrix_names_everything_that_the_catalogue_has() -> None:
    """A new event, question, stream, durable or room brings its rows along."""
    rows = set(MATRIX["publish"])
    assert set(USERS) == {*ROOMS, *CHANNELS}
    for event in EVENTS:
        rooms = ROOMS if event.producer == "room" else [None]
        for room in rooms:
            subjects = {
                event_subject(event, org, channel_id="c1", token="0f", room=room)
                for org in ("acme", "_")
            }
            assert subjects & rows, event.name
    for question in QUESTIONS:
        named = f".{question.room}.{question.name}"
        kinds = {row.split(".")[3] for row in rows if row.endswith(named)}
        assert kinds == {"room", "channel"}, named
    for stream in STREAMS:
        assert f"$JS.API.STREAM.DELETE.{stream.name}" in rows
    for durable in DURABLES:
        where = f"{durable.stream}.{durable.durable}"
        for call in ("bus.CONSUMER.MSG.NEXT", "bus.CONSUMER.INFO", "$JS.API.CONSUMER.DELETE"):
            assert f"{call}.{where}" in rows
    for room in ROOMS:
        assert f"rienda.dead.{room}" in rows
