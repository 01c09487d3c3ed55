"""Every route, walked by every role, by keys with and without its permission, and by strangers.

`ROWS` says who gets in, written from facts.md 11 and http.md and not from the code. A route that is
served and has no row fails the walk, and so does a row without a route.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from services.gateway.domain.permissions import CATALOGUE
from services.gateway.http.application import declared, litestar_app
from services.gateway.http.ports import Ports
from tests.integration.gateway.running import Gateway
from tests.servers import DEPLOYMENT_KEY

pytestmark = pytest.mark.integration

ROLES = ("owner", "admin", "builder", "operator", "member", "viewer")
ALL = ROLES
NONE: tuple[str, ...] = ()
OWNERS = ("owner", "admin")
BUILDERS = ("owner", "admin", "builder")
RUNS = ("owner", "admin", "builder", "operator")
PUBLIC = "public"
"""Answers without a credential."""
SELF = "self"
"""About the caller alone: nobody is a stranger here."""
SESSION = "session"
"""As `self`, and a key is refused."""
DEPLOYMENT = "deployment"
MEMBERS = "members"
"""Any credential of the organization."""


@dataclass(frozen=True)
class Row:
    """Who gets in: roles with a session, and a key that holds exactly `needs`."""

    roles: tuple[str, ...]
    needs: tuple[str, ...] = ()
    kind: str = "permission"
    body: dict[str, Any] | None = field(default=None)
    """What is sent; where absent something that no route takes, so that nothing is changed."""


def members(body: dict[str, Any] | None = None) -> Row:
    return Row(ALL, kind=MEMBERS, body=body)


ROWS: dict[str, Row] = {
    "POST /sessions": Row(ALL, kind=PUBLIC),
    "DELETE /sessions/current": Row(ALL, kind=SESSION),
    "DELETE /sessions": Row(ALL, kind=SESSION),
    "GET /me": Row(ALL, kind=SELF),
    "POST /invitations": Row(OWNERS, ("members:manage",)),
    "GET /invitations": Row(OWNERS, ("members:manage",)),
    "DELETE /invitations/{invitation_id}": Row(OWNERS, ("members:manage",)),
    "POST /invitations/accept": Row(ALL, kind=PUBLIC),
    "POST /orgs": Row(NONE, kind=DEPLOYMENT),
    "GET /orgs": members(),
    "GET /orgs/{org}": members(),
    "PATCH /orgs/{org}": Row(OWNERS, ("org:settings",), body={"name": "Walked"}),
    "POST /orgs/{org}/members": Row(OWNERS, ("members:manage",)),
    "GET /orgs/{org}/members": members(),
    "GET /orgs/{org}/members/{user_id}": members(),
    "PATCH /orgs/{org}/members/{user_id}": Row(OWNERS, ("members:manage",)),
    "DELETE /orgs/{org}/members/{user_id}": Row(OWNERS, ("members:manage",)),
    "POST /orgs/{org}/departments": Row(OWNERS, ("members:manage",)),
    "GET /orgs/{org}/departments": members(),
    "GET /orgs/{org}/departments/spend": Row(RUNS, ("runs:view",)),
    "PATCH /orgs/{org}/departments/{department_id}": Row(OWNERS, ("members:manage",)),
    "DELETE /orgs/{org}/departments/{department_id}": Row(
        OWNERS, ("budgets:manage", "members:manage")
    ),
    "GET /orgs/{org}/departments/{department_id}/members": members(),
    "POST /orgs/{org}/departments/{department_id}/members": Row(OWNERS, ("members:manage",)),
    "DELETE /orgs/{org}/departments/{department_id}/members/{user_id}": Row(
        OWNERS, ("members:manage",)
    ),
    "POST /api-keys": Row(OWNERS, ("org:settings",)),
    "GET /api-keys": Row(OWNERS, ("org:settings",)),
    "DELETE /api-keys/{key_id}": Row(OWNERS, ("org:settings",)),
    "POST /agents": Row(BUILDERS, ("agents:edit", "agents:publish")),
    "GET /agents": Row(ALL, ("agents:view",)),
    "GET /agents/{agent_id}": Row(ALL, ("agents:view",)),
    "PATCH /agents/{agent_id}": Row(BUILDERS, ("agents:edit",), body={"name": "Shared"}),
    "POST /agents/{agent_id}/versions": Row(BUILDERS, ("agents:publish",), body={"name": "Shared"}),
    "POST /agents/{agent_id}/archive": Row(BUILDERS, ("agents:edit", "agents:publish")),
    "GET /agents/{agent_id}/grants": Row(ALL, ("agents:view",)),
    "POST /agents/{agent_id}/grants": Row(
        BUILDERS,
        ("agents:edit",),
        body={"kind": "user", "id": "nobody", "permissions": ["agents:edit"]},
    ),
    "DELETE /agents/{agent_id}/grants/{kind}/{grantee_id}": Row(BUILDERS, ("agents:edit",)),
    "POST /channels": Row(OWNERS, ("channels:manage",)),
    "GET /channels": Row(OWNERS, ("channels:manage",)),
    "DELETE /channels/{channel_id}": Row(OWNERS, ("channels:manage",)),
    "POST /events": Row(NONE, ("channels:publish",)),
    "GET /feed": Row(NONE, ("channels:publish",)),
    "GET /live": members(),
    "POST /runs/{run_id}/authorize": Row(NONE, ("channels:publish",)),
    "POST /authorize": Row(NONE, ("channels:publish",)),
    "GET /runs": Row(RUNS, ("runs:view",)),
    "GET /runs/{run_id}": Row(RUNS, ("runs:view",)),
    "GET /runs/{run_id}/entries": Row(RUNS, ("runs:view",)),
    "GET /ingestions/{ingestion_id}/entries": Row(RUNS, ("runs:view",)),
    "POST /entries/{entry_id}/corrections": Row(OWNERS, ("budgets:manage",)),
    "GET /spend": Row(RUNS, ("runs:view",)),
    "GET /caps": Row(RUNS, ("runs:view",)),
    "GET /holds": Row(RUNS, ("runs:view",)),
    "DELETE /holds/{hold_id}": Row(NONE, ("channels:publish",)),
    "GET /overruns": Row(RUNS, ("runs:view",)),
    "GET /roles/catalog": members(),
    "GET /openapi.json": Row(ALL, kind=PUBLIC),
    "GET /docs": Row(ALL, kind=PUBLIC),
}
IDS = {
    "agent_id": "shared-agent",
    "key_id": "0" * 16,
    "channel_id": "no-such-channel",
    "run_id": "no-such-run",
    "entry_id": "no-such-entry",
    "hold_id": "no-such-hold",
    "ingestion_id": "no-such-ingestion",
    "user_id": "no-such-user",
    "department_id": "no-such-department",
    "invitation_id": "0" * 16,
    "kind": "user",
    "grantee_id": "nobody",
}
CHANGES_AGENT = {"POST /agents/{agent_id}/archive"}
"""Would end what the others look at: walked against an agent of its own."""


def served() -> set[str]:
    ports = Ports(*[None] * 8, "0" * 64, None)  # type: ignore[arg-type]
    return {
        f"{method} {path.removeprefix('/api/v1').replace(':str', '')}"
        for method, path, _ in declared(litestar_app(ports, {}))
        if path.startswith("/api/v1/")
    }


def test_every_route_that_is_served_has_a_row() -> None:
    assert served() - set(ROWS) == set(), "say in ROWS who gets in"
    assert set(ROWS) - served() == set(), "there is no such route"


@dataclass
class World:
    """An organization with one caller of every kind, and strangers."""

    org: str
    gateway: Gateway
    people: dict[str, httpx.AsyncClient]
    powerless: httpx.AsyncClient
    channel: httpx.AsyncClient
    stranger: httpx.AsyncClient
    strange_key: httpx.AsyncClient
    anonymous: httpx.AsyncClient
    keys: dict[tuple[str, ...], httpx.AsyncClient] = field(default_factory=dict)

    async def key(self, needs: tuple[str, ...]) -> httpx.AsyncClient:
        """A key with exactly these permissions; the channel's where it takes one."""
        if "channels:publish" in needs:
            return self.channel
        if needs not in self.keys:
            self.keys[needs] = self.gateway.caller(await self.gateway.new_key(self.org, *needs))
        return self.keys[needs]


