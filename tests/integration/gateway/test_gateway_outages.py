"""What the gateway says while a server is away, and that it goes on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.integration.gateway.running import Gateway
from tests.servers import READY_S_MAX, RoomProcess, Servers

pytestmark = pytest.mark.integration

Request = Callable[[], Awaitable[httpx.Response]]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition; fail when it never holds."""
    async with asyncio.timeout(READY_S_MAX):
        while not await holds():
            await asyncio.sleep(0.05)


def event(event_id: str) -> dict[str, Any]:
    data = {"run_id": "1", "status": "completed", "ended_at": datetime.now(UTC).isoformat()}
    return {"id": event_id, "type": "rienda.run_finished.v1", "data": data}


async def is_answered(request: Request, status: int) -> bool:
    return (await request()).status_code == status


def assert_try_again(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["code"] == "EXTERNAL_SERVICE_ERROR"


async def test_answers_503_while_nobody_answers(gateway: Gateway) -> None:
    org = await gateway.new_org()
    viewer = gateway.caller(await gateway.new_key(org, "runs:view"))
    paths = ("/runs", "/runs/1", "/runs/1/entries", "/spend", "/caps")
    for answer in await asyncio.gather(*(viewer.get(path) for path in paths)):
        assert_try_again(answer)


async def test_loses_no_event_while_the_bus_is_away(gateway: Gateway, servers: Servers) -> None:
    channel, _ = await gateway.new_channel(await gateway.new_org())
    await servers.nats.stop()
    try:

        async def is_red() -> bool:
            return not await gateway.process.is_ready()

        await until(is_red)
        assert_try_again(await channel.post("/events", json=[event("e1"), event("e2")]))
    finally:
        await servers.nats.start()
    await gateway.process.wait_until_ready()
    sent_again = await channel.post("/events", json=[event("e1"), event("e2")])
    assert sent_again.status_code == 202
    assert sent_again.json()["refused"] == 0


async def test_goes_on_after_the_database_was_away(gateway: Gateway, servers: Servers) -> None:
    org, admin = await gateway.new_admin()
    await servers.postgres.stop()
    try:
        assert_try_again(await admin.get("/agents"))
    finally:
        await servers.postgres.start()
    await until(lambda: is_answered(lambda: admin.get("/agents"), 200))
    await gateway.process.wait_until_ready()
    assert (await admin.get(f"/orgs/{org}")).json()["org_id"] == org


async def test_a_channel_works_over_http_where_no_bus_user_can_be_made(
    gateway: Gateway, bootstrap: RoomProcess
) -> None:
    _, admin = await gateway.new_admin()
    await bootstrap.kill()
    try:
        made = await admin.post("/channels", json={"channel_id": "desk", "name": "Desk"})
        assert made.status_code == 201, made.text
        assert made.json()["nats"]["available"] is False
        channel = gateway.caller(made.json()["api_key"])
        assert (await channel.post("/events", json=event("e"))).json()["accepted"] == 1

        unsure = await admin.delete("/channels/desk")
        assert_try_again(unsure)
        assert unsure.json()["reason"] == "bus_user_not_removed"
        assert (await channel.post("/events", json=event("f"))).status_code == 401
    finally:
        await bootstrap.start()
    assert (await admin.delete("/channels/desk")).status_code == 204
