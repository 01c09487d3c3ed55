"""The feed of channels and the streams of people who watch."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from contracts.caps import CapStopped, CapWarned
from services.gateway.store.heard import FEED_AGE, LIVE_AGE, prune_heard
from tests.integration.gateway.hearing import Noted, database_of, hear, run_changed
from tests.integration.gateway.running import Gateway
from tests.servers import DEPLOYMENT_KEY
from tests.waiting import eventually

pytestmark = pytest.mark.integration

STREAMS = 200


def numbers(page: dict[str, Any]) -> list[int]:
    return [item["data"]["number"] for item in page["items"]]


async def read(channel: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await channel.get("/feed", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


async def test_a_channel_reads_what_concerns_it_in_order_and_as_often_as_it_likes(
    gateway: Gateway,
) -> None:
    org, other = await gateway.new_org(), await gateway.new_org()
    channel, _ = await gateway.new_channel(org, "mine")
    second, _ = await gateway.new_channel(org, "second")
    async with database_of(gateway) as database:
        await hear(database, org, *(Noted(number=n) for n in range(5)), run_changed("r"))
        await hear(database, other, Noted(number=99))
        await hear(database, org, Noted(number=5, channel_id="second"), Noted(number=6))
    first = await read(channel, limit=3)
    assert numbers(first) == [0, 1, 2]
    assert first["items"][0]["type"] == "rienda.noted.v1"
    assert first["items"][0]["subject"] == org
    rest = await read(channel, cursor=first["cursor"])
    assert numbers(rest) == [3, 4, 6]
    assert numbers(await read(channel, cursor=first["cursor"])) == [3, 4, 6]
    end = await read(channel, cursor=rest["cursor"])
    assert (end["items"], end["cursor"]) == ([], rest["cursor"])
    assert numbers(await read(second)) == [0, 1, 2, 3, 4, 5, 6]
    for cursor in ("nonsense", "", "W10"):
        assert (await channel.get("/feed", params={"cursor": cursor})).status_code in (400, 422)
    no_channel = gateway.caller(DEPLOYMENT_KEY, org)
    assert (await no_channel.get("/feed")).json()["reason"] == "channel_key_needed"


def cap_said(kind: type[CapWarned], **fields: Any) -> CapWarned:
    return kind(
        scope="organization",
        id="acme",
        name="Acme",
        month="2026-11",
        limit_nanousd=10,
        spent_nanousd=10,
        held_nanousd=0,
        partial=False,
        cap_revision=1,
        threshold_percent=100,
        at=datetime.now(UTC),
        **fields,
    )


async def test_every_channel_hears_that_a_cap_stopped_a_run_and_none_that_it_was_near(
    gateway: Gateway,
) -> None:
    org = await gateway.new_org()
    channels = [(await gateway.new_channel(org, name))[0] for name in ("first", "second")]
    async with database_of(gateway) as database:
        await hear(database, org, cap_said(CapWarned), cap_said(CapStopped, run_id="r1"))
    for channel in channels:
        (item,) = (await read(channel))["items"]
        assert (item["type"], item["data"]["run_id"]) == ("rienda.cap_stopped.v1", "r1")


async def test_a_long_poll_answers_when_something_comes(gateway: Gateway) -> None:
    org = await gateway.new_org()
    channel, _ = await gateway.new_channel(org)
    async with database_of(gateway) as database:
        start = (await read(channel))["cursor"]
        waiting = asyncio.create_task(read(channel, cursor=start, wait_s=30))
        # Neither what only people watch nor what other organizations hear answers it.
        await hear(database, org, run_changed("r"))
        await hear(database, "somewhere-else", Noted(number=1))
        await hear(database, org, Noted(number=7))
        page = await asyncio.wait_for(waiting, timeout=25)
    assert numbers(page) == [7]
    assert (await read(channel, cursor=page["cursor"], wait_s=1))["items"] == []


async def test_nobody_misses_anything_while_many_write(gateway: Gateway) -> None:
    """Transactions commit in another order than they began; no position may appear behind one."""
    org = await gateway.new_org()
    channel, _ = await gateway.new_channel(org)
    chance = random.Random(7)
    counts = [chance.randrange(1, 6) for _ in range(40)]
    total = sum(counts)
    seen: list[int] = []

    async def reader() -> None:
        cursor: dict[str, str] = {}
        while len(seen) < total:
            page = await read(channel, wait_s=5, limit=7, **cursor)
            seen.extend(numbers(page))
            cursor = {"cursor": page["cursor"]}

    async with database_of(gateway) as database:

        async def writer(number: int, count: int) -> None:
            said = (Noted(number=1_000 * number + n) for n in range(count))
            await hear(database, org, *said)

        reading = asyncio.create_task(reader())
        await asyncio.gather(*(writer(number, count) for number, count in enumerate(counts)))
        await asyncio.wait_for(reading, timeout=60)
    assert len(seen) == len(set(seen)) == total
    for number in range(len(counts)):
        own = [each for each in seen if each // 1_000 == number]
        assert own == sorted(own)


async def test_a_reader_who_was_away_too_long_is_told(gateway: Gateway) -> None:
    org = await gateway.new_org()
    channel, _ = await gateway.new_channel(org)
    async with database_of(gateway) as database:
        await hear(database, org, Noted(number=1), Noted(number=2))
        stale = (await read(channel, limit=1))["cursor"]
        async with database.transaction() as connection:
            later = datetime.now(UTC) + FEED_AGE + timedelta(minutes=1)
            assert await prune_heard(connection, now=later) >= 2
        behind = await channel.get("/feed", params={"cursor": stale})
        assert (behind.status_code, behind.json()["reason"]) == (400, "cursor_behind")
        await hear(database, org, Noted(number=3))
    assert numbers(await read(channel)) == [3]


async def test_what_only_people_watch_is_kept_for_minutes(gateway: Gateway) -> None:
    org = await gateway.new_org()
    channel, _ = await gateway.new_channel(org)
    async with database_of(gateway) as database:
        await hear(database, org, run_changed("r"), Noted(number=1))
        async with database.transaction() as connection:
            await prune_heard(connection, now=datetime.now(UTC) + LIVE_AGE * 2)
            kept = await connection.fetch("SELECT event FROM heard WHERE org_id = $1", org)
        assert [row["event"] for row in kept] == ["noted"]
        old = datetime.now(UTC) - LIVE_AGE * 2
        await hear(database, org, run_changed("old"), at=old)
        async with database.transaction() as connection:
            count = await connection.fetchval("SELECT count(*) FROM heard WHERE org_id = $1", org)
    assert count == 1
    assert numbers(await read(channel)) == [1]


class Watching:
    """An open stream, read line by line."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def event(self) -> dict[str, Any]:
        """The next event, comments left out."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(30):
            async for line in self._lines:
                if line:
                    name, _, value = line.partition(":")
                    fields[name] = value.strip()
                elif "data" in fields:
                    shown = {"position": fields["id"], "event": fields["event"]}
                    return {**json.loads(fields["data"]), **shown}
                else:
                    fields = {}
        raise AssertionError("the stream ended")

    async def ends(self) -> bool:
        """Whether the server ends it without saying anything more."""
        async with asyncio.timeout(30):
            lines = [line async for line in self._lines]
        return not any(line.startswith("data") for line in lines)


@asynccontextmanager
async def watching(client: httpx.AsyncClient, **headers: str) -> AsyncIterator[Watching]:
    async with client.stream("GET", "/live", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Watching(response)


async def test_people_watch_what_they_may_see_of_their_organization(gateway: Gateway) -> None:
    org, other = await gateway.new_org(), await gateway.new_org()
    operator = await gateway.new_person(org, "operator")
    viewer = await gateway.new_person(org, "viewer")
    async with (
        database_of(gateway) as database,
        watching(operator.client) as sees,
        watching(viewer.client) as sees_nothing,
    ):
        await hear(database, other, run_changed("not-ours"))
        await hear(database, org, run_changed("r1"), Noted(number=1), run_changed("r2"))
        first = await sees.event()
        assert (first["event"], first["data"]["run_id"]) == ("run_changed", "r1")
        assert (await sees.event())["data"]["run_id"] == "r2"
        root = gateway.caller(DEPLOYMENT_KEY, org)
        await root.delete(f"/orgs/{org}/members/{viewer.user_id}")
        await _poke_until_ended(database, org, sees_nothing)
    # Whoever connects again goes on behind the last event that they saw.
    async with watching(operator.client, **{"Last-Event-ID": first["position"]}) as again:
        assert (await again.event())["data"]["run_id"] == "r2"
    strange = gateway.caller(operator.token, other)
    assert (await strange.get("/live")).status_code == 404


async def _poke_until_ended(database: Any, org: str, stream: Watching) -> None:
    """Say things until the stream notices that its caller is gone."""
    ended = asyncio.create_task(stream.ends())

    async def poke() -> bool:
        await hear(database, org, run_changed("after"))
        return ended.done()

    await eventually(poke)
    assert ended.result()


async def test_two_hundred_open_streams_hold_no_connection_and_all_hear(
    gateway: Gateway,
) -> None:
    org = await gateway.new_org()
    operator = await gateway.new_person(org, "operator")
    limits = httpx.Limits(max_connections=STREAMS + 10, max_keepalive_connections=STREAMS + 10)
    headers = {"Authorization": f"Bearer {operator.token}"}
    base = f"{gateway.process.url}/api/v1"

    async with httpx.AsyncClient(base_url=base, headers=headers, limits=limits, timeout=60) as many:
        opened = [many.stream("GET", "/live") for _ in range(STREAMS)]
        responses = [await stream.__aenter__() for stream in opened]
        try:
            assert {response.status_code for response in responses} == {200}
            for _ in range(20):
                assert (await operator.client.get(f"/orgs/{org}")).status_code == 200
            async with database_of(gateway) as database:
                async with database.transaction() as connection:
                    held = await connection.fetchval(
                        """
                        SELECT count(*) FROM pg_stat_activity
                        WHERE usename = 'gateway' AND datname = current_database()
                            AND pid <> pg_backend_pid()
                        """
                    )
                await hear(database, org, run_changed("for-all"))
            watched = [Watching(response) for response in responses]
            events = await asyncio.gather(*(each.event() for each in watched))
            assert {event["data"]["run_id"] for event in events} == {"for-all"}
        finally:
            for stream in opened:
                await stream.__aexit__(None, None, None)
    assert held <= 8, "the pool is what it was"


async def test_an_open_stream_does_not_keep_the_process(gateway: Gateway) -> None:
    person = await gateway.new_person(await gateway.new_org(), "operator")
    async with person.client.stream("GET", "/live") as response:
        assert response.status_code == 200
        assert await gateway.process.stop() == 0
    await gateway.process.start()
