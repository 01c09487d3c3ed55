"""What each bus user may publish and hear, derived from the catalogue (design.md 2).

The one thing not to break: least rights. Who speaks and who asks stands in a subject and these
lists are its only proof, so a right that is wider than its user lets it speak as somebody else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from contracts.catalog import DURABLES, QUESTIONS

SPEAKS_ALSO: Final = {
    "gateway": (
        "rienda.event.*.directory.>",
        "rienda.event.*.channel.>",
        "rienda.pulse.*.channel.>",
    )
}
"""The gateway says the directory, and publishes for channels that speak HTTP (design.md 10)."""
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


def room_rights(room: str) -> Rights:
    """The rights of a room: its own words, its durables, its questions, nothing else."""
    answers = any(question.room == room for question in QUESTIONS)
    publish = [f"rienda.event.*.{room}.>", *SPEAKS_ALSO.get(room, ()), f"rienda.dead.{room}"]
    subscribe = [f"{inbox_prefix(room)}.>"]
    asked = sorted({question.room for question in QUESTIONS if room in question.asked_by})
    publish += [f"rienda.ask.*.room.{room}.{other}.*" for other in asked]
    for spec in DURABLES:
        if spec.room == room:
            publish += [
                f"$JS.API.CONSUMER.INFO.{spec.stream}.{spec.durable}",
                f"$JS.API.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}",
                f"$JS.ACK.{spec.stream}.{spec.durable}.>",
            ]
    if answers:
        # `allow_responses` would forget its state at a reload (dependencies.md 10, pitfall 4).
        publish.append("_INBOX.>")
        subscribe.append(f"rienda.ask.*.*.*.{room}.* {room}")
    return Rights(tuple(publish), tuple(subscribe))


def channel_rights(org: str, channel_id: str) -> Rights:
    """The rights of a channel: its own events and pulses, the questions that channels may ask."""
    user = channel_user(org, channel_id)
    return Rights(
        publish=(
            f"rienda.event.{org}.channel.{channel_id}.>",
            f"rienda.pulse.{org}.channel.{channel_id}.>",
            *(
                f"rienda.ask.{org}.channel.{channel_id}.{question.room}.{question.name}"
                for question in QUESTIONS
                if question.asked_by_channels
            ),
        ),
        subscribe=(f"{inbox_prefix(user)}.>",),
    )