@pytest.fixture(scope="module")
async def world(gateway: Gateway) -> World:
    org, strange = await gateway.new_org(), await gateway.new_org()
    people = {role: (await gateway.new_person(org, role)).client for role in ROLES}
    root = gateway.caller(DEPLOYMENT_KEY, org)
    made = await root.post("/agents", json={"agent_id": "shared-agent", "name": "Shared"})
    assert made.status_code == 201, made.text
    channel, _ = await gateway.new_channel(org)
    return World(
        org=org,
        gateway=gateway,
        people=people,
        powerless=gateway.caller(await gateway.new_key(org, "ml:invoke")),
        channel=channel,
        stranger=(await gateway.new_person(strange, "owner")).client,
        strange_key=gateway.caller(
            await gateway.new_key(strange, *sorted(CATALOGUE - {"channels:publish"}))
        ),
        anonymous=gateway.caller(None),
    )


async def ask(
    client: httpx.AsyncClient, name: str, org: str, *, header: str | None = None
) -> tuple[int, str]:
    """Status and reason; a stream is left after its status."""
    method, path = name.split(" ")
    row = ROWS[name]
    for key, value in IDS.items():
        path = path.replace(f"{{{key}}}", value)
    headers = {"X-Organization-Id": header} if header else {}
    content = row.body if row.body is not None else {"no_such_field": 1}
    body = content if method in ("POST", "PATCH") else None
    async with client.stream(method, path.replace("{org}", org), json=body, headers=headers) as got:
        if got.status_code == 200 and "event-stream" in got.headers["content-type"]:
            return 200, ""
        await got.aread()
        shown = got.json() if got.content and "json" in got.headers["content-type"] else {}
        return got.status_code, shown.get("reason", "") if isinstance(shown, dict) else ""


