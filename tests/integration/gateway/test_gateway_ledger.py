"""The gateway with a real ledger behind it: what is said over HTTP becomes an exact bill."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.integration.gateway.running import Gateway, gateway_with_ledger
from tests.integration.gateway.saying import answered, asked, moved, now, started, usage
from tests.servers import DEPLOYMENT_KEY, RoomProcess, Servers

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
async def gateway(servers: Servers, bootstrap: RoomProcess) -> AsyncIterator[Gateway]:
    async with gateway_with_ledger(servers) as running:
        yield running


async def test_a_run_waits_for_people_and_goes_on(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin(await gateway.new_org())
    channel, _ = await gateway.new_channel(org)
    call = {"call_id": "c1", "tool_id": "mail", "tool_name": "send_mail", "arguments": "{}"}
    park = moved("w", "run_parked", calls=[call])
    answer = await channel.post("/events", json=[started("w"), park])
    assert answer.json()["accepted"] == 2, answer.text
    run = await answered(admin, "/runs/w", status="awaiting_approval")
    assert datetime.fromisoformat(run["parked_at"]) == datetime.fromisoformat(park["data"]["at"])
    assert run["reaped_at"] is None
    page = (await admin.get("/runs", params={"status": "awaiting_approval"})).json()
    assert [item["id"] for item in page["items"]] == ["w"]
    resume = moved("w", "run_resumed", claim_id="claim-1")
    assert (await channel.post("/events", json=resume)).json()["accepted"] == 1
    run = await answered(admin, "/runs/w", status="running")
    assert run["parked_at"] is None


async def test_a_deleted_run_is_unknown_and_what_it_delegated_is_top_level(
    gateway: Gateway,
) -> None:
    org, admin = await gateway.new_admin(await gateway.new_org(monthly_budget_usd="5"))
    channel, _ = await gateway.new_channel(org)
    child = {"root_run_id": "d", "parent_run_id": "d", "delegation_id": "d-1"}
    gone = {"run_id": "d", "deleted_at": now()}
    events = [
        started("d"),
        usage("dq1", "d"),
        started("dc", **child),
        usage("dq2", "dc", delegation_id="d-1"),
        {"id": "d/deleted", "type": "rienda.run_deleted.v1", "data": gone},
    ]
    assert (await channel.post("/events", json=events)).json()["accepted"] == 5
    run = await answered(admin, "/runs/dc", parent_run_id=None, request_count=1)
    assert run["delegation_id"] is None
    for path in ("/runs/d", "/runs/d/entries"):
        lost, unknown = await admin.get(path), await admin.get(path.replace("/d", "/nothing"))
        assert (lost.status_code, lost.text) == (404, unknown.text)
    (entry,) = (await admin.get("/runs/dc/entries")).json()["items"]
    assert entry["delegation_id"] is None
    assert [item["id"] for item in (await admin.get("/runs")).json()["items"]] == ["dc"]
    spend = (await admin.get("/spend", params={"days": 1})).json()
    assert (spend["deleted"]["run_count"], spend["run_count"]) == (1, 2)
    total = Decimal(spend["deleted"]["cost_usd"]) + Decimal(run["cost_usd"])
    assert total == Decimal(spend["cost_usd"])
    refused = (await channel.post("/runs/d/authorize", json=asked("dq3", "d"))).json()
    assert (refused["allowed"], refused["refusal"]["code"]) == (False, "run_deleted")


async def test_what_is_said_is_what_is_billed(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin(await gateway.new_org(monthly_budget_usd="5"))
    await admin.post(
        "/agents",
        json={"agent_id": "writer", "name": "Writer", "budget": {"monthly_usd": "0.01"}},
    )
    channel, _ = await gateway.new_channel(org)
    await answered(admin, "/caps", total=2)

    asking = await channel.post("/runs/1/authorize", json=asked("q1", "1", run_budget_usd="1"))
    assert asking.status_code == 200, asking.text
    assert asking.json()["allowed"] is True
    assert {cap["scope"] for cap in asking.json()["remaining"]} == {"run", "agent", "organization"}
    events = [started("1"), usage("q1", "1"), usage("q2", "1", model="unheard-of-model")]
    assert (await channel.post("/events", json=events)).json()["accepted"] == 3

    run = await answered(admin, "/runs/1", request_count=2, provisional=False)
    # 500 uncached, 500 read from the cache and 100 out, at 5, 0.5 and 25 USD a million.
    assert run["cost_usd"] == run["own_cost_usd"] == "0.005250"
    assert run["cost_is_partial"] is True
    assert (run["input_tokens"], run["cache_read_tokens"]) == (2_000, 1_000)
    entries = (await admin.get("/runs/1/entries")).json()["items"]
    assert sum(Decimal(entry["cost_usd"]) for entry in entries) == Decimal("0.00525")
    assert {entry["reason"] for entry in entries} == {None, "unknown_model"}
    page = (await admin.get("/runs", params={"status": ["running", "failed"]})).json()
    assert (page["total"], page["items"][0]["id"]) == (1, "1")
    assert (await admin.get("/runs", params={"status": "failed"})).json()["total"] == 0

    spend = (await admin.get("/spend", params={"days": 1})).json()
    assert (spend["cost_usd"], spend["cost_is_partial"], spend["period_days"]) == (
        "0.005250",
        True,
        1,
    )
    for name in ("by_agent", "by_provider", "by_day", "by_key", "by_person"):
        lines = spend[name]
        assert sum(Decimal(line["cost_usd"]) for line in lines) == Decimal("0.00525")
    since = (datetime.now(UTC) - timedelta(days=2)).isoformat()
    ranged = (await admin.get("/spend", params={"from": since, "days": 9})).json()
    assert ranged["period_days"] is None


async def test_a_used_up_cap_refuses_in_words(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin(await gateway.new_org(monthly_budget_usd="0.001"))
    channel, _ = await gateway.new_channel(org)
    await answered(admin, "/caps", total=1)
    events = [started("1"), usage("q1", "1")]
    assert (await channel.post("/events", json=events)).json()["accepted"] == 2
    await answered(admin, "/runs/1", request_count=1)
    refused = await channel.post("/runs/1/authorize", json=asked("q2", "1"))
    assert refused.status_code == 200, refused.text
    shown = refused.json()
    assert shown["allowed"] is False
    assert shown["refusal"]["code"] == "budget_exceeded"
    assert shown["refusal"]["scope"] == "organization"
    assert (shown["refusal"]["limit_usd"], shown["refusal"]["spent_usd"]) == (
        "0.001000",
        "0.005250",
    )
    assert shown["sentence"]
    assert shown["on_unreachable"] == "refuse"
    without_run = await channel.post("/authorize", json=asked("q3", None, agent_id=None))
    assert (without_run.status_code, without_run.json()["allowed"]) == (200, False)


async def test_a_department_is_charged_for_what_its_members_start(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    ana = await gateway.new_person(org, "member")
    for name, cap in (("sales", "0.001"), ("finance", None)):
        body = {"department_id": name, "name": name.title(), "monthly_budget_usd": cap}
        made = await gateway.caller(DEPLOYMENT_KEY, org).post(f"/orgs/{org}/departments", json=body)
        assert made.is_success, made.text
    channel, _ = await gateway.new_channel(org)
    root = gateway.caller(DEPLOYMENT_KEY, org)
    taken = {"department_id": "spend", "name": "Spend"}
    refused = await root.post(f"/orgs/{org}/departments", json=taken)
    assert (refused.status_code, refused.json()["code"]) == (422, "VALIDATION_ERROR")
    events = [
        started("1", started_by_user_id=ana.user_id),
        usage("q1", "1"),
        started("2", started_by_user_id=None),
        usage("q2", "2"),
    ]
    assert (await channel.post("/events", json=events)).json()["accepted"] == 4
    await answered(admin, "/runs/2", request_count=1)
    # Told after the run, and since before it began.
    since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    member = {"user_id": ana.user_id, "effective_at": since}
    joined = await root.post(f"/orgs/{org}/departments/sales/members", json=member)
    assert joined.is_success, joined.text
    month = f"{datetime.now(UTC):%Y-%m}"
    path = f"/orgs/{org}/departments/spend"
    row = {
        "department_id": "sales",
        "name": "Sales",
        "member_count": 1,
        "monthly_budget_usd": "0.001000",
        "spent_usd": "0.005250",
        "run_count": 1,
        "is_partial": False,
        "removed": False,
    }
    nothing = row | {
        "department_id": "finance",
        "name": "Finance",
        "member_count": 0,
        "monthly_budget_usd": None,
        "spent_usd": "0.000000",
        "run_count": 0,
    }
    page = await answered(admin, path, items=[row, nothing])
    assert (page["month"], page["since"], page["total"]) == (month, f"{month}-01T00:00:00Z", 2)
    past = (await admin.get(path, params={"month": "2026-01"})).json()
    assert [item["spent_usd"] for item in past["items"]] == ["0.000000", "0.000000"]
    for wrong in ("2026-13", "2026-1", "1999-01", "now"):
        refused = await admin.get(path, params={"month": wrong})
        assert refused.status_code == 422, refused.text
    asking = asked("q3", "1", started_by_user_id=ana.user_id)
    shown = (await channel.post("/runs/1/authorize", json=asking)).json()
    assert (shown["refusal"]["scope"], shown["refusal"]["id"]) == ("department", "sales")
    assert shown["sentence"].startswith("Sales department monthly budget exhausted")
    spend = (await admin.get("/spend")).json()
    people = {line["user_id"]: line for line in spend["by_person"]}
    assert people.keys() == {ana.user_id, None}
    assert {line["cost_usd"] for line in people.values()} == {"0.005250"}


async def test_a_run_of_another_organization_is_unknown(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    _, stranger = await gateway.new_admin()
    channel, _ = await gateway.new_channel(org)
    assert (await channel.post("/events", json=started("mine"))).json()["accepted"] == 1
    await answered(admin, "/runs/mine")
    foreign, unknown = await stranger.get("/runs/mine"), await stranger.get("/runs/nothing")
    assert (foreign.status_code, foreign.text) == (unknown.status_code, unknown.text)
    assert foreign.status_code == 404
    assert (await stranger.get("/runs/mine/entries")).status_code == 404
    assert (await admin.get("/runs/%00")).status_code == 404


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/runs?agent=writer", "unknown_parameter"),
        ("/runs?status=sleeping", "invalid_field"),
        ("/runs?limit=101", "invalid_field"),
        ("/runs?skip=-1", "invalid_field"),
        ("/runs?limit=5&limit=6", "repeated_parameter"),
        ("/runs?order_by=cost_nanousd", "invalid_field"),
        ("/runs?started_from=2026-11-30T12:00:00", "naive_time"),
        ("/runs/1/entries?scope=all", "invalid_field"),
        ("/spend?days=0", "invalid_field"),
        ("/spend?days=366", "invalid_field"),
        ("/spend?from=2026-11-30T12:00:00Z&to=2026-11-29T12:00:00Z", "window_reversed"),
        ("/spend?to=0001-01-01T00:00:00Z", "invalid_field"),
        ("/spend?to=2000-01-05T00:00:00Z", "window_out_of_range"),
        ("/caps?month=2026-11", "unknown_parameter"),
    ],
)
async def test_what_is_out_of_type_is_named(gateway: Gateway, path: str, reason: str) -> None:
    _, admin = await gateway.new_admin()
    answer = await admin.get(path)
    assert (answer.status_code, answer.json()["reason"]) == (422, reason), answer.text


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"run_id": "2"}, 422),
        ({"run_id": "1"}, 200),
        ({"cost_usd_max": 1}, 422),
        ({"cost_usd_max": "0.5"}, 200),
        ({"cost_nanousd_max": 5}, 422),
        ({"model": None}, 422),
        ({"input_tokens_max": 2**63}, 422),
        ({"media": ["audio_input"], "tool_counts_max": {"web_searches": 1}}, 200),
        ({"media": ["smells"]}, 422),
        ({"tool_counts_max": {"web_searches": -1}}, 422),
    ],
)
async def test_a_question_is_read_strictly(
    gateway: Gateway, changes: dict[str, Any], status: int
) -> None:
    org, admin = await gateway.new_admin()
    channel, _ = await gateway.new_channel(org)
    await answered(admin, "/caps", total=1)
    answer = await channel.post("/runs/1/authorize", json=asked("q", "1") | changes)
    assert answer.status_code == status, answer.text
