"""What each bus user may publish and hear, derived from the catalogue (design.md 2).

The one thing not to break: least rights. Who speaks and who asks stands in a subject and these
lists are its only proof inside an account (`accounts.py` says what crosses between accounts), so a
right that is wider than its user lets it speak as somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from contracts.catalog import DEPLOYMENT, DURABLES, EVENTS, QUESTIONS, EventType

SPEAKS_ALSO: Final = {
    "gateway": (
        "rienda.event.*.directory.>",
        "rienda.event.*.channel.>",
        "rienda.pulse.*.channel.>",
    )
}
"""The gateway says the directory, and publishes for channels that speak HTTP (design.md 10)."""
BOOTSTRAP: Final = "bootstrap"
"""The user of the account `BUS`, and the name under which it is asked."""
WITNESSED_ROOMS: Final = ("ledger",)
"""Rooms that say the heads of their audit chain to the witness (design.md 9)."""
JETSTREAM_PREFIX: Final = "bus"
"""What rooms call JetStream's API: in every account `$JS.API` is the server's own import, which
answers "not enabled" first (dependencies.md 10, pitfall 1)."""
REPLIES: Final = "_R_.>"
"""Where the server sends the answers to imported questions. A standing right, because the state of
`allow_responses` is lost at a reload (dependencies.md 10, pitfall 4)."""
HEARER: Final = "channels"
"""How the catalogue names channels among the hearers of an event."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class Rights:
    """Subjects a user may publish, and hear (`<subject> <queue>`: in that queue group only).

    Neither list is ever empty: nats-server reads an empty one as "no limit".
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def inbox_prefix(name: str) -> str:
    """The prefix of a user's reply subjects: `_INBOX.<room>`, `_INBOX.<org>.<channel>`."""
    return f"_INBOX.{name}"


def channel_user(org: str, channel_id: str) -> str:
    """The bus user of a channel: `<org>.<channel>`; neither part holds a dot.

    Errors: ValueError for names that are no subject tokens.
    """
    for name in (org, channel_id):
        if not _NAME.match(name):
            raise ValueError("organization and channel ids are lower case letters, digits and `-`")
    return f"{org}.{channel_id}"


def probe_subject(org: str) -> str:
    """Where the bootstrap process answers an organization: proof that its imports work."""
    return f"rienda.probe.{org}"


def heard_by_channels(org: str, events: Sequence[EventType] = EVENTS) -> list[str]:
    """The subjects of rooms' events that an organization's channels may hear."""
    return [
        f"rienda.event.{org}.{event.producer}.{event.name}.v{event.version}"
        for event in events
        if HEARER in event.hearers
    ]


def asked_by_channels(org: str, channel_id: str) -> list[str]:
    """The subjects of the questions that a channel may ask; `*` for any channel."""
    return [
        f"rienda.ask.{org}.channel.{channel_id}.{question.room}.{question.name}"
        for question in QUESTIONS
        if question.asked_by_channels
    ]


def asked_by_room(room: str) -> dict[str, str]:
    """Each room (and `bootstrap`) that a room asks, with the subjects of its questions.

    Whoever asks another one question only may ask no other. `bootstrap` answers for the deployment
    alone; every room may look at its streams.
    """
    asked: dict[str, list[str]] = {}
    for question in QUESTIONS:
        if room in question.asked_by and question.room != room:
            asked.setdefault(question.room, []).append(question.name)
    subjects = {}
    for other, names in sorted(asked.items()):
        org = DEPLOYMENT if other == BOOTSTRAP else "*"
        name = names[0] if len(names) == 1 else "*"
        subjects[other] = f"rienda.ask.{org}.room.{room}.{other}.{name}"
    return subjects


def room_words(room: str) -> list[str]:
    """The subjects that a room speaks on."""
    return [f"rienda.event.*.{room}.>", *SPEAKS_ALSO.get(room, ()), f"rienda.dead.{room}"]


def answers(room: str) -> bool:
    """Whether anybody asks this room."""
    return any(question.room == room for question in QUESTIONS)


def room_rights(room: str) -> Rights:
    """The rights of a room: its own words, its durables, its questions, nothing else."""
    publish = [*room_words(room), *asked_by_room(room).values()]
    subscribe = [f"{inbox_prefix(room)}.>"]
    for spec in DURABLES:
        if spec.room == room:
            publish += [
                f"{JETSTREAM_PREFIX}.CONSUMER.INFO.{spec.stream}.{spec.durable}",
                f"{JETSTREAM_PREFIX}.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}",
                f"$JS.ACK.{spec.stream}.{spec.durable}.>",
            ]
    if room in WITNESSED_ROOMS:
        publish.append(f"rienda.witness.{room}")
    if answers(room):
        publish.append(REPLIES)
        subscribe.append(f"rienda.ask.*.*.*.{room}.* {room}")
    return Rights(tuple(publish), tuple(subscribe))


def channel_rights(org: str, channel_id: str, events: Sequence[EventType] = EVENTS) -> Rights:
    """The rights of a channel: its own events and pulses, the questions that channels may ask."""
    user = channel_user(org, channel_id)
    return Rights(
        publish=(
            f"rienda.event.{org}.channel.{channel_id}.>",
            f"rienda.pulse.{org}.channel.{channel_id}.>",
            *asked_by_channels(org, channel_id),
            probe_subject(org),
        ),
        subscribe=(f"{inbox_prefix(user)}.>", *heard_by_channels(org, events)),
    )