def is_in(status: int, reason: str) -> bool:
    """Whether the guard let a caller through, whatever the handler said then."""
    if reason in ("organization_unknown", "organization_missing"):
        return False
    return status not in (401, 403) or reason == "channel_key_needed"


WALKED = sorted(set(ROWS) - CHANGES_AGENT)


@pytest.mark.parametrize("name", WALKED)
async def test_nobody_without_a_credential(world: World, name: str) -> None:
    status, _ = await ask(world.anonymous, name, world.org)
    assert (status == 401) == (ROWS[name].kind != PUBLIC), status


@pytest.mark.parametrize("name", [name for name in WALKED if ROWS[name].kind != SESSION])
async def test_each_role_gets_in_where_the_table_says(world: World, name: str) -> None:
    asked = [ask(world.people[role], name, world.org) for role in ROLES]
    answers = dict(zip(ROLES, await asyncio.gather(*asked), strict=True))
    got_in = tuple(role for role in ROLES if is_in(*answers[role]))
    assert got_in == ROWS[name].roles, answers


@pytest.mark.parametrize("name", [n for n in WALKED if ROWS[n].kind not in (PUBLIC, DEPLOYMENT)])
async def test_a_key_needs_exactly_what_the_table_says(world: World, name: str) -> None:
    row = ROWS[name]
    powerless = await ask(world.powerless, name, world.org)
    if row.kind == SESSION:
        assert powerless == (403, "session_needed")
        return
    assert is_in(*powerless) == (row.kind in (SELF, MEMBERS)), powerless
    if row.kind == "permission":
        assert is_in(*await ask(await world.key(row.needs), name, world.org))
        for left_out in row.needs if "channels:publish" not in row.needs else ():
            less = tuple(need for need in row.needs if need != left_out) or ("ml:invoke",)
            assert not is_in(*await ask(await world.key(less), name, world.org)), left_out


@pytest.mark.parametrize(
    "name", [n for n in WALKED if ROWS[n].kind not in (PUBLIC, SELF, SESSION, DEPLOYMENT)]
)
async def test_another_organization_answers_like_one_that_does_not_exist(
    world: World, name: str
) -> None:
    in_path = "{org}" in name
    for stranger in (world.stranger, world.strange_key):
        named = {} if in_path else {"header": world.org}
        foreign = await ask(stranger, name, world.org, **named)
        unknown_org = "no-such-org"
        unknown = await ask(
            stranger, name, unknown_org, **({} if in_path else {"header": unknown_org})
        )
        assert foreign == unknown == (404, "organization_unknown")
        if in_path:
            smuggled = await ask(stranger, name, world.org, header="no-such-org")
            assert smuggled == (404, "organization_unknown")


@pytest.mark.parametrize("name", [n for n in WALKED if ROWS[n].kind == DEPLOYMENT])
async def test_the_deployments_routes_take_its_key(world: World, name: str) -> None:
    for caller in (*world.people.values(), world.powerless, world.strange_key):
        assert await ask(caller, name, world.org) == (403, "deployment_key_needed")
    assert is_in(*await ask(world.gateway.deployment, name, world.org))


async def test_archiving_needs_both_permissions_on_the_agent(world: World) -> None:
    root = world.gateway.caller(DEPLOYMENT_KEY, world.org)
    row = ROWS["POST /agents/{agent_id}/archive"]
    for role in ROLES:
        agent_id = f"ends-with-{role}"
        await root.post("/agents", json={"agent_id": agent_id, "name": "Ends"})
        answer = await world.people[role].post(f"/agents/{agent_id}/archive")
        assert (answer.status_code == 200) == (role in row.roles), (role, answer.text)
    half = await world.key(("agents:edit",))
    assert (await half.post("/agents/ends-with-viewer/archive")).status_code == 403
    assert (await world.powerless.post("/agents/ends-with-viewer/archive")).status_code == 403
    assert (await world.stranger.post("/agents/ends-with-viewer/archive")).status_code == 404
    both = await world.key(("agents:edit", "agents:publish"))
    assert (await both.post("/agents/ends-with-viewer/archive")).status_code == 200
