"""Members and departments: roles, owners, intervals, and what is said about each change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contracts.directory import (
    DepartmentChanged,
    DepartmentRemoved,
    MemberChanged,
    MemberRemoved,
)
from contracts.rooms import AuditRecorded
from tests.integration.gateway.running import Gateway
from tests.integration.gateway.test_gateway_directory import said
from tests.servers import DEPLOYMENT_KEY

pytestmark = pytest.mark.integration


async def data_of(gateway: Gateway, org: str, *kinds: type[Any]) -> list[Any]:
    return [event.data for event in await said(gateway, org) if isinstance(event.data, kinds)]


async def test_a_member_is_added_changed_removed_and_comes_back(gateway: Gateway) -> None:
    org = await gateway.new_org()
    root = gateway.caller(DEPLOYMENT_KEY, org)
    path = f"/orgs/{org}/members"
    body = {"user_id": "u:1", "name": "Ana", "role": "member", "email": "Ana@Example.org"}
    made = await root.post(path, json=body)
    assert made.status_code == 201, made.text
    assert (made.json()["email"], made.json()["signs_in"]) == ("ana@example.org", False)
    assert (await root.post(path, json=body)).status_code == 409
    raised = await root.patch(f"{path}/u:1", json={"role": "builder"})
    assert (raised.json()["role"], raised.json()["entity_revision"]) == ("builder", 2)
    assert (await root.patch(f"{path}/u:1", json={"role": "builder"})).json()[
        "entity_revision"
    ] == 2
    assert (await root.delete(f"{path}/u:1")).status_code == 204
    assert (await root.delete(f"{path}/u:1")).status_code == 404
    assert (await root.get(f"{path}/u:1")).status_code == 404
    back = await root.post(path, json=body)
    assert (back.status_code, back.json()["entity_revision"]) == (201, 4)
    states = await data_of(gateway, org, MemberChanged, MemberRemoved)
    assert [state.entity_revision for state in states] == [1, 2, 3, 4]
    assert [type(state) for state in states] == [
        MemberChanged,
        MemberChanged,
        MemberRemoved,
        MemberChanged,
    ]
    acts = [data.entry.action for data in await data_of(gateway, org, AuditRecorded)]
    assert acts[1:] == ["member.added", "member.changed", "member.removed", "member.added"]
    viewer = await gateway.new_person(org, "viewer")
    shown = (await viewer.client.get(f"{path}/u:1")).json()
    assert (shown["name"], shown["email"]) == ("Ana", None)


async def test_nobody_raises_anybody_to_their_own_role_or_beyond(gateway: Gateway) -> None:
    org = await gateway.new_org()
    owner, other_owner = [await gateway.new_person(org, "owner") for _ in range(2)]
    admin, other_admin = [await gateway.new_person(org, "admin") for _ in range(2)]
    viewer = await gateway.new_person(org, "viewer")

    async def change(caller: Any, whom: Any, role: str) -> Any:
        return await caller.client.patch(f"/orgs/{org}/members/{whom.user_id}", json={"role": role})

    for caller, whom, role in (
        (admin, viewer, "admin"),
        (admin, viewer, "owner"),
        (admin, admin, "owner"),
        (admin, other_admin, "viewer"),
        (admin, owner, "viewer"),
        (owner, viewer, "owner"),
        (owner, other_owner, "viewer"),
    ):
        refused = await change(caller, whom, role)
        assert (refused.status_code, refused.json()["reason"]) == (403, "role_not_assignable")
    assert (await change(viewer, viewer, "admin")).status_code == 403
    for whom in (other_admin, owner):
        gone = await admin.client.delete(f"/orgs/{org}/members/{whom.user_id}")
        assert gone.json()["reason"] == "role_not_assignable"
    assert (await change(owner, viewer, "admin")).status_code == 200
    assert (await change(admin, admin, "builder")).status_code == 200
    # A key holds permissions and no role; it exceeds what it wholly covers.
    keyed = gateway.caller(await gateway.new_key(org, "members:manage", "runs:view"))
    body = {"user_id": "k1", "name": "K", "role": "operator"}
    assert (await keyed.post(f"/orgs/{org}/members", json=body)).status_code == 403
    everything = await gateway.new_key(
        org,
        *(name for name in (await owner.client.get("/me")).json()["belongings"][0]["permissions"]),
    )
    root = gateway.caller(everything)
    assert (await root.post(f"/orgs/{org}/members", json=body)).status_code == 201
    body = {"user_id": "k2", "name": "K", "role": "owner"}
    assert (await root.post(f"/orgs/{org}/members", json=body)).status_code == 403


async def test_of_two_owners_who_leave_at_once_one_stays(gateway: Gateway) -> None:
    org = await gateway.new_org()
    owners = [await gateway.new_person(org, "owner") for _ in range(2)]
    answers = await asyncio.gather(
        *(each.client.delete(f"/orgs/{org}/members/{each.user_id}") for each in owners)
    )
    assert sorted(answer.status_code for answer in answers) == [204, 400]
    (stays,) = [
        each for each, answer in zip(owners, answers, strict=True) if answer.status_code == 400
    ]
    demoted = await stays.client.patch(
        f"/orgs/{org}/members/{stays.user_id}", json={"role": "viewer"}
    )
    assert (demoted.status_code, demoted.json()["reason"]) == (400, "last_owner")
    root = gateway.caller(DEPLOYMENT_KEY, org)
    assert (await root.delete(f"/orgs/{org}/members/{stays.user_id}")).status_code == 400


@pytest.mark.parametrize(
    "name",
    [
        "",
        " Ana",
        "Ana ",
        "A\u0000na",
        "A\nna",
        "A\u007fna",
        "gnp\u202eexe",
        "\u2066Ana",
        "A\u200bna",
        "\ufeffAna",
        "A\u2028na",
        "\u3164",
    ],
)
async def test_a_name_hides_nothing(gateway: Gateway, name: str) -> None:
    org, admin = await gateway.new_admin()
    root = gateway.caller(DEPLOYMENT_KEY, org)
    bodies: dict[str, dict[str, Any]] = {
        f"/orgs/{org}/members": {"user_id": "u", "role": "viewer"},
        f"/orgs/{org}/departments": {},
        "/agents": {"agent_id": "a"},
        "/channels": {"channel_id": "c"},
        "/api-keys": {"permissions": ["runs:view"]},
        "/invitations": {"email": "a@example.org", "role": "viewer"},
        "/orgs": {"org_id": "hidden-name"},
    }
    for path, body in bodies.items():
        caller = gateway.deployment if path == "/orgs" else root
        answer = await caller.post(path, json={**body, "name": name})
        assert answer.status_code == 422, (path, answer.text)
    assert (await admin.patch(f"/orgs/{org}", json={"name": name})).status_code == 422


async def test_names_of_every_script_are_taken(gateway: Gateway) -> None:
    org = await gateway.new_org()
    root = gateway.caller(DEPLOYMENT_KEY, org)
    for number, name in enumerate(
        ("Ańa Ñandú", "安娜", "عائشة", "नेहा", "👩\u200d💻 Desk", "a\u0301")
    ):
        body = {"user_id": f"u{number}", "name": name, "role": "viewer"}
        answer = await root.post(f"/orgs/{org}/members", json=body)
        assert answer.status_code == 201, name
    assert (await root.get(f"/orgs/{org}/members/u5")).json()["name"] == "á"


async def test_a_department_keeps_who_belonged_when(gateway: Gateway) -> None:
    org = await gateway.new_org()
    root = gateway.caller(DEPLOYMENT_KEY, org)
    for user_id in ("ana", "bea"):
        body = {"user_id": user_id, "name": user_id, "role": "member"}
        await root.post(f"/orgs/{org}/members", json=body)
    path = f"/orgs/{org}/departments"
    nobody = await root.post(path, json={"name": "Sales", "lead_user_id": "nobody"})
    assert (nobody.status_code, nobody.json()["reason"]) == (404, "member_unknown")
    made = await root.post(
        path, json={"department_id": "sales", "name": "Sales", "lead_user_id": "ana"}
    )
    assert (made.status_code, made.json()["effective"]) == (201, True), made.text
    assert (await root.post(path, json={"department_id": "sales", "name": "x"})).status_code == 409

    members = f"{path}/sales/members"
    since = "2026-01-01T00:00:00Z"
    first = await root.post(members, json={"user_id": "ana", "effective_at": since})
    assert first.json()["member_count"] == 1
    twice = await root.post(members, json={"user_id": "ana"})
    assert (twice.status_code, twice.json()["reason"]) == (409, "membership_overlaps")
    assert (await root.post(members, json={"user_id": "stranger"})).status_code == 404
    ended = await root.delete(f"{members}/ana", params={"effective_at": "2026-06-01T00:00:00Z"})
    assert ended.json()["member_count"] == 0
    again = await root.post(
        members, json={"user_id": "ana", "effective_at": "2026-06-01T00:00:00Z"}
    )
    assert again.status_code == 200, again.text
    await root.post(members, json={"user_id": "bea", "effective_at": "2099-01-01T00:00:00Z"})
    shown = (await root.get(members)).json()
    assert [(each["user_id"], each["ends_at"]) for each in shown["items"]] == [
        ("ana", "2026-06-01T00:00:00Z"),
        ("ana", None),
        ("bea", None),
    ]
    assert (await root.get(path)).json()["items"][0]["member_count"] == 1

    # Whoever leaves the organization leaves its departments, also what had not begun.
    assert (await root.delete(f"/orgs/{org}/members/ana")).status_code == 204
    assert (await root.delete(f"/orgs/{org}/members/bea")).status_code == 204
    (row,) = (await root.get(path)).json()["items"]
    assert (row["member_count"], row["lead_user_id"]) == (0, None)
    assert (await root.delete(f"{path}/sales")).status_code == 204
    assert (await root.get(members)).status_code == 404
    assert (await root.post(path, json={"department_id": "sales", "name": "x"})).status_code == 409
    states = await data_of(gateway, org, DepartmentChanged, DepartmentRemoved)
    assert [state.entity_revision for state in states] == list(range(1, len(states) + 1))
    assert isinstance(states[-1], DepartmentRemoved)
    assert [(each.user_id, each.ends_at is None) for each in states[-2].members] == [
        ("ana", False),
        ("ana", False),
    ]


async def test_a_departments_cap_takes_both_permissions(gateway: Gateway) -> None:
    org = await gateway.new_org()
    people = gateway.caller(await gateway.new_key(org, "members:manage"))
    both = gateway.caller(await gateway.new_key(org, "members:manage", "budgets:manage"))
    path = f"/orgs/{org}/departments"
    capped = {"department_id": "d", "name": "D", "monthly_budget_usd": "5"}
    assert (await people.post(path, json=capped)).status_code == 403
    assert (await people.post(path, json={"department_id": "d", "name": "D"})).status_code == 201
    change = {"monthly_budget_usd": "5"}
    assert (await people.patch(f"{path}/d", json=change)).status_code == 403
    assert (await people.patch(f"{path}/d", json={"name": "E"})).status_code == 200
    waits = await both.patch(f"{path}/d", json=change)
    assert (waits.status_code, waits.json()["effective"]) == (202, False)
    assert (waits.json()["monthly_budget_usd"], waits.json()["cap_revision"]) == ("5.000000", 2)
    assert (await people.delete(f"{path}/d")).status_code == 403
    assert (await both.delete(f"{path}/d")).status_code == 204
