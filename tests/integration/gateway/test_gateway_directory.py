"""Organizations and agents over HTTP, with a real database."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import orjson
import pytest

from contracts.directory import AgentPublished, OrganizationChanged
from contracts.rooms import AuditRecorded
from contracts.types import CapMode
from contracts.upcast import read_event
from tests.integration.gateway.running import Gateway

pytestmark = pytest.mark.integration


async def said(gateway: Gateway, org: str) -> list[Any]:
    """What the outbox holds of an organization, as its hearers will read it."""
    connection = await asyncpg.connect(gateway.database.admin_url, ssl=False)
    try:
        rows = await connection.fetch(
            "SELECT subject, body FROM gateway.outbox WHERE subject LIKE $1 ORDER BY id",
            f"rienda.event.{org}.%",
        )
    finally:
        await connection.close()
    return [read_event(row["subject"], bytes(row["body"]))[1] for row in rows]


async def test_creates_an_organization_with_the_default_cap(gateway: Gateway) -> None:
    body = {"org_id": "defaulted", "name": "Acme"}
    answer = await gateway.deployment.post("/orgs", json=body)
    assert answer.status_code == 201, answer.text
    shown = answer.json()
    assert shown["monthly_budget_usd"] == "100.000000"
    assert shown["cap_mode"] == "recorded"
    assert shown["on_unreachable"] == "refuse"
    assert shown["billing_zones"] == [{"from_month": "0001-01", "timezone": "UTC"}]
    assert shown["entity_revision"] == 1

    changed, audit = (event.data for event in await said(gateway, "defaulted"))
    assert isinstance(changed, OrganizationChanged)
    assert changed.monthly_budget_nanousd == 100_000_000_000
    assert changed.cap_mode is CapMode.RECORDED
    assert isinstance(audit, AuditRecorded)
    assert (audit.chain, audit.number, audit.previous) == ("defaulted", 1, None)
    assert audit.entry.action == "organization.created"
    assert "key" not in str(audit.entry.actor)


async def test_null_means_uncapped_and_absent_means_the_default(gateway: Gateway) -> None:
    org = await gateway.new_org(monthly_budget_usd=None)
    answer = await gateway.deployment.get(f"/orgs/{org}")
    assert answer.json()["monthly_budget_usd"] is None


async def test_refuses_an_id_that_is_taken(gateway: Gateway) -> None:
    org = await gateway.new_org()
    answer = await gateway.deployment.post("/orgs", json={"org_id": org, "name": "Again"})
    assert answer.status_code == 409
    assert answer.json()["code"] == "ALREADY_EXISTS"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("monthly_budget_usd", 100),
        ("monthly_budget_usd", "0"),
        ("monthly_budget_usd", "-1"),
        ("monthly_budget_usd", "1e3"),
        ("monthly_budget_usd", "0.0000000001"),
        ("monthly_budget_usd", "9999999999.0"),
        ("billing_timezone", "Mars/Olympus"),
        ("billing_timezone", "../etc/passwd"),
        ("billing_timezone", "localtime"),
        ("billing_timezone", "right/Europe/Madrid"),
        ("cap_mode", "loose"),
        ("org_id", "Not An Id"),
        ("name", ""),
        ("budget", "1.00"),
    ],
)
async def test_refuses_what_is_out_of_type(gateway: Gateway, field: str, value: object) -> None:
    body = {"org_id": "out-of-type", "name": "x", field: value}
    answer = await gateway.deployment.post("/orgs", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert field in answer.text or "strict" in answer.text


async def test_changes_what_is_sent_and_leaves_the_rest(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    answer = await admin.patch(f"/orgs/{org}", json={"monthly_budget_usd": "0.000000001"})
    # No ledger runs here: the change is made, and nobody says that it is in effect.
    assert (answer.status_code, answer.json()["effective"]) == (202, False), answer.text
    assert answer.json()["monthly_budget_usd"] == "0.000000001"
    assert (answer.json()["entity_revision"], answer.json()["cap_revision"]) == (2, 2)
    renamed = await admin.patch(f"/orgs/{org}", json={"name": "Another"})
    assert (renamed.json()["entity_revision"], renamed.json()["cap_revision"]) == (3, 2)
    same = await admin.patch(f"/orgs/{org}", json={"name": "Another"})
    assert same.json()["entity_revision"] == 3
    assert (await admin.patch(f"/orgs/{org}", json={"name": None})).status_code == 422
    uncapped = await admin.patch(f"/orgs/{org}", json={"monthly_budget_usd": None})
    assert uncapped.json()["monthly_budget_usd"] is None

    audits = [event.data for event in await said(gateway, org)]
    entries = [data.entry for data in audits if isinstance(data, AuditRecorded)]
    assert [data.number for data in audits if isinstance(data, AuditRecorded)] == [1, 2, 3, 4, 5]
    assert entries[2].action == "organization.changed"
    assert entries[2].details == {"monthly_budget_nanousd": {"from": 100_000_000_000, "to": 1}}


async def test_another_time_zone_holds_from_a_later_month(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    answer = await admin.patch(f"/orgs/{org}", json={"billing_timezone": "Asia/Tokyo"})
    zones = answer.json()["billing_zones"]
    assert [zone["timezone"] for zone in zones] == ["UTC", "Asia/Tokyo"]
    back = await admin.patch(f"/orgs/{org}", json={"billing_timezone": "UTC"})
    assert [zone["timezone"] for zone in back.json()["billing_zones"]] == ["UTC"]


async def test_each_field_needs_its_own_permission(gateway: Gateway) -> None:
    org = await gateway.new_org()
    budgets = gateway.caller(await gateway.new_key(org, "budgets:manage"))
    settings = gateway.caller(await gateway.new_key(org, "org:settings"))
    viewer = gateway.caller(await gateway.new_key(org, "runs:view"))
    assert (await budgets.patch(f"/orgs/{org}", json={"name": "x"})).status_code == 403
    assert (await budgets.patch(f"/orgs/{org}", json={"cap_mode": "recorded"})).status_code == 200
    assert (await settings.patch(f"/orgs/{org}", json={"name": "x"})).status_code == 200
    refused = await viewer.patch(
        f"/orgs/{org}",
        json={"name": "x", "monthly_budget_usd": None, "chat_may_waive_approvals": False},
    )
    assert refused.status_code == 403
    assert refused.json()["details"]["permissions"] == [
        "approvals:decide",
        "budgets:manage",
        "org:settings",
    ]


async def test_lists_all_to_the_deployment_and_its_own_to_a_key(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    own = (await admin.get("/orgs")).json()
    assert ([item["org_id"] for item in own["items"]], own["total"]) == ([org], 1)
    page = (await gateway.deployment.get("/orgs", params={"limit": 1, "skip": 1})).json()
    assert len(page["items"]) == 1
    assert page["total"] > 1


async def test_an_agent_is_published_versioned_and_archived(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    spec = {"name": "Writer", "budget": {"monthly_usd": "2.5"}, "spec": {"alerts": {"x": 1.5}}}
    made = await admin.post("/agents", json={"agent_id": "writer", **spec})
    assert made.status_code == 202, made.text
    assert made.json()["budget_monthly_usd"] == "2.500000"
    assert made.json()["spec"] == {"alerts": {"x": 1.5}}
    second = await admin.post("/agents/writer/versions", json={**spec, "budget": {}})
    assert second.status_code == 202, second.text
    shown = second.json()
    assert (shown["version"], shown["entity_revision"], shown["cap_revision"]) == (2, 2, 2)
    assert shown["budget_monthly_usd"] is None
    renamed = await admin.patch("/agents/writer", json={"name": "Author"})
    assert (renamed.json()["version"], renamed.json()["entity_revision"]) == (2, 3)

    assert (await admin.post("/agents/writer/archive")).json()["entity_revision"] == 4
    assert (await admin.post("/agents/writer/archive")).json()["entity_revision"] == 4
    again = await admin.post("/agents/writer/versions", json=spec)
    assert (again.status_code, again.json()["reason"]) == (400, "agent_archived")
    assert (await admin.get("/agents")).json() == {"items": [], "total": 0}
    kept = (await admin.get("/agents", params={"include_archived": "true"})).json()
    assert kept["total"] == 1
    assert kept["items"][0]["archived_at"] is not None
    published = [e.data for e in await said(gateway, org) if isinstance(e.data, AgentPublished)]
    assert [data.entity_revision for data in published] == [1, 2, 3]
    assert published[0].budget.monthly_nanousd == 2_500_000_000


async def test_an_agent_id_may_hold_a_slash(gateway: Gateway) -> None:
    _, admin = await gateway.new_admin()
    made = await admin.post("/agents", json={"agent_id": "writer/critic", "name": "Critic"})
    assert made.status_code == 201, made.text
    assert (await admin.get("/agents/writer%2Fcritic")).json()["agent_id"] == "writer/critic"
    assert (await admin.get("/agents/writer%2fcritic")).status_code == 200
    assert (await admin.get("/agents/writer/critic")).status_code == 404
    assert (await admin.get("/agents/writer%252Fcritic")).status_code == 404
    assert (await admin.get("/agents/writer%1Fcritic")).status_code == 404
    assert (await admin.post("/agents/writer%2Fcritic/archive")).status_code == 200


async def test_pins_need_a_published_version_of_a_live_agent(gateway: Gateway) -> None:
    _, admin = await gateway.new_admin()
    await admin.post("/agents", json={"agent_id": "helper", "name": "Helper"})
    body: dict[str, Any] = {"agent_id": "lead", "name": "Lead"}
    missing = [{"agent_id": "helper", "version": 2}, {"agent_id": "nobody", "version": 1}]
    refused = await admin.post("/agents", json={**body, "delegates": missing})
    assert (refused.status_code, refused.json()["reason"]) == (422, "delegates_missing")
    assert refused.json()["details"]["delegates"] == ["helper@2", "nobody@1"]
    pinned = {**body, "delegates": [{"agent_id": "helper", "version": 1}]}
    assert (await admin.post("/agents", json=pinned)).status_code == 201
    await admin.post("/agents/helper/archive")
    again = await admin.post(
        "/agents/lead/versions", json={"name": "Lead", "delegates": pinned["delegates"]}
    )
    assert again.status_code == 422


async def test_a_spec_has_its_limits(gateway: Gateway) -> None:
    _, admin = await gateway.new_admin()
    body = {"agent_id": "big", "name": "Big", "spec": {"text": "x" * (64 * 1024)}}
    assert (await admin.post("/agents", json=body)).status_code == 422
    deep = b'{"agent_id": "deep", "name": "Deep", "spec": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}"
    answer = await admin.post("/agents", content=deep)
    assert answer.status_code == 422, answer.text


async def test_concurrent_changes_each_get_their_own_revision(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    answers = await asyncio.gather(
        *(admin.patch(f"/orgs/{org}", json={"name": f"name {n}"}) for n in range(12))
    )
    assert [answer.status_code for answer in answers] == [200] * 12
    revisions = sorted(answer.json()["entity_revision"] for answer in answers)
    assert revisions == list(range(2, 14))


async def test_the_same_idempotency_key_repeats_the_answer(gateway: Gateway) -> None:
    _, admin = await gateway.new_admin()
    headers = {"Idempotency-Key": "once"}
    body = {"agent_id": "once", "name": "Once"}
    answers = await asyncio.gather(
        *(admin.post("/agents", json=body, headers=headers) for _ in range(6))
    )
    assert {answer.status_code for answer in answers} == {201}
    assert len({orjson.dumps(answer.json()) for answer in answers}) == 1
    other = await admin.post("/agents", json={**body, "name": "Two"}, headers=headers)
    assert (other.status_code, other.json()["reason"]) == (409, "idempotency_key_reused")
    _, stranger = await gateway.new_admin()
    assert (await stranger.post("/agents", json=body, headers=headers)).status_code == 201
