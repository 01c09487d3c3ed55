"""Channels: credentials shown once, rights, revoking; and events over HTTP."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext

from contracts.channel import RunStarted, UsageReported
from contracts.upcast import read_event
from services.host.bootstrap.nats_config import BOOTSTRAP_USER
from tests.integration.gateway.running import Gateway
from tests.servers import Servers

pytestmark = pytest.mark.integration


def instant(**ago: float) -> str:
    return (datetime.now(UTC) - timedelta(**ago)).isoformat()


def started(event_id: str = "e1", run_id: str = "1", **changes: Any) -> dict[str, Any]:
    data = {
        "run_id": run_id,
        "root_run_id": run_id,
        "agent_id": "writer",
        "user_id": None,
        "started_by_user_id": None,
        "surface": "api",
        "started_at": instant(seconds=5),
    }
    return {"id": event_id, "type": "rienda.run_started.v1", "data": data, **changes}


def usage(event_id: str, occurred_at: str, **changes: Any) -> dict[str, Any]:
    data = {
        "request_id": event_id,
        "run_id": "1",
        "model": "claude-opus-4-6",
        "tokens": {"input": 10, "output": 2},
        "occurred_at": occurred_at,
    }
    return {"id": event_id, "type": "rienda.usage_reported.v1", "data": {**data, **changes}}


async def in_stream(servers: Servers, subject: str, stream: str = "CHANNEL") -> list[Any]:
    """Everything that a stream holds on a subject, oldest first."""
    client = await servers.log_in(BOOTSTRAP_USER)
    try:
        jetstream = JetStreamContext(client)
        subjects = (await jetstream.stream_info(stream, subjects_filter=subject)).state.subjects
        count = sum((subjects or {}).values())
        consumer = await jetstream.subscribe(subject, stream=stream, ordered_consumer=True)
        messages = [await consumer.next_msg(timeout=10) for _ in range(count)]
        return [read_event(message.subject, message.data)[1] for message in messages]
    finally:
        await client.close()


async def test_a_channel_gets_a_key_and_a_bus_user_shown_once(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    headers = {"Idempotency-Key": "chan"}
    body = {"channel_id": "desk", "name": "Desk"}
    made = await admin.post("/channels", json=body, headers=headers)
    assert made.status_code == 201, made.text
    shown = made.json()
    assert shown["nats"]["available"] is True
    assert shown["nats"]["user"] == f"{org}.desk"
    client = await nats.connect(
        shown["nats"]["url"],
        nkeys_seed_str=shown["nats"]["nkey_seed"],
        inbox_prefix=shown["nats"]["inbox_prefix"].encode(),
        allow_reconnect=False,
    )
    again = (await admin.post("/channels", json=body, headers=headers)).json()
    assert (again["api_key"], again["nats"]["available"]) == (None, False)
    assert shown["api_key"] not in (await admin.get("/channels")).text

    channel = gateway.caller(shown["api_key"])
    assert (await channel.post("/events", json=started())).status_code == 202
    assert (await admin.delete("/channels/desk")).status_code == 204
    assert (await channel.post("/events", json=started())).status_code == 401
    assert (await admin.delete("/channels/desk")).status_code == 204
    async with asyncio.timeout(10):
        while client.is_connected:
            await asyncio.sleep(0.01)
    taken = await admin.post("/channels", json=body)
    assert (taken.status_code, taken.json()["reason"]) == (409, "channel_taken")
    assert (await admin.delete("/channels/nothing")).status_code == 404


async def test_backfill_also_needs_to_manage_budgets(gateway: Gateway) -> None:
    org = await gateway.new_org()
    manager = gateway.caller(await gateway.new_key(org, "channels:manage"))
    body = {"channel_id": "importer", "name": "Importer", "rights": ["backfill"]}
    refused = await manager.post("/channels", json=body)
    assert (refused.status_code, refused.json()["details"]["permissions"]) == (
        403,
        ["budgets:manage"],
    )
    assert (await manager.post("/channels", json={**body, "rights": []})).status_code == 201


async def test_a_further_key_of_a_channel_takes_its_place(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    await gateway.new_channel(org, "desk")
    body = {"name": "second", "permissions": ["channels:publish"], "channel_id": "desk"}
    made = await admin.post("/api-keys", json=body)
    assert made.status_code == 201, made.text
    channel = gateway.caller(made.json()["api_key"])
    assert (await channel.post("/events", json=started())).json()["accepted"] == 1
    assert (await admin.post("/api-keys", json={**body, "channel_id": "x"})).status_code == 404


async def test_each_event_of_a_batch_is_answered_on_its_own(
    gateway: Gateway, servers: Servers
) -> None:
    org = await gateway.new_org()
    channel, _ = await gateway.new_channel(org)
    batch = [
        started("good"),
        started("foreign", subject="another-org"),
        started("naive") | {"time": "2026-11-30T12:00:00"},
        started("nul") | {"data": started()["data"] | {"agent_id": "a", "model": "x\x00y"}},
        started("room", type="rienda.run_changed.v1"),
        started("unknown", type="rienda.nothing_happened.v1"),
        started("future") | {"data": started()["data"] | {"started_at": instant(minutes=-6)}},
        usage("old", instant(hours=73)),
        usage("big", instant(hours=1), tool_counts={"x": 2**63}),
        "no object",
        started("again", run_id="2"),
    ]
    answer = await channel.post("/events", json=batch)
    assert answer.status_code == 202, answer.text
    shown = answer.json()
    assert [item["error"] and item["error"]["reason"] for item in shown["items"]] == [
        None,
        "wrong_organization",
        "naive_time",
        "nul_character",
        "not_for_channels",
        "unknown_event",
        "time_in_future",
        "usage_too_old",
        "integer_too_large",
        "not_an_object",
        None,
    ]
    assert [item["id"] for item in shown["items"]][:2] == ["good", "foreign"]
    assert (shown["accepted"], shown["duplicate"], shown["refused"]) == (2, 0, 9)
    events = await in_stream(servers, f"rienda.event.{org}.>")
    assert sorted(event.id for event in events) == ["again", "good"]
    assert {event.source for event in events} == {"channel/c1"}
    assert {event.subject for event in events} == {org}
    assert isinstance(events[0].data, RunStarted)
    repeated = await channel.post("/events", json=batch)
    assert repeated.json()["items"][0]["status"] == "duplicate"
    assert repeated.json()["duplicate"] == 2


async def test_the_key_decides_organization_and_channel(gateway: Gateway, servers: Servers) -> None:
    one, two = await gateway.new_org(), await gateway.new_org()
    first, _ = await gateway.new_channel(one, "c1")
    second, _ = await gateway.new_channel(one, "c2")
    third, _ = await gateway.new_channel(two, "c1")
    forged = started("1", source="channel/c9", subject=None)
    for channel in (first, second, third):
        assert (await channel.post("/events", json=forged)).json()["accepted"] == 1
    smuggled = await first.post("/events", json=forged, headers={"X-Organization-Id": two})
    assert smuggled.status_code == 404
    subjects = [f"rienda.event.{one}.channel.{name}.run_started.v1" for name in ("c1", "c2")]
    for subject, source in zip(subjects, ("channel/c1", "channel/c2"), strict=True):
        (event,) = await in_stream(servers, subject)
        assert (event.id, event.source) == ("1", source)
    assert len(await in_stream(servers, f"rienda.event.{two}.>")) == 1


async def test_backfill_reports_old_usage(gateway: Gateway, servers: Servers) -> None:
    org = await gateway.new_org()
    channel, _ = await gateway.new_channel(org, rights=("backfill",))
    old = usage("old", "2026-02-10T12:00:00+01:00")
    assert (await channel.post("/events", json=[old])).json()["accepted"] == 1
    (event,) = await in_stream(servers, f"rienda.event.{org}.>")
    assert isinstance(event.data, UsageReported)
    assert event.time == event.data.occurred_at == datetime(2026, 2, 10, 11, tzinfo=UTC)


async def test_a_pulse_goes_to_its_own_stream(gateway: Gateway, servers: Servers) -> None:
    org = await gateway.new_org()
    channel, _ = await gateway.new_channel(org)
    beat = {"id": "b", "type": "rienda.run_heartbeat.v1", "data": {"run_id": "1", "at": instant()}}
    assert (await channel.post("/events", json=beat)).json()["accepted"] == 1
    assert len(await in_stream(servers, f"rienda.pulse.{org}.>", "PULSE")) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b"", "not_json"),
        (b"[" * 100_000, "too_deep"),
    ],
)
async def test_a_body_that_is_no_json_is_refused(
    gateway: Gateway, body: bytes, reason: str
) -> None:
    channel, _ = await gateway.new_channel(await gateway.new_org())
    answer = await channel.post("/events", content=body)
    assert (answer.status_code, answer.json()["reason"]) == (422, reason)


async def test_what_is_wrong_inside_one_event_leaves_the_others_alone(gateway: Gateway) -> None:
    channel, _ = await gateway.new_channel(await gateway.new_org())
    good = json.dumps(started("good"))
    surrogate = json.dumps(started("s") | {"correlationid": "\ud800"})
    body = f'[{good}, {{"id": "a", "id": "b"}}, {{"id": NaN}}, {surrogate}, {{"id": 1e999}}]'
    answer = (await channel.post("/events", content=body.encode())).json()
    assert [item["error"] and item["error"]["reason"] for item in answer["items"]] == [
        None,
        "duplicate_key",
        "not_a_number",
        "lone_surrogate",
        "not_a_number",
    ]


async def test_an_event_and_a_request_have_their_limits(gateway: Gateway) -> None:
    channel, _ = await gateway.new_channel(await gateway.new_org())
    large = started("large") | {"data": started()["data"] | {"padding": "x" * (256 * 1024)}}
    answer = (await channel.post("/events", json=[large, started("ok")])).json()
    assert [item["error"] and item["error"]["reason"] for item in answer["items"]] == [
        "oversized",
        None,
    ]
    many = await channel.post("/events", json=[started(str(n)) for n in range(101)])
    assert (many.status_code, many.json()["reason"]) == (422, "too_many_events")
    huge = await channel.post("/events", content=b" " * (1024 * 1024 + 1))
    assert (huge.status_code, huge.json()["reason"]) == (413, "body_too_large")

    async def chunks() -> Any:
        for _ in range(1025):
            yield b" " * 1024

    assert (await channel.post("/events", content=chunks())).status_code == 413


@pytest.mark.parametrize(
    ("media", "array", "status"),
    [
        ("application/cloudevents+json", False, 202),
        ("application/cloudevents+json; charset=UTF-8", False, 202),
        ("application/cloudevents-batch+json", True, 202),
        ("application/cloudevents-batch+json", False, 422),
        ("application/cloudevents+json", True, 422),
        ("application/json; charset=latin-1", False, 415),
        ("text/plain", False, 415),
    ],
)
async def test_takes_the_media_types_of_cloudevents(
    gateway: Gateway, media: str, array: bool, status: int
) -> None:
    channel, _ = await gateway.new_channel(await gateway.new_org())
    body = json.dumps([started()] if array else started())
    answer = await channel.post("/events", content=body, headers={"Content-Type": media})
    assert answer.status_code == status, answer.text
