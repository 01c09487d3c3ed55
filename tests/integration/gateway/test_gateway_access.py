"""Access to one agent: role, ownership, visibility and grants; environments and cycles of pins."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.directory import AgentPublished
from tests.integration.gateway.running import Gateway
from tests.integration.gateway.test_gateway_directory import said
from tests.servers import DEPLOYMENT_KEY

pytestmark = pytest.mark.integration


async def test_a_private_agent_is_seen_by_owner_grantees_and_whoever_sees_all(
    gateway: Gateway,
) -> None:
    org = await gateway.new_org()
    root = gateway.caller(DEPLOYMENT_KEY, org)
    people = {
        role: await gateway.new_person(org, role)
        for role in ("admin", "builder", "operator", "member", "viewer")
    }
    owned = {"agent_id": "mine", "name": "Mine", "visibility": "private"}
    owner = people["member"].user_id
    assert (await root.post("/agents", json={**owned, "owner_user_id": owner})).status_code == 201

    async def sees(role: str) -> bool:
        client = people[role].client
        one = await client.get("/agents/mine")
        listed = (await client.get("/agents")).json()
        assert (one.status_code == 200) == (listed["total"] == 1) == bool(listed["items"])
        if one.status_code != 200:
            unknown = await client.get("/agents/unheard-of")
            assert (one.status_code, one.text) == (unknown.status_code, unknown.text)
        return one.status_code == 200

    assert [role for role in people if await sees(role)] == [
        "admin",
        "builder",
        "operator",
        "member",
    ]
    viewer = people["viewer"]
    grant = {"kind": "user", "id": viewer.user_id, "permissions": ["agents:view"]}
    assert (await root.post("/agents/mine/grants", json=grant)).status_code == 200
    assert await sees("viewer")
    rename = {"name": "Theirs"}
    assert (await viewer.client.patch("/agents/mine", json=rename)).status_code == 403
    wider = {**grant, "permissions": ["agents:edit", "agents:view"]}
    assert (await root.post("/agents/mine/grants", json=wider)).status_code == 200
    assert (await viewer.client.patch("/agents/mine", json=rename)).status_code == 200
    # Nobody grants what they do not hold on the agent.
    more = {"kind": "user", "id": viewer.user_id, "permissions": ["agents:publish"]}
    refused = await viewer.client.post("/agents/mine/grants", json=more)
    assert refused.json()["details"]["permissions"] == ["agents:publish"]
    assert (await people["member"].client.patch("/agents/mine", json=rename)).status_code == 200
    # `builder` sees every agent and changes shared ones.
    assert (await people["builder"].client.patch("/agents/mine", json=rename)).status_code == 403
    gone = await root.delete(f"/agents/mine/grants/user/{viewer.user_id}")
    assert gone.json()["grants"] == []
    assert not await sees("viewer")
    published = [e.data for e in await said(gateway, org) if isinstance(e.data, AgentPublished)]
    assert [len(state.grants) for state in published] == [0, 1, 1, 1, 0]


async def test_a_department_is_granted_for_those_who_belong_now(gateway: Gateway) -> None:
    org = await gateway.new_org()
    root = gateway.caller(DEPLOYMENT_KEY, org)
    viewer = await gateway.new_person(org, "viewer")
    await root.post("/agents", json={"agent_id": "a", "name": "A", "visibility": "private"})
    await root.post(f"/orgs/{org}/departments", json={"department_id": "d", "name": "D"})
    grant = {"kind": "department", "id": "d", "permissions": ["agents:view"]}
    assert (await root.post("/agents/a/grants", json=grant)).status_code == 200
    for unknown in (
        {**grant, "id": "e"},
        {"kind": "user", "id": "x", "permissions": ["agents:run"]},
    ):
        assert (await root.post("/agents/a/grants", json=unknown)).status_code == 404
    bad = {**grant, "permissions": ["budgets:manage"]}
    assert (await root.post("/agents/a/grants", json=bad)).status_code == 422
    members = f"/orgs/{org}/departments/d/members"
    assert (await viewer.client.get("/agents/a")).status_code == 404
    await root.post(members, json={"user_id": viewer.user_id})
    assert (await viewer.client.get("/agents/a")).status_code == 200
    assert (await viewer.client.get("/agents")).json()["total"] == 1
    await root.delete(f"{members}/{viewer.user_id}")
    assert (await viewer.client.get("/agents/a")).status_code == 404
    kept = await root.post("/agents/a/versions", json={"name": "A2", "visibility": "private"})
    assert kept.json()["grants"] == [grant]


async def test_environments_name_versions_that_exist(gateway: Gateway) -> None:
    org = await gateway.new_org()
    root = gateway.caller(DEPLOYMENT_KEY, org)
    await root.post("/agents", json={"agent_id": "a", "name": "A"})
    body: dict[str, Any] = {"environments": [{"name": "production", "version": 2}]}
    assert (await root.patch("/agents/a", json=body)).json()["reason"] == "agent_version_unknown"
    await root.post("/agents/a/versions", json={"name": "A"})
    assert (await root.patch("/agents/a", json=body)).json()["environments"] == body["environments"]
    twice = {"environments": [{"name": "x", "version": 1}, {"name": "x", "version": 2}]}
    assert (await root.patch("/agents/a", json=twice)).status_code == 422
    editor = gateway.caller(await gateway.new_key(org, "agents:edit"))
    assert (await editor.patch("/agents/a", json=body)).status_code == 403
    assert (await editor.patch("/agents/a", json={"name": "B"})).status_code == 200


async def test_delegates_do_not_lead_back(gateway: Gateway) -> None:
    org = await gateway.new_org()
    root = gateway.caller(DEPLOYMENT_KEY, org)

    def pins(*names: str) -> dict[str, Any]:
        return {"name": "x", "delegates": [{"agent_id": name, "version": 1} for name in names]}

    for name in ("c", "b", "a"):
        await root.post("/agents", json={"agent_id": name, "name": name})
    itself = await root.post("/agents/a/versions", json=pins("a"))
    assert (itself.status_code, itself.json()["reason"]) == (422, "delegates_cycle")
    assert (await root.post("/agents/c/versions", json=pins("b"))).status_code == 201
    through = {"name": "x", "delegates": [{"agent_id": "c", "version": 2}]}
    assert (await root.post("/agents/a/versions", json=through)).status_code == 201
    back = {"name": "x", "delegates": [{"agent_id": "a", "version": 2}]}
    refused = await root.post("/agents/b/versions", json=back)
    assert (refused.status_code, refused.json()["reason"]) == (422, "delegates_cycle")
    # The first version of `a` pins nobody, so it leads nowhere.
    assert (await root.post("/agents/b/versions", json=pins("a"))).status_code == 201


async def test_a_person_pins_only_what_they_see_and_owns_what_they_make(gateway: Gateway) -> None:
    org = await gateway.new_org()
    root = gateway.caller(DEPLOYMENT_KEY, org)
    builder = await gateway.new_person(org, "builder")
    made = await builder.client.post("/agents", json={"agent_id": "b", "name": "B"})
    assert (made.status_code, made.json()["owner_user_id"]) == (201, builder.user_id)
    theirs = {"agent_id": "t", "name": "T", "visibility": "private", "owner_user_id": "somebody"}
    refused = await builder.client.post("/agents", json=theirs)
    assert (refused.status_code, refused.json()["reason"]) == (403, "permission_missing")
    assert (await root.post("/agents", json=theirs)).status_code == 201
    _, stranger = await gateway.new_admin()
    assert (await stranger.get("/agents/t")).status_code == 404
