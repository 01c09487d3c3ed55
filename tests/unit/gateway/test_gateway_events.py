"""Stamping what a channel says over HTTP."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from contracts.errors import Invalid
from contracts.types import ChannelRight
from contracts.upcast import read_event
from services.gateway.domain.events import Publisher, stamp
from services.gateway.domain.json_text import parse

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
PUBLISHER = Publisher("acme", "desk", frozenset())
IMPORTER = Publisher("acme", "importer", frozenset({ChannelRight.BACKFILL}))


def at(**ahead: float) -> str:
    return (NOW + timedelta(**ahead)).isoformat()


def usage(occurred_at: str, **changes: Any) -> dict[str, Any]:
    data = {
        "request_id": "r",
        "run_id": "1",
        "model": "m",
        "tokens": {"input": 1},
        "occurred_at": occurred_at,
    }
    return {"id": "u", "type": "rienda.usage_reported.v1", "data": data, **changes}


def ingestion(occurred_at: str, **changes: Any) -> dict[str, Any]:
    data = {
        "ingestion_id": "i",
        "request_id": "r",
        "model": "m",
        "tokens": {"input": 1},
        "occurred_at": occurred_at,
        **changes,
    }
    return {"id": "i", "type": "rienda.ingestion_reported.v1", "data": data}


def beat(**changes: Any) -> dict[str, Any]:
    data = {"run_id": "1", "at": at()}
    return {"id": "b", "type": "rienda.run_heartbeat.v1", "data": data, **changes}


CALL = {"call_id": "c", "tool_id": "mail", "tool_name": "send_mail", "arguments": "{}"}


def parked(**changes: Any) -> dict[str, Any]:
    data = {"run_id": "1", "at": at(hours=-1), "calls": [CALL], **changes}
    return {"id": "p", "type": "rienda.run_parked.v1", "data": data}


def resumed(**changes: Any) -> dict[str, Any]:
    data = {"run_id": "1", "claim_id": "claim", "at": at(hours=-1), **changes}
    return {"id": "g", "type": "rienda.run_resumed.v1", "data": data}


def refusal(item: object, publisher: Publisher = PUBLISHER) -> str:
    with pytest.raises(Invalid) as refused:
        stamp(item, publisher, now=NOW)
    return refused.value.reason


def test_says_who_it_is_whatever_the_body_claims() -> None:
    stamped = stamp(usage(at(), source="channel/other", subject="acme"), PUBLISHER, now=NOW)
    address, event = read_event(stamped.subject, stamped.body)
    assert (address.org, address.channel_id) == ("acme", "desk")
    assert (event.source, event.subject, event.specversion) == ("channel/desk", "acme", "1.0")


def test_the_same_words_give_the_same_bytes_at_any_time() -> None:
    item = usage(at(hours=-1))
    shuffled = dict(reversed(list(item.items())))
    once = stamp(item, PUBLISHER, now=NOW)
    later = stamp(shuffled, PUBLISHER, now=NOW + timedelta(minutes=3))
    assert once == later
    assert json.loads(once.body)["time"] == "2026-11-30T11:00:00Z"


@pytest.mark.parametrize("item", [parked(), resumed()])
def test_parks_and_resumes_say_when_they_happened(item: dict[str, Any]) -> None:
    assert json.loads(stamp(item, PUBLISHER, now=NOW).body)["time"] == "2026-11-30T11:00:00Z"


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (parked(calls=[]), "invalid_field"),
        (parked(calls=None), "invalid_field"),
        (parked(calls=[CALL] * 101), "invalid_field"),
        (parked(calls=[CALL | {"arguments": {}}]), "invalid_field"),
        (parked(calls=[CALL | {"call_id": "with blank"}]), "invalid_field"),
        (parked(calls=[CALL | {"delegate": {"agent_id": "a"}}]), "invalid_field"),
        (parked(calls=[CALL | {"deadline_at": "2026-12-01T12:00:00"}]), "naive_time"),
        (parked(calls=[CALL | {"context": {"k": "\x00"}}]), "nul_character"),
        (parked(at=at(minutes=6)), "time_in_future"),
        (parked(at="2026-11-30T12:00:00"), "naive_time"),
        (parked(run_id=""), "invalid_field"),
        (resumed(claim_id=None), "invalid_field"),
        (resumed(at=at(minutes=6)), "time_in_future"),
        (resumed(at=None), "invalid_field"),
    ],
)
def test_each_wrong_field_of_a_park_or_resume_has_one_answer(
    item: dict[str, Any], reason: str
) -> None:
    assert refusal(item) == reason


def test_another_channel_or_body_has_another_message_id() -> None:
    item = usage(at())
    one = stamp(item, PUBLISHER, now=NOW)
    two = stamp(item, IMPORTER, now=NOW)
    three = stamp(usage(at(), correlationid="c"), PUBLISHER, now=NOW)
    assert len({one.message_id, two.message_id, three.message_id}) == 3


@pytest.mark.parametrize(
    ("ahead", "refused"), [({"minutes": 5}, False), ({"minutes": 5, "seconds": 1}, True)]
)
def test_five_minutes_ahead_is_the_limit(ahead: dict[str, float], refused: bool) -> None:
    for item in (usage(at(**ahead)), beat(time=at(**ahead))):
        if refused:
            assert refusal(item) == "time_in_future"
        else:
            stamp(item, PUBLISHER, now=NOW)


@pytest.mark.parametrize(
    ("ago", "refused"), [({"hours": -72}, False), ({"hours": -72, "seconds": -1}, True)]
)
def test_usage_older_than_72_hours_needs_backfill(ago: dict[str, float], refused: bool) -> None:
    item = usage(at(**ago))
    stamp(item, IMPORTER, now=NOW)
    if refused:
        assert refusal(item) == "usage_too_old"
    else:
        stamp(item, PUBLISHER, now=NOW)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"subject": "other"}, "wrong_organization"),
        ({"subject": 7}, "wrong_organization"),
        ({"type": "rienda.usage_reported.v2"}, "unknown_event"),
        ({"type": "rienda.nothing.v1"}, "unknown_event"),
        ({"type": "usage_reported"}, "unknown_event"),
        ({"type": None}, "unknown_event"),
        ({"type": "rienda.audit_recorded.v1"}, "not_for_channels"),
        ({"type": "rienda.agent_published.v1"}, "not_for_channels"),
        ({"time": "2026-11-30T12:00:00"}, "naive_time"),
        ({"time": "yesterday"}, "invalid_field"),
        ({"specversion": "0.3"}, "invalid_field"),
        ({"datacontenttype": "text/xml"}, "invalid_field"),
        ({"id": ""}, "invalid_field"),
        ({"id": "a b"}, "invalid_field"),
        ({"id": None}, "invalid_field"),
        ({"data": None}, "invalid_field"),
        ({"data": []}, "invalid_field"),
        ({"correlationid": "x\x00"}, "nul_character"),
        ({"correlationid": "\udc00"}, "lone_surrogate"),
    ],
)
def test_refuses_with_a_reason(changes: dict[str, Any], reason: str) -> None:
    assert refusal(usage(at(), **changes)) == reason


@pytest.mark.parametrize("item", [None, 1, "x", [], [{}]])
def test_refuses_what_is_no_object(item: object) -> None:
    assert refusal(item) == "not_an_object"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"id": 1, "id": 2}', "duplicate_key"),
        ('{"data": {"a": {"b": 1, "b": 1}}}', "duplicate_key"),
        ('{"n": NaN}', "not_a_number"),
        ('{"n": -Infinity}', "not_a_number"),
        ('{"n": 1e400}', "not_a_number"),
        ('{"n": 9223372036854775808}', "integer_too_large"),
        ('{"n": -9223372036854775809}', "integer_too_large"),
        (f'{{"n": {"9" * 5000}}}', "integer_too_large"),
        ('{"a\\u0000b": 1}', "nul_character"),
        ('{"a": "\\ud800"}', "lone_surrogate"),
    ],
)
def test_refuses_what_no_column_stores_and_leaves_neighbours(text: str, reason: str) -> None:
    broken, good = parse(f"[{text}, 1]".encode())  # type: ignore[misc]
    assert good == 1
    assert refusal(broken) == reason


def test_keeps_what_is_harmless() -> None:
    value = parse(b'{"a": "\\\\u0000", "b": [1.5, -9223372036854775808, true, null, "\xc3\xa9"]}')
    assert value == {"a": "\\u0000", "b": [1.5, -(2**63), True, None, "\u00e9"]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not_json"),
        (b"{'a': 1}", "not_json"),
        (b"\xff", "not_json"),
        (b"[" * 200_000, "too_deep"),
    ],
)
def test_refuses_a_body_that_is_no_json(body: bytes, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(body)
    assert refused.value.reason == reason


def test_ingestion_is_said_without_a_run_and_dated_by_when_it_occurred() -> None:
    stamped = stamp(ingestion(at(hours=-1)), PUBLISHER, now=NOW)
    address, event = read_event(stamped.subject, stamped.body)
    assert stamped.subject == "rienda.event.acme.channel.desk.ingestion_reported.v1"
    assert (address.channel_id, event.time) == ("desk", NOW - timedelta(hours=1))


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (ingestion(at(hours=-73)), "usage_too_old"),
        (ingestion(at(minutes=6)), "time_in_future"),
        (ingestion("2026-11-30T12:00:00"), "naive_time"),
        (ingestion(at(), ingestion_id=None), "invalid_field"),
        (ingestion(at(), tokens={"input": 2**63}), "invalid_field"),
        (ingestion(at(), tokens={"input": 0.5}), "invalid_field"),
        (ingestion(at(), model="m" * 256), "invalid_field"),
        (ingestion(at(), document_id="x" * 300_000), "oversized"),
        (ingestion(at(), unauthorized_reason="x" * 2_000), "invalid_field"),
    ],
)
def test_a_wrong_report_of_ingestion_has_one_clear_answer(item: object, reason: str) -> None:
    assert refusal(item) == reason


def test_old_ingestion_of_a_channel_with_backfill_is_taken() -> None:
    assert stamp(ingestion(at(hours=-1_000)), IMPORTER, now=NOW).event_id == "i"


STATES = {
    "goal_started": {
        "goal_id": "g",
        "project_id": "p",
        "session_id": "s",
        "agent_id": "coder",
        "user_id": "ana",
        "goal": "Every test is green.",
        "turns_max": 3,
    },
    "routine_changed": {
        "routine_id": "r",
        "kind": "schedule",
        "name": "Daily",
        "owner_user_id": "ana",
        "agent_id": "coder",
        "state": "active",
        "notification_channels": None,
        "failures_max": None,
        "result_mode": "report",
        "config_revision": 1,
    },
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_tells_of_no_instant_needs_the_time_of_its_event(name: str) -> None:
    item = {"id": "e", "type": f"rienda.{name}.v1", "data": STATES[name]}
    assert refusal(item) == "invalid_field"
    assert refusal({**item, "time": at(minutes=6)}) == "time_in_future"
    assert stamp({**item, "time": at()}, PUBLISHER, now=NOW).event_id == "e"
