"""The catalogue is one piece: subjects, streams, durables and questions fit one another."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from contracts.catalog import (
    DURABLES,
    EVENTS,
    QUESTIONS,
    ROOMS,
    STREAMS,
    EventType,
    QuestionType,
    StreamSpec,
    event_of,
    find_event,
    find_question,
    stream_spec,
)
from contracts.errors import Invalid
from contracts.subjects import (
    event_subject,
    question_subject,
    read_question_subject,
    read_subject,
    token_of,
)

HEARERS_OUTSIDE = {"channels"}
ANSWERERS_OUTSIDE = {"bootstrap"}
TAKEN_NAMES = {"channel", "channels", "directory", "room", "host", "dead", *ANSWERERS_OUTSIDE}
"""A room of such a name could not be told apart in a subject."""


def subjects_of(event: EventType) -> list[str]:
    rooms = ROOMS if event.producer == "room" else (None,)
    return [event_subject(event, "acme", channel_id="c1", token="t1", room=room) for room in rooms]


def matches(pattern: str, subject: str) -> bool:
    """NATS' own rule: `*` is one token, `>` is all that follow."""
    steps, tokens = pattern.split("."), subject.split(".")
    for position, step in enumerate(steps):
        if step == ">":
            return len(tokens) > position
        if position >= len(tokens) or step not in ("*", tokens[position]):
            return False
    return len(steps) == len(tokens)


def streams_of(subject: str) -> list[str]:
    return [
        stream.name
        for stream in STREAMS
        if any(matches(pattern, subject) for pattern in stream.subjects)
    ]


def names(event: EventType) -> str:
    return event.name


def test_names_are_used_once() -> None:
    for kind in (
        [event.name for event in EVENTS],
        [event.model for event in EVENTS],
        [stream.name for stream in STREAMS],
        [(question.room, question.name) for question in QUESTIONS],
        [(spec.stream, spec.durable) for spec in DURABLES],
        ROOMS,
    ):
        assert [item for item, count in Counter(kind).items() if count > 1] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_one_token_that_nothing_else_has(room: str) -> None:
    assert re.fullmatch(r"[a-z]{2,30}", room)
    assert room not in TAKEN_NAMES


@pytest.mark.parametrize("event", EVENTS, ids=names)
def test_an_event_says_what_happened_or_is_a_state(event: EventType) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event.name)
    assert event.version >= 1
    assert event.full_name == f"rienda.{event.name}.v{event.version}"
    assert find_event(event.name) is event
    assert event_of(event.model) is event


@pytest.mark.parametrize("event", EVENTS, ids=names)
def test_a_subject_is_read_back(event: EventType) -> None:
    for subject in subjects_of(event):
        address = read_subject(subject)
        assert (address.org, address.event, address.version) == ("acme", event, event.version)
        assert address.channel_id == ("c1" if event.producer == "channel" else None)
        said_by = subject.split(".")[3]
        assert address.producer == said_by
        assert address.producer_key == ("channel:c1" if said_by == "channel" else said_by)


@pytest.mark.parametrize("event", EVENTS, ids=names)
def test_an_event_lies_in_its_stream_and_no_other(event: EventType) -> None:
    for subject in subjects_of(event):
        own = event.stream or subject.split(".")[3].upper()
        assert streams_of(subject) == [own]


@pytest.mark.parametrize("event", EVENTS, ids=names)
def test_whoever_hears_an_event_has_a_durable_on_its_stream(event: EventType) -> None:
    for hearer in set(event.hearers) - HEARERS_OUTSIDE:
        assert hearer in ROOMS
        if event.producer == "room":
            heard = {room.upper() for room in ROOMS if room != hearer}
        else:
            heard = {event.stream}
        durables = {spec.stream for spec in DURABLES if spec.room == hearer}
        assert heard <= durables


def test_nobody_has_a_durable_for_nothing() -> None:
    for spec in DURABLES:
        assert spec.room in ROOMS
        stream = stream_spec(spec.stream)
        heard = [
            event.name
            for event in EVENTS
            if spec.room in event.hearers
            and any(stream.name in streams_of(subject) for subject in subjects_of(event))
        ]
        assert heard, f"{spec.room} hears nothing of {spec.stream}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_a_stream_of_its_own(room: str) -> None:
    assert stream_spec(room.upper()).subjects == (f"rienda.event.*.{room}.>",)


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: str(stream.name))
def test_a_stream_is_bounded(stream: StreamSpec) -> None:
    """Only the directory has no age: it keeps one message per entity and event."""
    assert stream.bytes_max > 0
    assert stream.duplicate_window_s > 0
    assert stream.age_s_max > 0 or stream.messages_per_subject_max == 1
    # A stream that makes room by itself may hold copies and pulses only.
    assert stream.discard == "new" or stream.name in ("PULSE", "DEAD")


def test_durables_are_bounded() -> None:
    for spec in DURABLES:
        assert 0 < spec.batch_messages_max <= spec.ack_pending_max
        assert spec.ack_wait_s > 0
        assert spec.deliveries_max == -1, "the room counts deliveries itself (ADR 0013)"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda item: f"{item.room}.{item.name}")
@pytest.mark.parametrize("org", ["acme", "_"])
@pytest.mark.parametrize("kind", ["channel", "room"])
def test_a_question_lies_outside_every_stream(question: QuestionType, org: str, kind: str) -> None:
    """A question inside a stream's subjects would be answered by the stream (design.md 2)."""
    subject = question_subject(question, org, kind, "asker-1")
    assert streams_of(subject) == []
    asked = read_question_subject(subject)
    assert (asked.org, asked.kind, asked.asker) == (org, kind, "asker-1")
    assert find_question(question.room, question.name) is question


def test_questions_are_answered_by_rooms() -> None:
    assert {question.room for question in QUESTIONS} <= {*ROOMS, *ANSWERERS_OUTSIDE}


@pytest.mark.parametrize(
    "subject",
    [
        "rienda.ask.acme.channel.c1.ledger",
        "rienda.ask.acme.person.c1.ledger.authorize",
        "rienda.ask.Acme.channel.c1.ledger.authorize",
        "rienda.ask.acme.channel.c1.ledger.authorize.more",
        "rienda.event.acme.channel.c1.run_started.v1",
    ],
)
def test_refuses_a_subject_on_which_nothing_is_asked(subject: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_question_subject(subject)
    assert refused.value.reason == "unknown_subject"


def test_refuses_what_nobody_answers() -> None:
    with pytest.raises(Invalid) as refused:
        find_question("ledger", "authorise")
    assert refused.value.reason == "unknown_question"


def test_a_token_keeps_ids_apart() -> None:
    tokens = {token_of("a", "b"), token_of("ab"), token_of("a.b"), token_of("b", "a")}
    assert len(tokens) == 4
    assert all(re.fullmatch(r"[0-9a-f]{32}", token) for token in tokens)
