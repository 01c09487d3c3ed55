"""Ingestion and corrections over HTTP, with a real ledger behind the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest

from tests.integration.gateway.running import Gateway, gateway_with_ledger
from tests.integration.gateway.saying import answered, started, usage
from tests.servers import RoomProcess, Servers

pytestmark = pytest.mark.integration
UNKNOWN = "01900000-0000-7000-8000-000000000000"
WHY = {"reason": "The invoice says 0.42 USD."}


@pytest.fixture(scope="module")
async def gateway(servers: Servers, bootstrap: RoomProcess) -> AsyncIterator[Gateway]:
    async with gateway_with_ledger(servers) as running:
        yield running


def ingestion(request_id: str, ingestion_id: str) -> dict[str, Any]:
    data = {
        "ingestion_id": ingestion_id,
        "request_id": request_id,
        "document_id": "d1",
        "model": "text-embedding-3-small",
        "provider": "openai",
        "tokens": {"input": 1_000_000},
        "occurred_at": datetime.now(UTC).isoformat(),
    }
    return {"id": request_id, "type": "rienda.ingestion_reported.v1", "data": data}


async def one_entry(gateway: Gateway, org: str, admin: httpx.AsyncClient) -> dict[str, Any]:
    channel, _ = await gateway.new_channel(org)
    events = [started("1"), usage("q1", "1")]
    assert (await channel.post("/events", json=events)).json()["accepted"] == 2
    await answered(admin, "/runs/1", request_count=1)
    (entry,) = (await admin.get("/runs/1/entries")).json()["items"]
    return dict(entry)


async def test_ingestion_is_asked_for_said_billed_and_shown(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    channel, _ = await gateway.new_channel(org)
    await answered(admin, "/caps", total=1)
    names = ("root_run_id", "agent_id", "root_agent_id", "user_id", "started_by_user_id")
    question = {"request_id": "q1", "kind": "ingestion", "model": "text-embedding-3-small"}
    asking = await channel.post("/authorize", json={**dict.fromkeys(names), **question})
    assert asking.json()["allowed"] is True, asking.text
    answer = await channel.post("/events", json=[ingestion("q1", "i1"), ingestion("q2", "i1")])
    assert answer.json()["accepted"] == 2, answer.text
    spend = await answered(admin, "/spend", cost_usd="0.040000")
    assert spend["ingestion"] == {
        "basis": "requests_by_occurred_at",
        "cost_usd": "0.040000",
        "cost_is_partial": False,
        "request_count": 2,
    }
    assert (spend["by_agent"], spend["run_count"]) == ([], 0)
    assert [line["cost_usd"] for line in spend["by_provider"]] == ["0.040000"]
    first = (await admin.get("/ingestions/i1/entries", params={"limit": 1})).json()
    rest = (
        await admin.get("/ingestions/i1/entries", params={"limit": 1, "cursor": first["cursor"]})
    ).json()
    shown = first["items"] + rest["items"]
    assert {(each["request_id"], each["kind"], each["document_id"]) for each in shown} == {
        ("q1", "ingestion", "d1"),
        ("q2", "ingestion", "d1"),
    }
    made = await admin.post(
        f"/entries/{shown[0]['id']}/corrections", json={"cost_usd": "0.42", **WHY}
    )
    assert made.status_code == 201, made.text
    assert (await admin.get("/spend")).json()["ingestion"]["cost_usd"] == "0.440000"


async def test_a_correction_is_made_shown_and_never_twice(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    entry = await one_entry(gateway, org, admin)
    path, body = f"/entries/{entry['id']}/corrections", {"cost_usd": "0.42", **WHY}
    named = {"Idempotency-Key": "once"}
    made = await asyncio.gather(*(admin.post(path, json=body, headers=named) for _ in range(4)))
    assert {answer.status_code for answer in made} == {201}, [answer.text for answer in made]
    assert len({answer.text for answer in made}) == 1
    shown = made[0].json()
    assert (shown["before_usd"], shown["cost_usd"], shown["difference_usd"]) == (
        entry["cost_usd"],
        "0.420000",
        str(Decimal("0.42") - Decimal(entry["cost_usd"])),
    )
    run = (await admin.get("/runs/1")).json()
    assert (run["cost_usd"], run["request_count"]) == ("0.420000", 1)
    first, second = (await admin.get("/runs/1/entries")).json()["items"]
    assert first == entry
    assert (second["id"], second["kind"]) == (shown["id"], "correction")
    assert (second["corrects_entry_id"], second["correction_reason"]) == (
        entry["id"],
        WHY["reason"],
    )
    assert second["provider_rate"] is None
    reused = await admin.post(path, json={**body, "cost_usd": "0.43"}, headers=named)
    assert reused.status_code == 409, reused.text
    again = await admin.post(path, json=body)
    assert (again.status_code, again.json()["reason"]) == (400, "correction_changes_nothing")
    of_itself = await admin.post(f"/entries/{shown['id']}/corrections", json=body)
    assert (of_itself.status_code, of_itself.json()["reason"]) == (400, "entry_is_correction")


async def test_a_repeat_after_the_answer_was_lost_is_the_same_correction(gateway: Gateway) -> None:
    """The gateway died between the ledger's commit and its own: it knows nothing of the key."""
    org, admin = await gateway.new_admin()
    entry = await one_entry(gateway, org, admin)
    path, body = f"/entries/{entry['id']}/corrections", {"cost_usd": "0.42", **WHY}
    named = {"Idempotency-Key": "lost"}
    made = await admin.post(path, json=body, headers=named)
    assert made.status_code == 201
    import asyncpg

    connection = await asyncpg.connect(gateway.database.url("gateway"), ssl=False)
    await connection.execute("UPDATE gateway.idempotency SET created_at = '2000-01-01'")
    await connection.close()
    again = await admin.post(path, json=body, headers=named)
    assert (again.status_code, again.json()) == (201, made.json())
    assert len((await admin.get("/runs/1/entries")).json()["items"]) == 2


async def test_another_organizations_entry_answers_like_an_unknown_one(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    entry = await one_entry(gateway, org, admin)
    _, stranger = await gateway.new_admin()
    answers = [
        await stranger.post(f"/entries/{each}/corrections", json={"cost_usd": "1", **WHY})
        for each in (entry["id"], UNKNOWN, "nothing", "%00")
    ]
    assert {(answer.status_code, answer.text) for answer in answers} == {(404, answers[0].text)}
    assert answers[0].json()["reason"] == "entry_unknown"
    lists = [await stranger.get(f"/ingestions/{each}/entries") for each in ("i1", "%00")]
    assert {(answer.status_code, answer.json()["reason"]) for answer in lists} == {
        (404, "ingestion_unknown")
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"cost_usd": "-1"},
        {"cost_usd": 1},
        {"cost_usd": "1e2"},
        {"cost_usd": "0.0000000001"},
        {"cost_usd": "9223372036.854775808"},
        {"cost_usd": None},
        {"reason": ""},
        {"reason": "   "},
        {"reason": "two\nlines"},
        {"reason": "x" * 1_001},
        {"reason": None},
        {"why": "an unknown field"},
    ],
)
async def test_a_correction_is_read_strictly(gateway: Gateway, changes: dict[str, Any]) -> None:
    _, admin = await gateway.new_admin()
    body = {"cost_usd": "1", **WHY} | changes
    answer = await admin.post(f"/entries/{UNKNOWN}/corrections", json=body)
    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_field"), answer.text
