"""Who may do what: credentials, organizations, permissions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from tests.integration.gateway.running import Gateway
from tests.servers import DEPLOYMENT_KEY

pytestmark = pytest.mark.integration


async def test_refuses_every_wrong_credential_alike(gateway: Gateway) -> None:
    org = await gateway.new_org()
    key = await gateway.new_key(org, "runs:view")
    wrong_secret = key[:-1] + ("A" if key[-1] != "A" else "B")
    unknown = f"rk_{'0' * 16}_{'s' * 43}"
    answers = []
    for token in (None, "x", "nonsense", wrong_secret, unknown, "rd_" + "x" * 43, f"{key}\u00e9"):
        client = gateway.caller(None)
        headers = {} if token is None else {"Authorization": f"Bearer {token}".encode()}
        answers.append(await client.get("/orgs", headers=headers))
    assert {answer.status_code for answer in answers} == {401}
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    assert len({answer.text for answer in answers}) == 1


async def test_two_credentials_are_none(gateway: Gateway) -> None:
    key = await gateway.new_key(await gateway.new_org(), "runs:view")
    client = gateway.caller(None)
    headers = [("Authorization", f"Bearer {key}"), ("Authorization", "Bearer x")]
    assert (await client.get("/orgs", headers=headers)).status_code == 401


async def test_a_foreign_organization_answers_like_an_unknown_one(gateway: Gateway) -> None:
    mine, admin = await gateway.new_admin()
    other = await gateway.new_org()
    answers = [
        await admin.get(f"/orgs/{other}"),
        await admin.get("/orgs/no-such-org"),
        await admin.get("/orgs/NO%00"),
        await admin.patch(f"/orgs/{other}", json={"name": "mine now"}),
        await admin.get("/agents", headers={"X-Organization-Id": other}),
        await admin.get("/agents", headers={"X-Organization-Id": "no-such-org"}),
        await admin.get(f"/orgs/{mine}", headers={"X-Organization-Id": other}),
        await admin.get(
            "/agents", headers=[("X-Organization-Id", mine), ("X-Organization-Id", other)]
        ),
    ]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.text for answer in answers}) == 1
    assert (await admin.get("/agents", headers={"X-Organization-Id": mine})).status_code == 200


async def test_tenancy_comes_before_permission(gateway: Gateway) -> None:
    other = await gateway.new_org()
    nobody = gateway.caller(await gateway.new_key(await gateway.new_org(), "ml:invoke"))
    assert (await nobody.get("/agents", headers={"X-Organization-Id": other})).status_code == 404
    assert (await nobody.get("/agents")).status_code == 403


async def test_the_deployment_key_names_its_organization(gateway: Gateway) -> None:
    org = await gateway.new_org()
    assert (await gateway.deployment.get("/agents")).json()["reason"] == "organization_missing"
    unknown = gateway.caller(DEPLOYMENT_KEY, "no-such-org")
    assert (await unknown.get("/agents")).status_code == 404
    assert (await gateway.caller(DEPLOYMENT_KEY, org).get("/agents")).status_code == 200
    events = await gateway.caller(DEPLOYMENT_KEY, org).post("/events", json=[])
    assert (events.status_code, events.json()["reason"]) == (403, "channel_key_needed")


async def test_only_the_deployment_key_creates_organizations(gateway: Gateway) -> None:
    _, admin = await gateway.new_admin()
    answer = await admin.post("/orgs", json={"org_id": "another", "name": "Another"})
    assert (answer.status_code, answer.json()["code"]) == (403, "AUTHORIZATION_ERROR")


async def test_a_named_organization_does_not_become_the_new_ones(gateway: Gateway) -> None:
    other = await gateway.new_org()
    creator = gateway.caller(DEPLOYMENT_KEY, other)
    body = {"org_id": "created-beside", "name": "Beside"}
    assert (await creator.post("/orgs", json=body)).status_code == 201
    connection = await asyncpg.connect(gateway.database.admin_url, ssl=False)
    try:
        chains = await connection.fetch(
            "SELECT chain, number FROM gateway.audit_head WHERE chain = ANY($1)",
            [other, "created-beside"],
        )
    finally:
        await connection.close()
    assert {tuple(row) for row in chains} == {(other, 1), ("created-beside", 1)}


async def test_a_key_hands_out_no_more_than_it_holds(gateway: Gateway) -> None:
    org = await gateway.new_org()
    settings = gateway.caller(await gateway.new_key(org, "org:settings", "runs:view"))
    body = {"name": "more", "permissions": ["runs:view", "budgets:manage", "audit:read"]}
    refused = await settings.post("/api-keys", json=body)
    assert refused.status_code == 403
    assert refused.json()["details"]["permissions"] == ["audit:read", "budgets:manage"]
    granted = await settings.post("/api-keys", json={"name": "less", "permissions": ["runs:view"]})
    assert granted.status_code == 201
    unknown = {"name": "x", "permissions": ["runs:delete"]}
    assert (await settings.post("/api-keys", json=unknown)).status_code == 422
    channel = {"name": "x", "permissions": ["channels:publish"]}
    assert (await settings.post("/api-keys", json=channel)).status_code == 403


async def test_a_key_is_shown_once_listed_without_secret_and_revoked(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    headers = {"Idempotency-Key": "key-1"}
    body = {"name": "reports", "permissions": ["runs:view"]}
    made = (await admin.post("/api-keys", json=body, headers=headers)).json()
    again = (await admin.post("/api-keys", json=body, headers=headers)).json()
    assert again == {**made, "api_key": None}
    listed = await admin.get("/api-keys")
    assert made["api_key"].split("_", 2)[2] not in listed.text
    assert made["id"] in [item["id"] for item in listed.json()["items"]]

    client = gateway.caller(made["api_key"])
    assert (await client.get("/orgs")).status_code == 200
    assert (await admin.delete(f"/api-keys/{made['id']}")).status_code == 204
    assert (await client.get("/orgs")).status_code == 401
    assert (await admin.delete(f"/api-keys/{made['id']}")).status_code == 204
    _, stranger = await gateway.new_admin()
    assert (await stranger.delete(f"/api-keys/{made['id']}")).status_code == 404

    connection = await asyncpg.connect(gateway.database.admin_url, ssl=False)
    try:
        dump = await connection.fetchval(
            """
            SELECT string_agg(t::text, ' ') FROM (
                SELECT to_jsonb(k) AS t FROM gateway.api_key k
                UNION ALL SELECT to_jsonb(i) FROM gateway.idempotency i
                UNION ALL SELECT to_jsonb(o) FROM gateway.outbox o
                UNION ALL SELECT to_jsonb(a) FROM gateway.audit_entry a
            ) AS rows
            """
        )
    finally:
        await connection.close()
    secret = made["api_key"].split("_", 2)[2]
    assert secret not in dump
    assert secret.encode().hex() not in dump
    assert org in dump


async def test_an_expired_key_is_refused(gateway: Gateway) -> None:
    org, admin = await gateway.new_admin()
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    body = {"name": "late", "permissions": ["runs:view"], "expires_at": past}
    assert (await admin.post("/api-keys", json=body)).status_code == 422
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    key = await gateway.new_key(org, "runs:view", expires_at=later)
    assert (await gateway.caller(key).get("/orgs")).status_code == 200
    connection = await asyncpg.connect(gateway.database.admin_url, ssl=False)
    try:
        await connection.execute(
            "UPDATE gateway.api_key SET expires_at = now() - interval '1 second' WHERE key_id = $1",
            key.split("_")[1],
        )
    finally:
        await connection.close()
    assert (await gateway.caller(key).get("/orgs")).status_code == 401


async def test_a_revoked_key_is_refused_however_many_ask_at_once(gateway: Gateway) -> None:
    """Requests that come at once share the lookup of their keys, never one from before."""
    _, admin = await gateway.new_admin()
    kept, ended = [
        (await admin.post("/api-keys", json={"name": name, "permissions": ["runs:view"]})).json()
        for name in ("kept", "ended")
    ]
    callers = [gateway.caller(each["api_key"]) for each in (kept, ended)]

    async def ask_all() -> list[list[int]]:
        answers = await asyncio.gather(*(one.get("/orgs") for one in callers * 15))
        return [[each.status_code for each in answers[n::2]] for n in range(2)]

    assert await ask_all() == [[200] * 15, [200] * 15]
    stop = asyncio.Event()

    async def go_on() -> None:
        while not stop.is_set():
            await ask_all()

    busy = [asyncio.create_task(go_on()) for _ in range(2)]
    try:
        assert (await admin.delete(f"/api-keys/{ended['id']}")).status_code == 204
        assert await ask_all() == [[200] * 15, [401] * 15]
    finally:
        stop.set()
        await asyncio.gather(*busy)
