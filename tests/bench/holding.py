"""Strict mode: what is held for a request and settled by its report, and how long the hold takes.

One organization, one agent, askers at once, one process that answers and one that ingests, as they
are deployed. A pair is a question that is answered with a hold and the report that settles it; it
counts once its hold is closed. The invariant of strict caps is read from outside meanwhile. Beside
it: as many bare requests, each answered after an insert of its own is committed.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count

import asyncpg

from contracts.catalog import ask_model, find_question
from contracts.channel import Tokens
from contracts.envelope import Actor, message_id
from contracts.ledger import Authorize
from contracts.subjects import question_subject
from contracts.types import CapMode
from shared.bus import Bus
from shared.outbox import Message
from tests.admission_checker import Checker
from tests.bench.asking import ECHO
from tests.bench.ingesting import MODELS
from tests.bench.steady import own_collector_stopped
from tests.factories import Feed, agent, organization, usage
from tests.servers import ROOT, RoomDatabase, Servers
from tests.waiting import eventually

ASKERS = 64
RUNS = 50
LOOK_EVERY_S = 0.5
"""The checker adds up every entry: without a pause it would be most of the load."""
CAP_NANOUSD = 10**15
CONNECTIONS = 8
"""Of the bare answerer; as many as a room has."""
NUMBERS = count(1)
Figure = tuple[str, str, float, float, str]
INSERTING_SOURCE = """
import asyncio, sys, asyncpg, nats, uvloop
async def main():
    url, seed, dsn, connections = sys.argv[1:]
    pool = await asyncpg.create_pool(dsn, ssl=False, min_size=int(connections),
        max_size=int(connections))
    client = await nats.connect(url, nkeys_seed_str=seed, inbox_prefix=b"_INBOX.ledger")
    tasks = set()
    async def respond(message):
        await pool.execute("INSERT INTO public.bare (body) VALUES ($1)", message.data)
        await client.publish(message.reply, message.data)
    async def answer(message):
        task = asyncio.create_task(respond(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await client.subscribe("rienda.ask.*.*.*.ledger.*", queue="ledger", cb=answer)
    await client.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round took: pairs (or bare requests) per second, milliseconds of each answer."""

    rate: float
    took: list[float]

    def percentile(self, share: float) -> float:
        """By size."""
        return sorted(self.took)[int(share * len(self.took))]


@dataclass(frozen=True, slots=True)
class Pair:
    """One request as it is asked for and reported; made before anything is measured."""

    question: bytes
    report: Message


def make_pairs(how_many: int) -> list[Pair]:
    """Requests of varied models, tokens and runs; each costs less than is held for it."""
    chance, feed = random.Random(how_many), Feed()
    kind = find_question("ledger", "authorize")
    actor = Actor(pseudonym="bench", channel_id="c1")
    made = []
    for _ in range(how_many):
        request_id = f"h{next(NUMBERS)}"
        run_id = f"held-{chance.randrange(RUNS)}"
        provider, model = chance.choice(MODELS)
        most = chance.randrange(1_000, 50_000), chance.randrange(100, 4_000)
        asked = Authorize(
            request_id=request_id,
            run_id=run_id,
            root_run_id=run_id,
            agent_id="coder",
            root_agent_id="coder",
            user_id=None,
            started_by_user_id=None,
            model=model,
            provider=provider,
            input_tokens_max=most[0],
            output_tokens_max=most[1],
            cache_write="none",
        )
        frame = ask_model(kind.ask)(data=asked, actor=actor, timeout_ms=10_000)
        used = Tokens(input=chance.randrange(most[0]), output=chance.randrange(most[1]))
        said = usage(
            request_id,
            run_id,
            provider=provider,
            model=model,
            tokens=used,
            occurred_at=datetime.now(UTC),
        )
        report = feed.channel(said, event_id=f"{request_id}/usage")
        identity = message_id(report.subject, "bench", request_id, report.body)
        made.append(
            Pair(
                frame.model_dump_json().encode(),
                Message(report.subject, identity, report.body),
            )
        )
    return made


async def bench_holds(servers: Servers, *, rounds: int, pairs: int) -> list[Figure]:
    """Pairs per second with `ASKERS`, and how long a hold took, beside bare committed inserts."""
    measured: list[Round] = []
    bare: list[Round] = []
    for round_ in range(rounds + 1):
        one, other = await holds_round(servers, pairs), await _bare_round(servers, pairs)
        if round_:
            measured.append(one)
            bare.append(other)

    def median_of(share: float | None) -> tuple[float, float]:
        columns = (
            [one.rate if share is None else one.percentile(share) for one in rounds_]
            for rounds_ in (measured, bare)
        )
        first, second = (statistics.median(column) for column in columns)
        return first, second

    name = f"holds + settlements, {ASKERS} askers"
    baseline = "a bare request, an insert committed before its reply"
    return [
        (name, "per s", *median_of(None), baseline),
        (f"{name}, hold p50", "ms", *median_of(0.5), baseline),
        (f"{name}, hold p99", "ms", *median_of(0.99), baseline),
    ]


async def holds_round(servers: Servers, pairs: int) -> Round:
    """One round against a ledger of its own; fails where a strict cap does not hold."""
    await servers.fresh_streams()
    database = await servers.new_database("ledger")
    bus = Bus(servers.bus_address("gateway"))
    await bus.start()
    subject = question_subject(find_question("ledger", "authorize"), "acme", "room", "gateway")
    try:
        await _publish_strict_organization(bus)
        for part in ("ingest", "answer"):
            await servers.start_room("ledger", part, database)

        async def ask(pair: Pair) -> None:
            reply = await bus.client.request(subject, pair.question, timeout=10)
            assert b'"hold_id":"' in reply.data, reply.data

        async def is_strict() -> bool:
            (probe,) = make_pairs(1)
            reply = await bus.client.request(subject, probe.question, timeout=10)
            if b'"hold_id":"' not in reply.data:
                return False
            await bus.publish(probe.report)
            return True

        await eventually(is_strict)
        async with _looked_at(database) as all_settled:
            await _work(make_pairs(pairs // 4), ask, bus)
            await all_settled()
            made = make_pairs(pairs)
            started = time.perf_counter()
            took = await _work(made, ask, bus)
            await all_settled()
            return Round(pairs / (time.perf_counter() - started), took)
    finally:
        await bus.stop()
        await servers.end_processes()
        await servers.drop_database(database)


async def _publish_strict_organization(bus: Bus) -> None:
    feed = Feed()
    strict = organization(monthly_budget_nanousd=CAP_NANOUSD, cap_mode=CapMode.STRICT)
    for entry in (
        feed.directory(strict, "acme"),
        feed.directory(agent("coder", CAP_NANOUSD), "coder"),
    ):
        identity = message_id(entry.subject, "bench", str(entry.sequence), entry.body)
        await bus.publish(Message(entry.subject, identity, entry.body))


@asynccontextmanager
async def _looked_at(database: RoomDatabase) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Let somebody check the caps from outside; how to wait until nothing is held any more."""
    url = database.url("ledger")
    checker = Checker(url, f"{datetime.now(UTC):%Y-%m}")
    connection = await asyncpg.connect(url, ssl=False)

    async def look() -> None:
        while True:
            await checker.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def all_settled() -> None:
        async def open_holds() -> int:
            open_ = "SELECT count(*) FROM ledger.hold WHERE closed_at IS NULL"
            return int(await connection.fetchval(open_))

        await eventually(open_holds, lambda held: held == 0)

    looking = asyncio.create_task(look())
    try:
        yield all_settled
        assert not looking.done(), looking.exception()
        figures = await checker.look()
        assert {(figure.scope, figure.held, figure.overrun) for figure in figures} == {
            ("organization", 0, 0),
            ("agent", 0, 0),
        }
    finally:
        looking.cancel()
        await connection.close()


async def _work(pairs: list[Pair], ask: Callable[[Pair], Awaitable[None]], bus: Bus) -> list[float]:
    """Ask and report until all is done; the milliseconds of each answer."""
    waiting = iter(pairs)
    took: list[float] = []

    async def worker() -> None:
        for pair in waiting:
            began = time.perf_counter()
            await ask(pair)
            took.append(1_000 * (time.perf_counter() - began))
            await bus.publish(pair.report)

    with own_collector_stopped():
        await asyncio.gather(*(worker() for _ in range(ASKERS)))
    return took


async def _bare_round(servers: Servers, requests: int) -> Round:
    database = await servers.new_database("ledger")
    dsn = database.admin_url.partition("?")[0]
    admin = await asyncpg.connect(dsn, ssl=False)
    await admin.execute("CREATE TABLE public.bare (id bigserial PRIMARY KEY, body bytea)")
    address = servers.bus_address("ledger")
    answerer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", INSERTING_SOURCE, address.url, address.nkey_seed or ""),
        *(dsn, str(CONNECTIONS)),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert answerer.stdout is not None
    await answerer.stdout.readline()
    bus = Bus(servers.bus_address("gateway"))
    await bus.start()
    bodies = [pair.question for pair in make_pairs(requests)]
    took: list[float] = []
    waiting = iter(bodies)

    async def worker() -> None:
        for body in waiting:
            began = time.perf_counter()
            await bus.client.request(ECHO, body, timeout=10)
            took.append(1_000 * (time.perf_counter() - began))

    try:
        await bus.client.request(ECHO, bodies[0], timeout=10)
        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(ASKERS)))
        return Round(requests / (time.perf_counter() - started), took)
    finally:
        await bus.stop()
        answerer.kill()
        await answerer.wait()
        await admin.close()
        await servers.drop_database(database)
