"""Gateway, relay and ledger together: changes take effect, projections are mended, streams show."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from tests.integration.gateway.running import Gateway
from tests.integration.gateway.saying import answered, started
from tests.integration.gateway.test_gateway_feed import watching
from tests.servers import ROOT, RoomProcess, Servers
from tests.waiting import eventually

pytestmark = pytest.mark.integration


@dataclass
class Rooms:
    """A gateway with a ledger behind it."""

    gateway: Gateway
    ingest: RoomProcess
    answer: RoomProcess
    servers: Servers

    async def ledger_rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self.gateway.database.admin_url, ssl=False)
        try:
            return [tuple(row) for row in await connection.fetch(statement, *values)]
        finally:
            await connection.close()


@pytest.fixture(scope="module")
async def rooms(servers: Servers, bootstrap: RoomProcess) -> AsyncIterator[Rooms]:
    await servers.fresh_streams()
    database = await servers.new_database("gateway", "ledger")
    processes = await asyncio.gather(
        servers.start_room("ledger", "ingest", database),
        servers.start_room("ledger", "answer", database),
        servers.start_room("ledger", "relay", database),
        servers.start_room("gateway", "relay", database),
        servers.start_room("gateway", "http", database),
    )
    gateway = Gateway(processes[-1], database)
    yield Rooms(gateway, processes[0], processes[1], servers)
    await gateway.close()
    for process in processes:
        await process.kill()
    await servers.drop_database(database)


async def test_a_cap_is_in_effect_when_its_change_is_answered(rooms: Rooms) -> None:
    gateway = rooms.gateway
    org, admin = await gateway.new_admin()
    for amount in ("7.000000", "8.000000", "9.000000"):
        changed = await admin.patch(f"/orgs/{org}", json={"monthly_budget_usd": amount})
        assert (changed.status_code, changed.json()["effective"]) == (200, True), changed.text
        caps = (await admin.get("/caps")).json()["items"]
        assert [(cap["scope"], cap["limit_usd"]) for cap in caps] == [("organization", amount)]
    made = await admin.post(
        "/agents", json={"agent_id": "a", "name": "A", "budget": {"monthly_usd": "1"}}
    )
    assert (made.status_code, made.json()["effective"]) == (201, True)
    people = gateway.caller(await gateway.new_key(org, "members:manage", "budgets:manage"))
    body = {"department_id": "d", "name": "D", "monthly_budget_usd": "3"}
    department = await people.post(f"/orgs/{org}/departments", json=body)
    assert (department.status_code, department.json()["effective"]) == (201, True)
    caps = (await admin.get("/caps")).json()["items"]
    assert [(cap["scope"], cap["limit_usd"], cap["is_partial"]) for cap in caps] == [
        ("organization", "9.000000", False),
        ("department", "3.000000", False),
        ("agent", "1.000000", False),
    ]


async def test_a_change_that_the_ledger_did_not_apply_says_so_and_takes_effect_later(
    rooms: Rooms,
) -> None:
    org, admin = await rooms.gateway.new_admin()
    await answered(admin, "/caps", total=1)
    await rooms.ingest.kill()
    try:
        changed = await admin.patch(f"/orgs/{org}", json={"monthly_budget_usd": "5"})
        assert (changed.status_code, changed.json()["effective"]) == (202, False)
        assert changed.json()["monthly_budget_usd"] == "5.000000"
        renamed = await admin.patch(f"/orgs/{org}", json={"name": "Elsewhere"})
        assert (renamed.status_code, renamed.json()["effective"]) == (200, True)
    finally:
        await rooms.ingest.start()

    async def limit() -> str:
        return str((await admin.get("/caps")).json()["items"][0]["limit_usd"])

    await eventually(limit, lambda shown: shown == "5.000000")


async def test_republishing_mends_a_projection_and_changes_no_other(rooms: Rooms) -> None:
    gateway = rooms.gateway
    org, admin = await gateway.new_admin(await gateway.new_org(monthly_budget_usd="4"))
    await gateway.new_person(org, "owner", user_id="boss")
    await admin.post("/agents", json={"agent_id": "gone", "name": "Gone"})
    await admin.post("/agents/gone/archive")
    members = "SELECT user_id, role FROM ledger.member WHERE org = $1"

    async def knows() -> list[tuple[Any, ...]]:
        return await rooms.ledger_rows(members, org)

    await eventually(knows, lambda rows: rows == [("boss", "owner")])
    untouched = await rooms.ledger_rows("SELECT * FROM ledger.organization WHERE org <> $1", org)
    for table in ("member", "organization", "agent"):
        await rooms.ledger_rows(f"DELETE FROM ledger.{table} WHERE org = $1", org)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "services.gateway", "directory", "republish"],
        env=rooms.servers.environment("gateway", gateway.database, http_port=1),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "said again" in done.stdout
    await eventually(knows, lambda rows: rows == [("boss", "owner")])
    await answered(admin, "/caps", total=1)

    async def agents() -> list[tuple[Any, ...]]:
        return await rooms.ledger_rows(
            "SELECT agent_id, archived_revision FROM ledger.agent WHERE org = $1", org
        )

    await eventually(agents, lambda rows: rows == [("gone", 2)])
    after = await rooms.ledger_rows("SELECT * FROM ledger.organization WHERE org <> $1", org)
    assert sorted(after) == sorted(untouched)


async def test_a_room_that_lost_its_rows_catches_up_by_itself(rooms: Rooms) -> None:
    """Its durable stands at the end of the stream, so only asking helps."""
    gateway = rooms.gateway
    org, admin = await gateway.new_admin()
    for number in range(12):
        await admin.post("/agents", json={"agent_id": f"a{number}", "name": "A"})
    await gateway.new_person(org, "owner", user_id="boss")
    await answered(admin, "/caps", total=1)

    async def counts() -> list[tuple[Any, ...]]:
        return await rooms.ledger_rows(
            """
            SELECT (SELECT count(*) FROM ledger.organization),
                (SELECT count(*) FROM ledger.agent), (SELECT count(*) FROM ledger.member)
            """
        )

    async def knows() -> list[tuple[Any, ...]]:
        return await rooms.ledger_rows("SELECT 1 FROM ledger.member WHERE org = $1", org)

    await eventually(knows)
    before = await counts()
    await rooms.ingest.kill()
    await rooms.ledger_rows(
        "TRUNCATE ledger.organization, ledger.agent, ledger.channel, ledger.member, "
        "ledger.department, ledger.department_member, ledger.directory_copy"
    )
    await rooms.ingest.start()
    await eventually(counts, lambda seen: seen == before)
    await answered(admin, "/caps", total=1)


async def test_a_run_is_seen_live_by_whoever_may_see_runs(rooms: Rooms) -> None:
    gateway = rooms.gateway
    org, admin = await gateway.new_admin()
    channel, _ = await gateway.new_channel(org)
    operator = await gateway.new_person(org, "operator")
    await answered(admin, "/caps", total=1)
    async with watching(operator.client) as live:
        assert (await channel.post("/events", json=[started("live-1")])).json()["accepted"] == 1
        event = await live.event()
    assert event["type"] == "rienda.run_changed.v1"
    assert (event["data"]["run_id"], event["data"]["status"]) == ("live-1", "running")
