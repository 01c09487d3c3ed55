"""What the envelope lets through, and the reason that each refusal gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.catalog import find_event
from contracts.channel import RunHeartbeat
from contracts.directory import AgentPublished
from contracts.envelope import BODY_BYTES_MAX, Event, decode, encode, message_id
from contracts.errors import Invalid
from contracts.types import BIGINT_MAX, BIGINT_MIN
from contracts.upcast import read_event

HEARTBEAT = "rienda.pulse.acme.channel.c1.run_heartbeat.v1.t1"
USAGE = "rienda.event.acme.channel.c1.usage_reported.v1"
PUBLISHED = "rienda.event.acme.directory.t1.agent_published.v1"
NOON = "2026-11-20T12:00:00Z"


def heartbeat(**changes: Any) -> dict[str, Any]:
    return {
        "id": "e1",
        "source": "channel/c1",
        "type": "rienda.run_heartbeat.v1",
        "time": NOON,
        "subject": "acme",
        "data": {"run_id": "r1", "at": NOON},
    } | changes


def usage(**tokens: int) -> dict[str, Any]:
    data = {"request_id": "q1", "run_id": "r1", "model": "m", "tokens": tokens, "occurred_at": NOON}
    return heartbeat(type="rienda.usage_reported.v1", data=data)


def published(**changes: Any) -> dict[str, Any]:
    data = {
        "entity_revision": 1,
        "agent_id": "coder",
        "version": 1,
        "name": "Coder",
        "owner_user_id": None,
        "budget": {},
        "cap_revision": 1,
        "published_at": NOON,
    }
    return heartbeat(type="rienda.agent_published.v1", source="gateway", data=data | changes)


def read(subject: str, value: Mapping[str, Any] | bytes) -> Event[Any]:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_event(subject, body)[1]


def refusal(subject: str, value: Mapping[str, Any] | bytes) -> Invalid:
    with pytest.raises(Invalid) as refused:
        read(subject, value)
    return refused.value


def fields(why: Invalid) -> list[str]:
    return [item["field"] for item in why.details["fields"]]


def test_reads_what_belongs_to_its_subject() -> None:
    address, event = read_event(HEARTBEAT, json.dumps(heartbeat()).encode())
    assert (address.org, address.channel_id, address.producer_key) == ("acme", "c1", "channel:c1")
    assert event.org == "acme"
    assert event.data == RunHeartbeat(run_id="r1", at=datetime(2026, 11, 20, 12, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-11-20T12:00:00Z", "2026-11-20T12:00:00+00:00"),
        ("2026-11-20t12:00:00z", "2026-11-20T12:00:00+00:00"),
        ("2026-11-20 12:00:00+00:00", "2026-11-20T12:00:00+00:00"),
        ("2026-11-20T12:00:00-00:00", "2026-11-20T12:00:00+00:00"),
        ("2026-11-20T01:30:00+05:30", "2026-11-19T20:00:00+00:00"),
        ("2026-11-20T23:30:00-09:30", "2026-11-21T09:00:00+00:00"),
        ("2026-11-20T12:00:00.5Z", "2026-11-20T12:00:00.500000+00:00"),
        ("2026-11-20T12:00:00.123456789Z", "2026-11-20T12:00:00.123456+00:00"),
        ("2026-11-20T12:00:00.999999999+02:00", "2026-11-20T10:00:00.999999+00:00"),
    ],
)
def test_takes_times_with_an_offset(text: str, utc: str) -> None:
    event = read(HEARTBEAT, heartbeat(data={"run_id": "r1", "at": text}))
    assert event.data.at.isoformat() == utc


@pytest.mark.parametrize(
    "text", ["2026-11-20T12:00:00", "2026-11-20", "2026-11-20 12:00", "2026-11-20T12:00:00.5"]
)
def test_refuses_a_naive_time(text: str) -> None:
    inside = refusal(HEARTBEAT, heartbeat(data={"run_id": "r1", "at": text}))
    assert (inside.reason, fields(inside)) == ("naive_time", ["data.at"])
    outside = refusal(HEARTBEAT, heartbeat(time=text))
    assert (outside.reason, fields(outside)) == ("naive_time", ["time"])
    assert text not in outside.message


@pytest.mark.parametrize(
    "value",
    [
        "2026-12-31T23:59:60Z",
        "2026-12-31T24:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-11-20T12:00:00+24:00",
        "2026-11-20T12:00:00.1234567890Z",
        "0001-01-01T00:00:00+14:00",
        "12:00",
        "yesterday",
        "",
        1_764_000_000,
        1.5,
        True,
        None,
    ],
    ids=repr,
)
def test_refuses_what_is_no_time(value: object) -> None:
    """A leap second is no time that Postgres or Python could keep."""
    why = refusal(HEARTBEAT, heartbeat(data={"run_id": "r1", "at": value}))
    assert fields(why) == ["data.at"]
    assert why.reason in ("invalid_field", "naive_time")


@pytest.mark.parametrize(
    "value", [published(name="a\x00b"), published(spec={"a": [{"b\x00": 1}]}), heartbeat(x="\x00")]
)
def test_refuses_a_nul_character_anywhere(value: dict[str, Any]) -> None:
    assert refusal(PUBLISHED, value).reason == "nul_character"


def test_refuses_a_nul_character_however_deep_it_lies() -> None:
    body = json.dumps(published(spec={"deep": 0})).encode()
    deep = b"[" * 20_000 + b'"\\u0000"' + b"]" * 20_000
    assert refusal(PUBLISHED, body.replace(b"0}", deep + b"}")).reason in (
        "nul_character",
        "not_json",
    )


def test_an_escaped_backslash_before_u0000_is_text() -> None:
    event = read(PUBLISHED, published(name="\\u0000"))
    assert event.data.name == "\\u0000"
    assert decode(encode(event), type(event)) == event


@pytest.mark.parametrize("escape", [b"\\ud800", b"\\udfff", b"\\ud800\\ud800", b"a\\udc00b"])
def test_refuses_a_lone_surrogate(escape: bytes) -> None:
    body = json.dumps(published(name="NAME")).encode().replace(b"NAME", escape)
    assert refusal(PUBLISHED, body).reason == "not_json"
    inside = json.dumps(published(spec={"a": "NAME"})).encode().replace(b"NAME", escape)
    assert refusal(PUBLISHED, inside).reason == "not_json"


def test_writes_no_lone_surrogate() -> None:
    event = read(PUBLISHED, published())
    said = AgentPublished.model_construct(**(event.data.__dict__ | {"name": "\ud800"}))
    with pytest.raises(Invalid) as refused:
        encode(event.model_copy(update={"data": said}))
    assert refused.value.reason == "lone_surrogate"


def test_takes_a_pair_of_surrogates() -> None:
    body = json.dumps(published(name="NAME")).encode().replace(b"NAME", b"\\ud83d\\ude00")
    assert read(PUBLISHED, body).data.name == "\N{GRINNING FACE}"


@pytest.mark.parametrize("count", [BIGINT_MIN, -1, 0, BIGINT_MAX])
def test_takes_every_64_bit_count(count: int) -> None:
    assert read(USAGE, usage(input=count)).data.tokens.input == count


@pytest.mark.parametrize("count", [BIGINT_MAX + 1, BIGINT_MIN - 1, 10**30])
def test_refuses_an_integer_beyond_bigint(count: int) -> None:
    why = refusal(USAGE, usage(input=count))
    assert (why.reason, fields(why)) == ("invalid_field", ["data.tokens.input"])


@pytest.mark.parametrize("count", [BIGINT_MAX + 1, BIGINT_MIN - 1, 10**30])
def test_refuses_an_integer_beyond_bigint_in_free_details(count: int) -> None:
    """No driver writes it into a JSON column, so it would fail after it was taken."""
    assert refusal(PUBLISHED, published(spec={"limits": [count]})).reason == "invalid_field"


@pytest.mark.parametrize("count", [1.5, 1.0, "1", True, None])
def test_takes_no_number_for_another(count: Any) -> None:
    assert fields(refusal(USAGE, usage(input=count))) == ["data.tokens.input"]


def padded(size: int) -> bytes:
    body = json.dumps(heartbeat(padding="")).encode()
    return body.replace(b'"padding": ""', b'"padding": "' + b"x" * (size - len(body)) + b'"')


def test_takes_256_kib_and_not_a_byte_more() -> None:
    assert len(padded(BODY_BYTES_MAX)) == BODY_BYTES_MAX == 262_144
    read(HEARTBEAT, padded(BODY_BYTES_MAX))
    why = refusal(HEARTBEAT, padded(BODY_BYTES_MAX + 1))
    assert why.reason == "oversized"
    assert why.details == {"bytes": BODY_BYTES_MAX + 1, "bytes_max": BODY_BYTES_MAX}


def test_writes_no_more_than_256_kib() -> None:
    event = read(PUBLISHED, published(spec={"note": "x" * 200_000}))
    grown = event.data.model_copy(update={"spec": {"note": "x" * BODY_BYTES_MAX}})
    with pytest.raises(Invalid) as refused:
        encode(event.model_copy(update={"data": grown}))
    assert refused.value.reason == "oversized"


@pytest.mark.parametrize("org", ["other", "_"])
def test_refuses_another_organization_than_the_subjects(org: str) -> None:
    why = refusal(HEARTBEAT, heartbeat(subject=org))
    assert why.reason == "wrong_organization"


def test_refuses_another_type_than_the_subjects() -> None:
    assert refusal(HEARTBEAT, heartbeat(type="rienda.run_started.v1")).reason == "type_mismatch"
    assert refusal(HEARTBEAT, heartbeat(type="rienda.run_heartbeat.v2")).reason == "type_mismatch"


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("rienda.event.acme.channel.c1.run_exploded.v1", "unknown_event"),
        ("rienda.event.acme.channel.c1.run_started.v2", "unknown_event"),
        ("rienda.event.acme.channel.c1.run_changed.v1", "unknown_event"),
        ("rienda.event.acme.directory.t1.run_started.v1", "unknown_event"),
        ("rienda.event.acme.stranger.audit_recorded.v1", "unknown_event"),
        ("rienda.event.acme.channel.c1.run_started.v0", "unknown_subject"),
        ("rienda.event.acme.channel.c1.run_started", "unknown_subject"),
        ("rienda.event.Acme.channel.c1.run_started.v1", "unknown_subject"),
        ("rienda.event.acme.channel.c1", "unknown_subject"),
        ("rienda.ask.acme.channel.c1.ledger.authorize", "unknown_subject"),
        ("rienda.dead.ledger", "unknown_subject"),
        ("", "unknown_subject"),
    ],
)
def test_refuses_what_no_event_is_said_on(subject: str, reason: str) -> None:
    assert refusal(subject, heartbeat()).reason == reason


def test_tolerates_fields_of_a_newer_sender() -> None:
    newer = heartbeat(dataschema="x", data={"run_id": "r1", "at": NOON, "mood": {"a": [1]}})
    assert read(HEARTBEAT, newer) == read(HEARTBEAT, heartbeat())


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'"event"', b"{", b"\xff", b"{}", b"[" * 5_000]
)
def test_refuses_what_is_no_event(body: bytes) -> None:
    assert refusal(HEARTBEAT, body).reason in ("not_json", "invalid_field")


@pytest.mark.parametrize("event_id", ["", "a b", "a\nb", "x" * 257, "é", 1, None])
def test_refuses_an_id_that_is_none(event_id: object) -> None:
    assert fields(refusal(HEARTBEAT, heartbeat(id=event_id))) == ["id"]


def test_never_repeats_a_value() -> None:
    why = refusal(HEARTBEAT, heartbeat(data={"run_id": "s3cret value", "at": NOON}))
    assert "s3cret" not in json.dumps([why.message, why.details])


def test_the_message_id_keeps_two_channels_apart() -> None:
    body = json.dumps(heartbeat()).encode()
    first = message_id("rienda.event.acme.channel.c1.x.v1", "s", "1", body)
    assert first == message_id("rienda.event.acme.channel.c1.x.v1", "s", "1", body)
    others = [
        message_id("rienda.event.acme.channel.c2.x.v1", "s", "1", body),
        message_id("rienda.event.acme.channel.c1.x.v1", "t", "1", body),
        message_id("rienda.event.acme.channel.c1.x.v1", "s", "2", body),
        message_id("rienda.event.acme.channel.c1.x.v1", "s", "1", body + b" "),
        message_id("rienda.event.acme.channel.c1.x.v1s", "", "1", body),
        message_id("rienda.event.acme.channel.c1.x.v1", "s1", "", body),
    ]
    assert len({first, *others}) == len(others) + 1


ANY_TEXT = st.text(max_size=12)
AWKWARD_TEXT = st.sampled_from(["\x00", "a\x00b", "\\u0000", "\\\x00", "\ud800", "\U0001f600"])
ANY_VALUE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**80), 2**80),
        st.sampled_from([BIGINT_MIN - 1, BIGINT_MAX, BIGINT_MAX + 1]),
        ANY_TEXT,
        AWKWARD_TEXT,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(ANY_TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)


def leaves_of(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for pair in value.items() for part in pair for leaf in leaves_of(part)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


@settings(deadline=None)
@given(
    name=ANY_TEXT, spec=st.dictionaries(ANY_TEXT, ANY_VALUE, max_size=4), ascii_only=st.booleans()
)
def test_what_is_read_can_be_stored(name: str, spec: dict[str, Any], ascii_only: bool) -> None:
    try:
        body = json.dumps(published(name=name, spec=spec), ensure_ascii=ascii_only).encode()
        event = read(PUBLISHED, body)
    except (Invalid, UnicodeEncodeError):
        return
    for leaf in leaves_of(event.model_dump(mode="python")):
        if isinstance(leaf, str):
            assert "\x00" not in leaf
            leaf.encode()
        elif isinstance(leaf, int):
            assert BIGINT_MIN <= leaf <= BIGINT_MAX
    assert decode(encode(event), type(event)) == event


@settings(deadline=None)
@given(revision=st.integers(-(2**70), 2**70), version=st.integers(-(2**70), 2**70))
def test_every_integer_that_is_read_fits_its_column(revision: int, version: int) -> None:
    value = published(entity_revision=revision, version=abs(version) % (2**31 - 1) + 1)
    if 1 <= revision <= BIGINT_MAX:
        assert read(PUBLISHED, value).data.entity_revision == revision
    else:
        assert fields(refusal(PUBLISHED, value)) == ["data.entity_revision"]


def test_the_events_of_these_tests_are_the_catalogues() -> None:
    assert find_event("agent_published").model is AgentPublished
