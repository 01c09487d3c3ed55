"""A whole deployment of processes that may be killed at any time, and what was said to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from decimal import Decimal
from itertools import count
from types import MappingProxyType
from typing import Any

import asyncpg
import httpx

from contracts.channel import Tokens
from contracts.envelope import Event, encode
from contracts.types import Wire
from services.ledger.domain.pricing import price_usage
from shared.bus import Bus, BusUnavailable
from shared.outbox import Message
from tests.factories import MODEL, Feed, finished, started, usage
from tests.ledger_room import BOOK
from tests.servers import DEPLOYMENT_KEY, RoomProcess, Servers
from tests.waiting import eventually

PARTS = (
    ("gateway", "http"),
    ("gateway", "relay"),
    ("ledger", "ingest"),
    ("ledger", "answer"),
    ("ledger", "relay"),
)
MODELS = (("anthropic", MODEL), ("openai", "gpt-5"), ("deepseek", "deepseek-chat"))
CHANNELS = {"acme": ("c1", "c2"), "flood": ("f1",)}
SAY_AGAIN_S = 0.2
FLOOD_EVENTS = 1_500


class World:
    """Processes, an organization with channels, and the events that were acknowledged."""

    parts: tuple[tuple[str, str], ...] = PARTS
    environment: Mapping[str, str] = MappingProxyType({})
    """What the rooms are told besides where everything is."""

    def __init__(self, servers: Servers, chance: random.Random) -> None:
        self.servers = servers
        self.chance = chance
        self.processes: list[RoomProcess] = []
        self.said: list[Event[Any]] = []
        self.http = httpx.AsyncClient(timeout=10)
        self.keys: dict[str, str] = {}
        self.kills = 0
        self.poison = 0
        self.numbers = count(1)
        self.clock_file = servers.directory.path / "test-clock"

    async def start(self, stack: AsyncExitStack) -> None:
        self.step_clock(0)
        self.database = await self.servers.new_database("gateway", "ledger")
        await self.servers.fresh_streams()
        stack.push_async_callback(self.http.aclose)
        self.bootstrap = await self.servers.start_bootstrap()
        stack.push_async_callback(self.bootstrap.kill)
        started_ = await asyncio.gather(
            *(
                self.servers.start_room(
                    room,
                    part,
                    self.database,
                    environment={
                        "RIENDA_LEDGER_TEST_CLOCK": str(self.clock_file),
                        **self.environment,
                    },
                )
                for room, part in self.parts
            )
        )
        self.processes = [*started_, self.bootstrap]
        for process in self.processes:
            stack.push_async_callback(process.kill)
        self.url = f"{self.processes[0].url}/api/v1"
        for org, channels in CHANNELS.items():
            await self._post("/orgs", {"org_id": org, "name": org, "monthly_budget_usd": None})
            for channel_id in channels:
                made = await self._post(
                    "/channels",
                    {"channel_id": channel_id, "name": channel_id, "rights": ["backfill"]},
                    {"X-Organization-Id": org},
                )
                self.keys[channel_id] = made["api_key"]

    async def _post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        answer = await self.http.post(
            self.url + path,
            json=body,
            headers={"Authorization": f"Bearer {DEPLOYMENT_KEY}", **(headers or {})},
        )
        assert answer.is_success, answer.text
        return answer.json()

    async def say_until_heard(self, channel_id: str, events: list[Event[Any]]) -> None:
        """Publish, again and again, until the gateway says that the stream has them."""
        body = [_json(event) for event in events]
        while True:
            try:
                answer = await self.http.post(
                    f"{self.url}/events",
                    json=body,
                    headers={"Authorization": f"Bearer {self.keys[channel_id]}"},
                )
            except httpx.HTTPError:
                await asyncio.sleep(SAY_AGAIN_S)
                continue
            if answer.status_code == 202:
                refused = [item for item in answer.json()["items"] if item["status"] == "refused"]
                assert not refused, refused
                self.said += events
                return
            assert answer.status_code in (500, 503), answer.text
            await asyncio.sleep(SAY_AGAIN_S)

    async def one_channel_works(self, channel_id: str, stop: asyncio.Event) -> None:
        """Runs with growing, repeated and interrupted reports, in any order, until told to stop."""
        number = 0
        while not stop.is_set():
            number += 1
            events = self._run_of(channel_id, f"{channel_id}-r{number}")
            self.chance.shuffle(events)
            while events:
                size = self.chance.randint(1, 5)
                group, events = events[:size], events[size:]
                await self.say_until_heard(channel_id, group)
                if self.chance.random() < 0.2:
                    await self.say_until_heard(channel_id, group)

    def _run_of(self, channel_id: str, run_id: str) -> list[Event[Any]]:
        said: list[Wire] = [started(run_id), finished(run_id)]
        child = f"{run_id}-d"
        has_child = self.chance.random() < 0.4
        if has_child:
            said += [
                started(child, root_run_id=run_id, parent_run_id=run_id, agent_id="helper"),
                finished(child),
            ]
        for position in range(self.chance.randint(1, 5)):
            provider, model = self.chance.choice(MODELS)
            on = child if has_child and self.chance.random() < 0.3 else run_id
            output = self.chance.randint(0, 2_000)
            for grown in range(self.chance.randint(1, 3)):
                said.append(
                    usage(
                        f"{run_id}-q{position}",
                        on,
                        provider=provider,
                        model=model,
                        tokens=Tokens(input=1_234 + position, output=output + 37 * grown),
                    )
                )
        return [_event(data, channel_id, f"{run_id}/{n}") for n, data in enumerate(said)]

    async def flood(self) -> None:
        """One organization reports as much at once as it can."""
        number = len(self.said)
        events = [
            _event(usage(f"f-{number}-{n}", f"f-{number}"), "f1", f"f-{number}-{n}", org="flood")
            for n in range(FLOOD_EVENTS)
        ]
        ends = [started(f"f-{number}"), finished(f"f-{number}")]
        events += [
            _event(data, "f1", f"f-{number}-end-{n}", org="flood") for n, data in enumerate(ends)
        ]
        for first in range(0, len(events), 100):
            await self.say_until_heard("f1", events[first : first + 100])

    async def publish_poison(self) -> None:
        """What no gateway lets through, straight onto the stream."""
        good = Feed().channel(started("poison"))
        bodies = [b"\xff not json", good.body.replace(b"acme", b"beta"), b"[" * 5_000, b"{}"]
        bus = Bus(self.servers.bus_address("gateway"))
        await bus.start()
        try:
            for body in bodies:
                number = next(self.numbers)
                message = Message(good.subject, f"poison-{number}", body + b" " * number)
                while True:
                    try:
                        await bus.publish(message)
                    except BusUnavailable:
                        await asyncio.sleep(SAY_AGAIN_S)
                    else:
                        break
                self.poison += 1
        finally:
            await bus.stop()

    def step_clock(self, seconds: int) -> None:
        """Move the ledger's clock."""
        self.clock_file.write_text(str(seconds))

    async def kill_something(self) -> None:
        """SIGKILL one process and start it again."""
        process = self.chance.choice(self.processes)
        await process.kill()
        process.launch()
        self.kills += 1

    async def all_ready(self) -> None:
        for process in self.processes:
            if process.pid is None:
                process.launch()
            await process.wait_until_ready()

    def expected_nanousd(self, org: str | None = None) -> int:
        """The bill of what was said: the best report of each request, priced once."""
        best: dict[str, tuple[Any, int]] = {}
        for event in self.said:
            if not hasattr(event.data, "request_id") or org not in (None, event.subject):
                continue
            report = event.data
            rank = (report.tokens.output, report.tokens.input)
            known = best.get(report.request_id)
            if known is None or rank > known[0]:
                best[report.request_id] = (rank, price_usage(BOOK, report).cost_nanousd)
        return sum(cost for _, cost in best.values())

    async def entered(self) -> dict[str, Any]:
        connection = await asyncpg.connect(self.database.url("ledger"), ssl=False)
        try:
            row = await connection.fetchrow(
                """
                SELECT (SELECT coalesce(sum(cost_nanousd), 0)::bigint FROM ledger.entry) AS bill,
                    (SELECT count(*) FROM ledger.run) AS runs,
                    (SELECT count(*) FROM ledger.run WHERE provisional OR status = 'running')
                        AS unfinished,
                    (SELECT count(*) FROM ledger.request) AS requests,
                    (SELECT count(*) FROM ledger.retry) AS retries,
                    (SELECT count(*) FROM ledger.dead_letter) AS dead,
                    (SELECT count(*) FROM ledger.dead_letter
                        WHERE reason NOT IN ('not_json', 'wrong_organization', 'invalid_field'))
                        AS dead_unmeant,
                    (SELECT count(*) FROM ledger.outbox WHERE published_at IS NULL) AS unsaid
                """
            )
            return dict(row)
        finally:
            await connection.close()

    async def settled(self) -> dict[str, Any]:
        """What is entered once everything that was said is handled and said on."""
        self.step_clock(7_200)  # whatever was put off at a stepped clock is due
        requests = {
            event.data.request_id for event in self.said if hasattr(event.data, "request_id")
        }
        runs = {event.data.run_id for event in self.said}
        wanted = self.expected_nanousd()

        def holds(seen: dict[str, Any]) -> bool:
            return (
                seen["bill"] == wanted
                and seen["requests"] == len(requests)
                and seen["runs"] == len(runs)
                and seen["dead"] == self.poison
                and not (seen["unfinished"] or seen["retries"] or seen["unsaid"])
            )

        try:
            return await eventually(self.entered, holds, wait_s=90)
        except AssertionError as error:
            raise AssertionError(
                f"{error}\nwanted: bill {wanted}, {len(requests)} requests, {len(runs)} runs\n"
                f"{self.last_words()}"
            ) from None

    async def spend(self) -> Any:
        made = await self._post(
            "/api-keys",
            {"name": "reader", "permissions": ["runs:view"]},
            {"X-Organization-Id": "acme"},
        )
        answer = await self.http.get(
            f"{self.url}/spend",
            params={"from": "2026-01-01T00:00:00Z"},
            headers={"Authorization": f"Bearer {made['api_key']}"},
        )
        assert answer.is_success, f"{answer.text}\n{self.last_words()}"
        return answer.json()

    def last_words(self) -> str:
        return "\n".join(f"{p.name}: {p.pid}{p._last_words()}" for p in self.processes)


def nanousd(text: str) -> int:
    return int(Decimal(text) * 10**9)


def _event(data: Wire, channel_id: str, event_id: str, *, org: str = "acme") -> Event[Any]:
    delivery = Feed().channel(data, org=org, channel_id=channel_id, event_id=event_id)
    from contracts.upcast import read_event

    return read_event(delivery.subject, delivery.body)[1]


def _json(event: Event[Any]) -> Any:
    import json

    return {name: value for name, value in json.loads(encode(event)).items() if name != "source"}
