"""Usage events from the stream to committed entries, beside the barest pipe of the same kind."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime

import asyncpg

from contracts.catalog import DURABLES
from contracts.channel import Tokens
from contracts.envelope import message_id
from shared.bus import Bus
from shared.outbox import Message
from tests.factories import Feed, organization, usage
from tests.servers import Servers
from tests.waiting import eventually

MODELS = (("anthropic", "claude-opus-4-6"), ("openai", "gpt-5"), ("google", "gemini-2.5-pro"))
RUNS = 500
CHUNK = 2_000


def messages(count: int, seed: int) -> list[Message]:
    chance = random.Random(seed)
    feed = Feed()
    made = []
    for number in range(count):
        provider, model = chance.choice(MODELS)
        delivery = feed.channel(
            usage(
                f"q{seed}-{number}",
                f"r{chance.randrange(RUNS)}",
                provider=provider,
                model=model,
                tokens=Tokens(input=chance.randrange(50_000), output=chance.randrange(4_000)),
                # Of today: older ones would need a channel with the right `backfill`.
                occurred_at=datetime.now(UTC),
            ),
            event_id=f"e{seed}-{number}",
        )
        made.append(
            Message(
                delivery.subject,
                message_id(delivery.subject, "bench", str(number), delivery.body),
                delivery.body,
            )
        )
    return made


async def _publish(servers: Servers, count: int, seed: int) -> None:
    bus = Bus(servers.bus_address("gateway"))
    await bus.start()
    try:
        made = messages(count, seed)
        for start in range(0, count, CHUNK):
            await bus.publish_all(made[start : start + CHUNK])
    finally:
        await bus.stop()


async def bench_ingest(servers: Servers, *, rounds: int, events: int) -> list[tuple[float, float]]:
    """Events per second: the ledger's own consumer, and the bare pipe; one pair per round."""
    pairs = []
    for round_ in range(rounds + 1):
        measured = await ledger_ingest_round(servers, events, seed=2 * round_ + 1)
        bare = await _bare_round(servers, events, seed=2 * round_ + 2)
        if round_:
            pairs.append((measured, bare))
    return pairs


async def ledger_ingest_round(servers: Servers, events: int, seed: int) -> float:
    """One ingest process, as in a deployment; from its first committed batch to the last."""
    await servers.fresh_streams()
    database = await servers.new_database("ledger")
    await _publish(servers, events, seed)
    await publish_organization(servers)
    admin = await asyncpg.connect(database.admin_url.partition("?")[0], ssl=False)

    async def entered() -> int:
        return int(await admin.fetchval("SELECT count(*) FROM ledger.request"))

    process = await servers.start_room("ledger", "ingest", database)
    try:
        first = await eventually(entered, bool)
        started = time.perf_counter()
        await eventually(entered, lambda count: count >= events)
        return (events - first) / (time.perf_counter() - started)
    finally:
        await process.kill()
        await admin.close()
        await servers.drop_database(database)


async def publish_organization(servers: Servers) -> None:
    """Let every ledger know one organization."""
    bus = Bus(servers.bus_address("gateway"))
    await bus.start()
    entry = Feed().directory(organization(), "acme")
    identity = message_id(entry.subject, "bench", "1", entry.body)
    try:
        await bus.publish(Message(entry.subject, identity, entry.body))
    finally:
        await bus.stop()


async def _bare_round(servers: Servers, events: int, seed: int) -> float:
    await servers.fresh_streams()
    database = await servers.new_database("ledger")
    await _publish(servers, events, seed)
    spec = next(spec for spec in DURABLES if spec.stream == "CHANNEL")
    bus = Bus(servers.bus_address("ledger"))
    await bus.start()
    connection = await asyncpg.connect(database.admin_url.partition("?")[0], ssl=False)
    await connection.execute("CREATE TABLE bare (sequence bigint PRIMARY KEY, body bytea)")
    subscription = await bus.jetstream.pull_subscribe_bind(
        durable=spec.durable, stream=spec.stream, inbox_prefix=f"{bus.inbox_prefix}.".encode()
    )
    started = time.perf_counter()
    done = 0
    try:
        while done < events:
            fetched = await subscription.fetch(spec.batch_messages_max, timeout=1)
            await connection.execute(
                "INSERT INTO bare SELECT * FROM unnest($1::bigint[], $2::bytea[])",
                [message.metadata.sequence.stream for message in fetched],
                [message.data for message in fetched],
            )
            for message in fetched:
                await message.ack()
            done += len(fetched)
        return events / (time.perf_counter() - started)
    finally:
        await connection.close()
        await bus.stop()
        await servers.drop_database(database)
