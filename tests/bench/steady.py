"""`authorize` asked at a steady rate, whoever is slow: alone, beside usage, and over HTTP.

A question's time counts from when it was due, not from when it could be sent: an answerer that
falls behind cannot hide it (an open loop). Beside each figure stands a bare one of the same run.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import Any

from contracts.ledger import Authorization, Authorize
from shared.bus import Bus
from shared.questions import Asker
from tests.bench.asking import bare_answerer, question
from tests.bench.ingesting import publish_organization
from tests.bench.reporting import EVENTS_PER_S
from tests.integration.gateway.running import Gateway
from tests.servers import ROOT, RoomDatabase, Servers
from tests.waiting import eventually

ASKS_PER_S = 1_000
TICK_S = 0.01
CONNECTIONS = 64
Figure = tuple[str, str, float, float, str]


@contextmanager
def own_collector_stopped() -> Iterator[None]:
    """Keep the load generator from pausing for its own garbage.

    It keeps thousands of tasks until all are done. A look at them takes a tenth of a second, and
    would be counted as the time of whoever was asked meanwhile. The rooms' collectors run as ever.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def steadily(ask: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Milliseconds of `count` questions that fall due at `ASKS_PER_S`, in order of size."""
    with own_collector_stopped():
        return await _steadily(ask, count)


async def _steadily(ask: Callable[[], Awaitable[object]], count: int) -> list[float]:
    took: list[float] = []
    started = time.perf_counter()

    async def one(due: float) -> None:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        await ask()
        took.append(1_000 * (time.perf_counter() - due))

    tasks = []
    for number in range(count):
        due = started + number / ASKS_PER_S
        if due > time.perf_counter() + TICK_S:
            await asyncio.sleep(due - time.perf_counter() - TICK_S / 2)
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    return sorted(took)


def _p99(ordered: list[float]) -> float:
    return ordered[int(0.99 * len(ordered))]


@asynccontextmanager
async def _asking(servers: Servers) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """A ledger as it is deployed, ingest and answers apart, and somebody who asks it."""
    await servers.fresh_streams()
    database = await servers.new_database("ledger")
    await publish_organization(servers)
    bus = Bus(servers.bus_address("gateway"))
    await bus.start()
    asker = Asker(bus, name="gateway")

    async def ask() -> bool:
        answer = await asker.ask(
            "ledger", "authorize", question(), Authorization, org="acme", timeout_s=10
        )
        return answer.allowed

    try:
        for part in ("ingest", "answer"):
            await servers.start_room("ledger", part, database)
        await eventually(ask)
        yield ask
    finally:
        await bus.stop()
        await servers.end_processes()
        await servers.drop_database(database)


async def _reporter(servers: Servers, count: int) -> Process:
    """Somebody who reports usage at `EVENTS_PER_S`, with a processor's time of its own."""
    address = json.dumps(asdict(servers.bus_address("gateway")))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.reporting", address, str(count)),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def bench_steady(servers: Servers, *, asks: int) -> list[Figure]:
    """p50 and p99 at `ASKS_PER_S`: alone, and beside `EVENTS_PER_S` that are ingested."""
    async with bare_answerer(servers) as bare_ask:
        await steadily(bare_ask, asks // 4)
        bare = await steadily(bare_ask, asks)
    async with _asking(servers) as ask:
        await steadily(ask, asks // 4)
        alone = await steadily(ask, asks)
        events = int(EVENTS_PER_S * (asks / ASKS_PER_S + 1))
        reporter = await _reporter(servers, events)
        beside = await steadily(ask, asks)
        assert await reporter.wait() == 0
    baseline = f"bare request and reply, {ASKS_PER_S:,} per s"
    name = f"authorize, {ASKS_PER_S:,} per s"
    both = f"{name} beside {EVENTS_PER_S:,} usage events per s"
    return [
        (f"{name}, p50", "ms", statistics.median(alone), statistics.median(bare), baseline),
        (f"{name}, p99", "ms", _p99(alone), _p99(bare), baseline),
        (f"{both}, p50", "ms", statistics.median(beside), statistics.median(bare), baseline),
        (f"{both}, p99", "ms", _p99(beside), _p99(bare), baseline),
    ]


class _Caller:
    """One kept connection that sends requests it has made before and reads their answers.

    A client library costs more than the answer does; here its time would be counted as ours.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, request: bytes) -> None:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


def _request(method: str, path: str, key: str, body: bytes = b"") -> bytes:
    head = (
        f"{method} /api/v1{path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _questions(key: str, count: int) -> list[bytes]:
    asked = [question() for _ in range(count)]
    return [
        _request("POST", _path(each), key, json.dumps(_fields(each)).encode()) for each in asked
    ]


def _path(asked: Authorize) -> str:
    return f"/runs/{asked.run_id}/authorize"


def _fields(asked: Authorize) -> dict[str, Any]:
    said = asked.model_dump(mode="json", exclude={"run_id"}, exclude_none=True)
    return {"user_id": None, "started_by_user_id": None, **said}


async def _at_once(callers: list[_Caller], requests: list[bytes]) -> tuple[float, list[float]]:
    """Requests per second over all connections, and each one's milliseconds, by size."""
    waiting = iter(requests)
    took: list[float] = []

    async def worker(caller: _Caller) -> None:
        for request in waiting:
            began = time.perf_counter()
            await caller.send(request)
            took.append(1_000 * (time.perf_counter() - began))

    started = time.perf_counter()
    with own_collector_stopped():
        await asyncio.gather(*(worker(caller) for caller in callers))
    return len(requests) / (time.perf_counter() - started), sorted(took)


async def bench_http(servers: Servers, *, asks: int) -> list[Figure]:
    """`authorize` over HTTP with `CONNECTIONS` open, beside a request that asks nobody."""
    await servers.fresh_streams()
    database = await servers.new_database("gateway", "ledger")
    callers: list[_Caller] = []
    gateway: Gateway | None = None
    try:
        process = await servers.start_room("gateway", "http", database)
        for room, part in (("gateway", "relay"), ("ledger", "ingest"), ("ledger", "answer")):
            await servers.start_room(room, part, database)
        gateway = Gateway(process, database)
        key = await _new_channel(gateway, database)
        while len(callers) < CONNECTIONS:
            callers.append(_Caller(*await asyncio.open_connection("127.0.0.1", process.port)))
        nothing = _request("GET", "/me", key)
        await _at_once(callers, _questions(key, asks // 4))
        rate, took = await _at_once(callers, _questions(key, asks))
        bare_rate, bare = await _at_once(callers, [nothing] * asks)
    finally:
        for caller in callers:
            caller.close()
        if gateway is not None:
            await gateway.close()
        await servers.end_processes()
        await servers.drop_database(database)
    name = f"authorize over HTTP, {CONNECTIONS} connections"
    baseline = "who am I, over the same connections"
    return [
        (name, "per s", rate, bare_rate, baseline),
        (f"{name}, p99", "ms", _p99(took), _p99(bare), baseline),
    ]


async def _new_channel(gateway: Gateway, database: RoomDatabase) -> str:
    """A channel's key, once the ledger knows its organization."""
    org = await gateway.new_org(monthly_budget_usd="100000")
    client, made = await gateway.new_channel(org)

    async def is_known() -> bool:
        asked = question()
        answer = await client.post(_path(asked), json=_fields(asked))
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["allowed"])

    await eventually(is_known)
    return str(made["api_key"])
