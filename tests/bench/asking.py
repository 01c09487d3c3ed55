"""`authorize` over the bus, beside a bare request and reply of the same run."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

from contracts.ledger import Authorization, Authorize
from shared.bus import Bus
from shared.questions import Asker
from tests.bench.ingesting import publish_organization
from tests.servers import ROOT, Servers
from tests.waiting import eventually

ECHO = "rienda.ask.acme.room.gateway.ledger.echo"
NUMBERS = count(1)
ECHO_SOURCE = """
import asyncio, sys, nats, uvloop
async def main():
    url, seed = sys.argv[1:]
    client = await nats.connect(url, nkeys_seed_str=seed, inbox_prefix=b"_INBOX.ledger")
    async def answer(message):
        await client.publish(message.reply, message.data)
    await client.subscribe("rienda.ask.*.*.*.ledger.*", queue="ledger", cb=answer)
    await client.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""


def question() -> Authorize:
    number = next(NUMBERS)
    return Authorize(
        request_id=f"q{number}",
        run_id=f"asked-{number % 50}",
        root_run_id=f"asked-{number % 50}",
        agent_id="coder",
        root_agent_id="coder",
        user_id=None,
        started_by_user_id=None,
        model="claude-opus-4-6",
        provider="anthropic",
    )


async def _latencies(ask, asks: int, at_once: int) -> tuple[list[float], float]:
    waiting = iter(range(asks))
    took: list[float] = []

    async def worker() -> None:
        for _ in waiting:
            started = time.perf_counter()
            await ask()
            took.append(1_000 * (time.perf_counter() - started))

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return took, asks / (time.perf_counter() - started)


async def bench_authorize(
    servers: Servers, *, rounds: int, asks: int
) -> list[tuple[str, str, float, float]]:
    """p50 and p99 one at a time, and answers per second with 64 askers."""
    figures: dict[str, list[tuple[float, float]]] = {"p50": [], "p99": [], "rate": []}
    for round_ in range(rounds + 1):
        measured = await ledger_asking_round(servers, asks)
        bare = await _bare_round(servers, asks)
        if round_:
            for name in figures:
                figures[name].append((measured[name], bare[name]))

    def medians(name: str) -> tuple[float, float]:
        first, second = zip(*figures[name], strict=True)
        return statistics.median(first), statistics.median(second)

    return [
        ("authorize, one at a time, p50", "ms", *medians("p50")),
        ("authorize, one at a time, p99", "ms", *medians("p99")),
        ("authorize, 64 askers", "per s", *medians("rate")),
    ]


async def _figures(ask, asks: int) -> dict[str, float]:
    alone, _ = await _latencies(ask, asks // 3, 1)
    _, rate = await _latencies(ask, asks, 64)
    ordered = sorted(alone)
    return {"p50": statistics.median(alone), "p99": ordered[int(0.99 * len(ordered))], "rate": rate}


async def ledger_asking_round(servers: Servers, asks: int) -> dict[str, float]:
    await servers.fresh_streams()
    database = await servers.new_database("ledger")
    bus = Bus(servers.bus_address("gateway"))
    await bus.start()
    await publish_organization(servers)
    # As it is deployed: pricing never blocks an answer.
    for part in ("ingest", "answer"):
        await servers.start_room("ledger", part, database)
    asker = Asker(bus, name="gateway")

    async def ask() -> bool:
        answer = await asker.ask(
            "ledger", "authorize", question(), Authorization, org="acme", timeout_s=10
        )
        return answer.allowed

    try:
        await eventually(ask)
        return await _figures(ask, asks)
    finally:
        await bus.stop()
        await servers.end_processes()
        await servers.drop_database(database)


async def _bare_round(servers: Servers, asks: int) -> dict[str, float]:
    async with bare_answerer(servers) as ask:
        return await _figures(ask, asks)


@asynccontextmanager
async def bare_answerer(servers: Servers) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A process that answers what it is asked, and how to ask it."""
    address = servers.bus_address("ledger")
    echo = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ECHO_SOURCE,
        address.url,
        address.nkey_seed or "",
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert echo.stdout is not None
    await echo.stdout.readline()
    bus = Bus(servers.bus_address("gateway"))
    await bus.start()
    body = question().model_dump_json().encode()

    async def ask() -> None:
        await bus.client.request(ECHO, body, timeout=10)

    try:
        yield ask
    finally:
        await bus.stop()
        echo.kill()
        await echo.wait()
