"""Subjects of the bus: written from what is said, read into who says what (design.md 2)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Literal

from contracts.catalog import ROOMS, EventType, QuestionType, find_event
from contracts.errors import Invalid


@dataclass(frozen=True, slots=True)
class Address:
    """What a subject says about its message. The publisher's rights prove it."""

    org: str
    producer: str
    """`channel`, `directory` or a room."""
    channel_id: str | None
    event: EventType
    """The newest version of what is said."""
    version: int
    """The version that is said."""

    @property
    def producer_key(self) -> str:
        """Who spoke, for inbox keys: `channel:<id>`, `directory` or the room."""
        return f"channel:{self.channel_id}" if self.channel_id else self.producer


_SUBJECT: Final = re.compile(
    r"rienda\.(?P<kind>event|pulse)\.(?P<org>[a-z0-9][a-z0-9-]{0,62}|_)\."
    r"(?P<producer>[a-z]+)\.(?P<rest>[^ ]+)\Z"
)


_NAME_VERSION: Final = re.compile(r"(?P<name>[a-z_]+)\.v(?P<version>[1-9][0-9]{0,3})\Z")


def token_of(*parts: str) -> str:
    """Hash ids into one subject token: ids may contain dots."""
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def event_subject(
    event: EventType,
    org: str,
    *,
    channel_id: str | None = None,
    token: str | None = None,
    room: str | None = None,
) -> str:
    """The subject that an event is published on (design.md 2, *Subjects*)."""
    tail = f"{event.name}.v{event.version}"
    if event.producer == "room":
        if room is None:
            raise ValueError("an event of any room needs the room that says it")
        return f"rienda.event.{org}.{room}.{tail}"
    if event.producer == "channel":
        if channel_id is None:
            raise ValueError("a channel's event needs its channel")
        if event.stream == "PULSE":
            return f"rienda.pulse.{org}.channel.{channel_id}.{tail}.{token or '-'}"
        return f"rienda.event.{org}.channel.{channel_id}.{tail}"
    if event.producer == "directory":
        if token is None:
            raise ValueError("a directory entry needs the token of its entity")
        return f"rienda.event.{org}.directory.{token}.{tail}"
    return f"rienda.event.{org}.{event.producer}.{tail}"


def read_subject(subject: str) -> Address:
    """Read a subject back.

    Raises:
        Invalid: `unknown_subject`, `unknown_event`.
    """
    match = _SUBJECT.match(subject)
    if match is None:
        raise Invalid(f"no event is said on {subject[:200]!r}", reason="unknown_subject")
    rest = match["rest"].split(".")
    channel_id: str | None = None
    if match["producer"] == "channel":
        channel_id, rest = rest[0], rest[1:]
    elif match["producer"] == "directory":
        rest = rest[1:]
    if match["kind"] == "pulse":
        rest = rest[:2]
    name_version = _NAME_VERSION.match(".".join(rest))
    if name_version is None:
        raise Invalid(f"no event is said on {subject[:200]!r}", reason="unknown_subject")
    event = find_event(name_version["name"])
    version = int(name_version["version"])
    if version > event.version:
        raise Invalid(
            f"{event.name} is known up to version {event.version}", reason="unknown_event"
        )
    said_by_any_room = event.producer == "room" and match["producer"] in ROOMS
    if event.producer != match["producer"] and not said_by_any_room:
        raise Invalid(f"{match['producer']} does not say {event.name}", reason="unknown_event")
    return Address(match["org"], match["producer"], channel_id, event, version)


def question_subject(question: QuestionType, org: str, kind: str, asker: str) -> str:
    """`rienda.ask.<org>.<kind>.<asker>.<room>.<question>`: the asker is in the subject."""
    return f"rienda.ask.{org}.{kind}.{asker}.{question.room}.{question.name}"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a question's subject says about the asker."""

    org: str
    kind: Literal["channel", "room"]
    asker: str


_ASK: Final = re.compile(
    r"rienda\.ask\.(?P<org>[a-z0-9][a-z0-9-]{0,62}|_)\.(?P<kind>channel|room)\."
    r"(?P<asker>[a-z0-9][a-z0-9-]{0,62})\.[a-z]+\.[a-z_]+\Z"
)


def read_question_subject(subject: str) -> Asked:
    """Read who asks out of a question's subject.

    Raises:
        Invalid: `unknown_subject`.
    """
    match = _ASK.match(subject)
    if match is None:
        raise Invalid(f"no question is asked on {subject[:200]!r}", reason="unknown_subject")
    kind: Literal["channel", "room"] = "channel" if match["kind"] == "channel" else "room"
    return Asked(match["org"], kind, match["asker"])
