"""A room takes and reads the next batch beside the one under way: nothing lost, doubled, buried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from contracts.catalog import DURABLES, STREAMS, DurableSpec
from services.host.bootstrap.nats_config import BOOTSTRAP_USER
from services.host.bootstrap.streams import Catalogue
from shared.bus import Bus
from shared.clock import FixedClock
from shared.consume import SUSPECT_DELIVERIES, Batch, Consumer, Delivery
from shared.db import Database
from shared.pull import PULL_BYTES_MAX, Puller
from tests.factories import NOON, Feed, started, usage
from tests.ledger_room import LedgerRoom
from tests.servers import Servers
from tests.waiting import eventually

pytestmark = pytest.mark.integration
NEVER_S = 600
"""An acknowledgement that is waited for so long is not missed by any test."""
SOON_S = 1


class Room:
    """A room's own consumer and pullers, on a real bus and database."""

    def __init__(self, servers: Servers, bus: Bus, database: Database, spec: DurableSpec) -> None:
        self.servers, self.bus, self.database, self.spec = servers, bus, database, spec
        self.handled: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = 0
        self.clock = FixedClock(NOON)
        self._running: list[asyncio.Task[None]] = []

    async def on_batch(self, _: Any, batch: Batch) -> None:
        """Keep what came, batch by batch."""
        gate = self.gate
        self.begun += 1
        await gate.wait()
        self.handled.append([item.event.data.run_id for item in batch.received])

    def pull(self, handler: Any = None) -> tuple[Puller, asyncio.Task[None]]:
        """Begin to hear the durable."""
        consumer = Consumer(
            room="ledger",
            durable=self.spec,
            database=self.database,
            handler=handler or self.on_batch,
            clock=self.clock,
        )
        puller = Puller(self.bus, consumer)
        task = asyncio.create_task(puller.run())
        self._running.append(task)
        return puller, task

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Have the stream keep what a channel says."""
        client = await self.servers.log_in(BOOTSTRAP_USER)
        try:
            for one in deliveries:
                await client.request(one.subject, one.body, timeout=10)
        finally:
            await client.close()

    async def info(self) -> Any:
        """What the server says of the durable."""
        return await self.bus.consumer_info(self.spec)

    async def delivered(self, count: int) -> None:
        """Until so many messages lie here or are handled."""

        async def look() -> bool:
            return bool((await self.info()).delivered.stream_seq >= count)

        await eventually(look)

    async def ids(self, count: int) -> list[str]:
        """What was handled, once it is so many."""

        async def look() -> list[str]:
            return [each for batch in self.handled for each in batch]

        return await eventually(look, lambda seen: len(seen) >= count)

    async def end(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


MakeRoom = Callable[..., Awaitable[Room]]


@pytest.fixture
async def make_room(servers: Servers, room_database: Any) -> AsyncIterator[MakeRoom]:
    """`await make_room(ack_wait_s=…)`: streams made anew, with a durable that waits so long."""
    rooms: list[Room] = []

    async def make(*, ack_wait_s: int = NEVER_S) -> Room:
        durables = tuple(replace(spec, ack_wait_s=ack_wait_s) for spec in DURABLES)
        await servers.fresh_streams(Catalogue(STREAMS, durables))
        made = await room_database("ledger")
        bus = Bus(servers.bus_address("ledger"))
        await bus.start()
        (spec,) = [one for one in durables if (one.room, one.stream) == ("ledger", "CHANNEL")]
        rooms.append(Room(servers, bus, Database(made.url("ledger"), schema="ledger"), spec))
        return rooms[-1]

    yield make
    for room in rooms:
        room.gate.set()
        await room.end()
        await room.bus.stop()
        await room.database.close()
    await servers.fresh_streams()


def starts(*numbers: int, feed: Feed | None = None) -> list[Delivery]:
    feed = feed or Feed()
    return [feed.channel(started(f"r{number}"), event_id=f"e{number}") for number in numbers]


async def test_what_comes_beside_a_batch_is_handled_once_and_in_order(make_room: MakeRoom) -> None:
    room = await make_room()
    await room.publish(starts(*range(3)))
    room.gate.clear()
    room.pull()
    await room.delivered(3)
    for begin in range(3, 300, 99):
        await room.publish(starts(*range(begin, begin + 99)))
        await room.delivered(begin + 99)
    room.gate.set()
    assert await room.ids(300) == [f"r{number}" for number in range(300)]
    # All that came beside the first batch, which had one to three, was gathered into the next.
    assert len(room.handled) <= 4

    async def settled() -> bool:
        info = await room.info()
        return bool(info.num_ack_pending == 0 and info.num_redelivered == 0)

    await eventually(settled)


async def test_a_whole_batch_is_gathered_and_no_more_is_asked_for(make_room: MakeRoom) -> None:
    """What nobody takes would not be kept alive while the batch before is under way."""
    room = await make_room()
    room.spec = replace(room.spec, batch_messages_max=10)
    room.gate.clear()
    await room.publish(starts(0))
    room.pull()
    await room.delivered(1)
    await room.publish(starts(*range(1, 40)))
    await room.delivered(11)
    assert (await room.info()).num_ack_pending == 11
    room.gate.set()
    assert await room.ids(40) == [f"r{number}" for number in range(40)]
    assert max(map(len, room.handled)) <= 10


async def test_a_stop_gives_back_what_was_gathered_while_the_batch_before_ends(
    make_room: MakeRoom,
) -> None:
    room = await make_room()
    await room.publish(starts(0))
    room.gate.clear()
    puller, running = room.pull()
    await eventually(lambda: _is(room.begun == 1))
    await room.publish(starts(*range(1, 21)))
    await room.delivered(21)
    stopping = asyncio.create_task(puller.drain())
    held, room.gate = room.gate, asyncio.Event()
    room.gate.set()
    room.pull()
    # Another process has them although the first is still busy, and long before they are missed.
    assert sorted(await room.ids(20)) == sorted(f"r{number}" for number in range(1, 21))
    assert not stopping.done()
    info = await room.info()
    assert info.delivered.consumer_seq == 41, "each was given back once"
    held.set()
    await stopping
    await running
    assert (await room.ids(21))[20:] == ["r0"]


@asynccontextmanager
async def away(servers: Servers, database: str) -> AsyncIterator[None]:
    """A database that lets nobody in; who is in it is cut."""
    admin = await asyncpg.connect(servers.postgres.superuser_dsn)
    try:
        await admin.execute(f'ALTER DATABASE "{database}" CONNECTION LIMIT 0')
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", database
        )
        yield
    finally:
        await admin.execute(f'ALTER DATABASE "{database}" CONNECTION LIMIT -1')
        await admin.close()


async def test_a_database_that_is_away_longer_than_acknowledgements_wait_harms_nothing(
    make_room: MakeRoom, servers: Servers
) -> None:
    room = await make_room(ack_wait_s=SOON_S)
    books = LedgerRoom(room.database._dsn)
    feed = Feed()
    await books.know(feed)
    now = room.clock.at = datetime.now(UTC)
    reports = [
        feed.channel(usage(f"q{n}", f"r{n % 3}", occurred_at=now), event_id=f"u{n}", at=now)
        for n in range(40)
    ]
    name = room.database._dsn.rsplit("/", 1)[1].split("?")[0]
    room.pull(books.handlers["CHANNEL"])
    async with away(servers, name):
        await room.publish(reports[:20])

        async def missed() -> int:
            return int((await room.info()).num_redelivered)

        # The server took the first for lost and brought some of them again.
        await eventually(missed)
        await room.publish(reports[20:])
        await room.delivered(40)

    async def settled() -> bool:
        info = await room.info()
        return bool(info.num_ack_pending == 0 and info.num_pending == 0)

    await eventually(settled)
    entries = await books.rows("SELECT request_id FROM entry")
    assert sorted(row["request_id"] for row in entries) == sorted(f"q{n}" for n in range(40))
    assert await books.rows("SELECT * FROM dead_letter") == []
    assert await books.rows("SELECT * FROM retry") == []
    await books.close()


async def test_all_that_comes_with_what_may_end_the_process_has_its_chance_of_a_turn(
    make_room: MakeRoom,
) -> None:
    """Handled by what has arrived alone, those behind a culprit would be buried with it."""
    room = await make_room()
    count = 100
    await room.publish([padded(one) for one in starts(*range(count))])
    subscription = await room.bus.jetstream.pull_subscribe_bind(
        room.spec.durable, stream=room.spec.stream
    )
    for _ in range(SUSPECT_DELIVERIES):
        taken = 0
        while taken < count:
            for message in await subscription.fetch(count - taken, timeout=10):
                await message.nak()
                taken += 1
    taken_at_first: list[int] = []

    class Watched(Consumer):
        async def on_messages(self, messages: Sequence[Any]) -> None:
            taken_at_first.append(len(messages))
            await super().on_messages(messages)

    consumer = Watched(
        room="ledger",
        durable=replace(room.spec, batch_messages_max=count),
        database=room.database,
        handler=room.on_batch,
        clock=FixedClock(NOON),
    )
    running = asyncio.create_task(Puller(room.bus, consumer).run())
    seen = await room.ids(count)
    running.cancel()
    assert taken_at_first == [count]
    # Alone, and not as they came.
    assert [len(batch) for batch in room.handled] == [1] * count
    assert seen != sorted(seen, key=lambda one: int(one[1:]))


def padded(delivery: Delivery, size: int = 20_000) -> Delivery:
    return replace(delivery, body=delivery.body + b" " * size)


async def test_more_bytes_than_one_pull_brings_are_no_disturbance(make_room: MakeRoom) -> None:
    room = await make_room()
    size = 200_000
    count = PULL_BYTES_MAX // size + 20
    await room.publish([padded(one, size) for one in starts(*range(count))])
    room.pull()
    assert await room.ids(count) == [f"r{number}" for number in range(count)]


async def _is(condition: bool) -> bool:
    return condition
