"""People: signing in and out, being locked out, the cookie, invitations, what keys they make."""

from __future__ import annotations

import asyncio
import itertools

import asyncpg
import pytest

from tests.integration.gateway.running import PASSWORD, Gateway
from tests.servers import DEPLOYMENT_KEY

pytestmark = pytest.mark.integration

ADDRESSES = (f"somebody{n}@example.net" for n in itertools.count())


async def rows(gateway: Gateway, statement: str, *values: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(gateway.database.admin_url, ssl=False)
    try:
        return list(await connection.fetch(statement, *values))
    finally:
        await connection.close()


async def test_signs_in_is_known_and_signs_out(gateway: Gateway) -> None:
    org = await gateway.new_org()
    person = await gateway.new_person(org, "operator")
    anonymous = gateway.caller(None)
    body = {"email": person.email.upper(), "password": PASSWORD}
    signed_in = await anonymous.post("/sessions", json=body)
    assert signed_in.status_code == 201, signed_in.text
    assert "set-cookie" not in signed_in.headers
    client = gateway.caller(signed_in.json()["token"])
    me = (await client.get("/me")).json()
    assert (me["kind"], me["email"], me["is_app_admin"]) == ("person", person.email, False)
    (belonging,) = me["belongings"]
    assert (belonging["org_id"], belonging["role"]) == (org, "operator")
    assert belonging["permissions"]["approvals:decide"] == "all"
    assert (await client.delete("/sessions/current")).status_code == 204
    assert (await client.get("/me")).status_code == 401
    assert (await person.client.get("/me")).status_code == 200


async def test_signs_out_everywhere(gateway: Gateway) -> None:
    person = await gateway.new_person(await gateway.new_org(), "viewer")
    body = {"email": person.email, "password": PASSWORD}
    token = (await gateway.caller(None).post("/sessions", json=body)).json()["token"]
    other = gateway.caller(token)
    assert (await other.delete("/sessions")).json() == {"ended": 2}
    assert (await person.client.get("/me")).status_code == 401
    assert (await other.get("/me")).status_code == 401


async def test_an_expired_session_is_refused(gateway: Gateway) -> None:
    person = await gateway.new_person(await gateway.new_org(), "viewer")
    await rows(
        gateway,
        "UPDATE gateway.session SET expires_at = now() WHERE session_id = $1 RETURNING 1",
        person.token.split("_")[1],
    )
    assert (await person.client.get("/me")).status_code == 401


async def test_an_unknown_address_answers_like_a_wrong_password_until_both_are_locked(
    gateway: Gateway,
) -> None:
    person = await gateway.new_person(await gateway.new_org(), "viewer")
    anonymous = gateway.caller(None)
    for email in (person.email, next(ADDRESSES)):
        wrong = {"email": email, "password": "not the password"}
        for _ in range(5):
            refused = await anonymous.post("/sessions", json=wrong)
            assert (refused.status_code, refused.json()["reason"]) == (401, "sign_in_refused")
        right = {"email": email, "password": PASSWORD}
        locked = await anonymous.post("/sessions", json=right)
        assert (locked.status_code, locked.json()["reason"]) == (429, "sign_in_locked")
        assert 0 < int(locked.headers["retry-after"]) <= 900
    # Whoever is in stays in.
    assert (await person.client.get("/me")).status_code == 200
    chain = await rows(
        gateway,
        "SELECT convert_from(body, 'utf8') AS body FROM gateway.audit_entry WHERE chain = '_'",
    )
    assert sum('"session.locked"' in row["body"] for row in chain) == 1
    assert not any("example" in row["body"] for row in chain)


async def test_a_sign_in_ends_the_row_of_failures(gateway: Gateway) -> None:
    person = await gateway.new_person(await gateway.new_org(), "viewer")
    anonymous = gateway.caller(None)
    wrong, right = (
        {"email": person.email, "password": password} for password in ("no no no", PASSWORD)
    )
    for _ in range(3):
        for _ in range(4):
            assert (await anonymous.post("/sessions", json=wrong)).status_code == 401
        assert (await anonymous.post("/sessions", json=right)).status_code == 201


async def test_the_cookie_is_for_this_sites_own_pages(gateway: Gateway) -> None:
    person = await gateway.new_person(await gateway.new_org(), "owner")
    body = {"email": person.email, "password": PASSWORD, "cookie": True}
    anonymous = gateway.caller(None)
    assert (await anonymous.post("/sessions", json=body)).json()["reason"] == "cross_site"
    own = {"Sec-Fetch-Site": "same-origin"}
    made = await anonymous.post("/sessions", json=body, headers=own)
    cookie = made.headers["set-cookie"]
    for part in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
        assert part in cookie
    value = {"Cookie": f"rienda_session={made.json()['token']}"}
    anonymous.cookies.clear()
    assert (await anonymous.get("/me", headers=value)).status_code == 200
    change = {"name": "Desk"}
    host = anonymous.base_url.netloc.decode()
    strange: list[dict[str, str]] = [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Origin": f"https://example.org/{host}"},
        {"Origin": f"https://{host}", "Sec-Fetch-Site": "cross-site"},
    ]
    for headers in strange:
        refused = await anonymous.post("/channels", json=change, headers={**value, **headers})
        assert refused.json()["reason"] == "cross_site", headers
    for headers in (own, {"Origin": f"http://{host}"}):
        taken = await anonymous.post("/channels", json=change, headers={**value, **headers})
        assert taken.status_code == 422, taken.text
    beaten = {**value, "Authorization": "Bearer nonsense"}
    assert (await anonymous.get("/me", headers=beaten)).status_code == 401
    out = await anonymous.delete("/sessions/current", headers={**value, **own})
    assert "rienda_session=" in out.headers["set-cookie"]
    assert (await anonymous.get("/me", headers=value)).status_code == 401


async def test_no_secret_and_no_password_is_stored(gateway: Gateway) -> None:
    org = await gateway.new_org()
    person = await gateway.new_person(org, "owner")
    invited = await person.client.post(
        "/invitations", json={"email": next(ADDRESSES), "name": "B", "role": "viewer"}
    )
    secrets = [person.token.split("_", 2)[2], invited.json()["token"].split("_", 2)[2], PASSWORD]
    (dump,) = await rows(
        gateway,
        """
        SELECT string_agg(t::text, ' ') FROM (
            SELECT to_jsonb(s) AS t FROM gateway.session s
            UNION ALL SELECT to_jsonb(i) FROM gateway.invitation i
            UNION ALL SELECT to_jsonb(p) FROM gateway.person p
            UNION ALL SELECT to_jsonb(d) FROM gateway.idempotency d
            UNION ALL SELECT to_jsonb(o) FROM gateway.outbox o
            UNION ALL SELECT to_jsonb(a) FROM gateway.audit_entry a
        ) AS rows
        """,
    )
    for secret in secrets:
        assert secret not in dump[0]
        assert secret.encode().hex() not in dump[0]
    assert "$argon2id$" in dump[0]


async def test_an_invitation_is_for_once_for_a_role_below_and_can_be_taken_back(
    gateway: Gateway,
) -> None:
    org = await gateway.new_org()
    admin = await gateway.new_person(org, "admin")
    operator = await gateway.new_person(org, "operator")
    offer = {"email": next(ADDRESSES), "name": "New", "role": "builder"}
    assert (await operator.client.post("/invitations", json=offer)).status_code == 403
    for role in ("owner", "admin"):
        refused = await admin.client.post("/invitations", json={**offer, "role": role})
        assert (refused.status_code, refused.json()["reason"]) == (403, "role_not_assignable")
    assert (await admin.client.post("/invitations", json={**offer, "role": "x"})).status_code == 422
    made = (await admin.client.post("/invitations", json=offer)).json()
    listed = (await admin.client.get("/invitations")).text
    assert made["token"] not in listed
    assert made["id"] in listed

    anonymous = gateway.caller(None)
    acceptance = {"token": made["token"], "password": PASSWORD}
    short = await anonymous.post("/invitations/accept", json={**acceptance, "password": "short"})
    assert short.status_code == 422
    answers = await asyncio.gather(
        *(anonymous.post("/invitations/accept", json=acceptance) for _ in range(3))
    )
    assert sorted(answer.status_code for answer in answers).count(200) == 1
    (accepted,) = [answer.json() for answer in answers if answer.status_code == 200]
    assert (accepted["org_id"], accepted["role"]) == (org, "builder")
    late = await anonymous.post("/invitations/accept", json=acceptance)
    assert (late.status_code, late.json()["reason"]) == (404, "invitation_unknown")

    second = (
        await admin.client.post("/invitations", json={**offer, "email": next(ADDRESSES)})
    ).json()
    assert (await admin.client.delete(f"/invitations/{second['id']}")).status_code == 204
    gone = await anonymous.post(
        "/invitations/accept", json={"token": second["token"], "password": PASSWORD}
    )
    unknown = await anonymous.post(
        "/invitations/accept", json={"token": f"ri_{'0' * 16}_{'s' * 43}", "password": PASSWORD}
    )
    assert (gone.status_code, gone.text) == (unknown.status_code, unknown.text)
    strange_org = await gateway.new_org()
    stranger = await gateway.new_person(strange_org, "owner")
    assert (await stranger.client.delete(f"/invitations/{second['id']}")).status_code == 404


async def test_an_expired_invitation_is_refused(gateway: Gateway) -> None:
    org, admin = await gateway.new_org(), gateway
    offer = {"email": next(ADDRESSES), "name": "Late", "role": "viewer"}
    made = (await admin.caller(DEPLOYMENT_KEY, org).post("/invitations", json=offer)).json()
    await rows(
        gateway,
        "UPDATE gateway.invitation SET expires_at = now() WHERE invitation_id = $1 RETURNING 1",
        made["id"],
    )
    answer = await gateway.caller(None).post(
        "/invitations/accept", json={"token": made["token"], "password": PASSWORD}
    )
    assert answer.json()["reason"] == "invitation_unknown"


async def test_an_invitation_never_replaces_a_password(gateway: Gateway) -> None:
    """Whoever holds a token of another organization gets nobody's account by it."""
    person = await gateway.new_person(await gateway.new_org(), "owner")
    other = await gateway.new_org()
    offer = {"email": person.email, "name": "Same", "role": "viewer"}
    made = (await gateway.caller(DEPLOYMENT_KEY, other).post("/invitations", json=offer)).json()
    anonymous = gateway.caller(None)
    stolen = {"token": made["token"], "password": "another password"}
    refused = await anonymous.post("/invitations/accept", json=stolen)
    assert (refused.status_code, refused.json()["reason"]) == (401, "sign_in_refused")
    mine = {"token": made["token"], "password": PASSWORD}
    assert (await anonymous.post("/invitations/accept", json=mine)).status_code == 200
    belongings = (await person.client.get("/me")).json()["belongings"]
    assert {each["org_id"]: each["role"] for each in belongings}[other] == "viewer"


async def test_somebody_of_several_organizations_names_one(gateway: Gateway) -> None:
    first, second, third = [await gateway.new_org() for _ in range(3)]
    person = await gateway.new_person(first, "owner")
    await gateway.new_person(second, "viewer", email=person.email)
    reading = person.client
    missing = await reading.get("/agents")
    assert (missing.status_code, missing.json()["reason"]) == (422, "organization_missing")
    for org, status in ((first, 200), (second, 403), (third, 404)):
        answer = await reading.get("/api-keys", headers={"X-Organization-Id": org})
        assert answer.status_code == status
    smuggled = await reading.patch(
        f"/orgs/{second}", json={"name": "mine"}, headers={"X-Organization-Id": first}
    )
    assert (smuggled.status_code, smuggled.json()["reason"]) == (404, "organization_unknown")
    listed = (await reading.get("/orgs")).json()
    assert ({row["org_id"] for row in listed["items"]}, listed["total"]) == ({first, second}, 2)


async def test_a_key_follows_its_makers_role_and_ends_with_them(gateway: Gateway) -> None:
    org = await gateway.new_org()
    owner = await gateway.new_person(org, "owner")
    admin = await gateway.new_person(org, "admin")
    order = {"name": "mine", "permissions": ["budgets:manage", "org:settings", "runs:view"]}
    made = (await admin.client.post("/api-keys", json=order)).json()
    key = gateway.caller(made["api_key"])
    # What a key makes speaks for the same member.
    child = (await key.post("/api-keys", json={**order, "permissions": ["runs:view"]})).json()
    grandchild = gateway.caller(child["api_key"])
    assert (await key.patch(f"/orgs/{org}", json={"cap_mode": "recorded"})).status_code == 200
    lowered = await owner.client.patch(
        f"/orgs/{org}/members/{admin.user_id}", json={"role": "operator"}
    )
    assert lowered.status_code == 200, lowered.text
    refused = await key.patch(f"/orgs/{org}", json={"cap_mode": "recorded"})
    assert refused.json()["details"]["permissions"] == ["budgets:manage"]
    assert set((await key.get("/me")).json()["belongings"][0]["permissions"]) == {"runs:view"}

    member = f"/orgs/{org}/members/{admin.user_id}"
    assert (await owner.client.delete(member)).status_code == 204
    for client in (key, grandchild):
        assert (await client.get("/me")).status_code == 401
    assert (await admin.client.get("/me")).json()["belongings"] == []
    assert (await admin.client.get(f"/orgs/{org}")).status_code == 404
    # A member who comes back does not get the old keys back.
    again = {"user_id": admin.user_id, "name": "Again", "role": "operator"}
    assert (await owner.client.post(f"/orgs/{org}/members", json=again)).status_code == 201
    assert (await key.get("/me")).status_code == 401


async def test_a_person_hands_out_no_more_than_they_hold_everywhere(gateway: Gateway) -> None:
    org = await gateway.new_org()
    admin = await gateway.new_person(org, "admin")
    for permission in ("org:delete", "channels:publish"):
        refused = await admin.client.post(
            "/api-keys", json={"name": "x", "permissions": [permission]}
        )
        assert refused.status_code == 403, permission


async def test_only_an_own_session_shows_live_data_to_the_public(gateway: Gateway) -> None:
    org, admin_key = await gateway.new_admin()
    refused = await admin_key.patch(f"/orgs/{org}", json={"public_live_data": True})
    assert (refused.status_code, refused.json()["reason"]) == (403, "session_needed")
    admin = await gateway.new_person(org, "admin")
    taken = await admin.client.patch(f"/orgs/{org}", json={"public_live_data": True})
    assert (taken.status_code, taken.json()["public_live_data"]) == (200, True)
    limit = await admin.client.patch(f"/orgs/{org}", json={"proactive_limit_usd": "0.25"})
    assert limit.json()["proactive_limit_usd"] == "0.250000"
    # Nobody is there to apply it.
    assert (limit.status_code, limit.json()["effective"]) == (202, False)
