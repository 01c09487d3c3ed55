"""Batches, refusals, retries and dead letters: neighbours go on, nothing is lost."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from contracts.catalog import DURABLES
from contracts.errors import Invalid, Retryable
from shared import consume, failures
from shared.clock import FixedClock
from shared.consume import DELIVERIES_MAX, SUSPECT_DELIVERIES, Consumer, Delivery
from shared.failures import TRIES_MAX, retry_delay
from tests.factories import NOON, Feed, started

pytestmark = pytest.mark.integration
CHANNEL = next(durable for durable in DURABLES if durable.stream == "CHANNEL")


class Recorder:
    """A handler that keeps what it committed and fails where a test wants it to."""

    def __init__(self) -> None:
        self.poison: dict[str, Exception] = {}
        self.refused: set[str] = set()
        self.postponed: set[str] = set()
        self.calls = 0

    async def __call__(self, connection, batch) -> None:
        self.calls += 1
        for item in batch.received:
            run_id = item.event.data.run_id
            if run_id in self.poison:
                raise self.poison[run_id]
            if run_id in self.refused:
                batch.refuse(item, Invalid("no", reason="tested"))
            elif run_id in self.postponed:
                batch.postpone(item, Retryable("later", reason="early"))
            else:
                await connection.execute(
                    "INSERT INTO request (org, request_id, claims) VALUES ('t', $1, '[]') "
                    "ON CONFLICT DO NOTHING",
                    run_id,
                )


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def clock():
    return FixedClock(NOON)


@pytest.fixture
def consumer(database, recorder, clock):
    return Consumer(
        room="ledger", durable=CHANNEL, database=database, handler=recorder, clock=clock
    )


async def handled(database) -> set[str]:
    async with database.transaction() as connection:
        rows = await connection.fetch("SELECT request_id FROM request WHERE org = 't'")
    return {row["request_id"] for row in rows}


async def rows_of(database, table: str):
    async with database.transaction() as connection:
        return await connection.fetch(f"SELECT * FROM {table} ORDER BY stream_sequence")


def deliveries(*run_ids: str) -> list[Delivery]:
    feed = Feed()
    return [feed.channel(started(run_id)) for run_id in run_ids]


async def test_a_message_that_cannot_be_read_is_dead_and_its_neighbours_go_on(consumer, database):
    good = deliveries("r1", "r2")
    bad = [
        Delivery(good[0].subject, b"\xff\x00", "CHANNEL", 11),
        Delivery(good[0].subject, good[0].body.replace(b"acme", b"beta"), "CHANNEL", 12),
        Delivery(good[0].subject.replace("run_started", "nothing"), b"{}", "CHANNEL", 13),
        Delivery("rienda.event.acme.channel", b"{}", "CHANNEL", 14),
        Delivery(good[0].subject, good[0].body.replace(b'"r1"', b'"r\\u0000"'), "CHANNEL", 15),
        Delivery(good[0].subject, b'"' + b"x" * 300_000 + b'"', "CHANNEL", 16),
    ]
    await consumer.handle([good[0], *bad, good[1]])
    assert await handled(database) == {"r1", "r2"}
    dead = await rows_of(database, "dead_letter")
    assert [row["reason"] for row in dead] == [
        "not_json",
        "wrong_organization",
        "unknown_event",
        "unknown_subject",
        "nul_character",
        "oversized",
    ]
    assert [bytes(row["body"]) for row in dead] == [item.body for item in bad]
    async with database.transaction() as connection:
        copies = await connection.fetchval(
            "SELECT count(*) FROM outbox WHERE subject = 'rienda.dead.ledger'"
        )
    assert copies == len(bad)


async def test_a_repeated_delivery_of_a_dead_letter_adds_none(consumer, database):
    bad = Delivery("rienda.event.acme.channel.c1.run_started.v1", b"no", "CHANNEL", 1)
    await consumer.handle([bad])
    await consumer.handle([bad])
    assert len(await rows_of(database, "dead_letter")) == 1


async def test_a_poisoned_batch_is_split_until_only_the_poison_waits(consumer, recorder, database):
    recorder.poison["r5"] = ZeroDivisionError()
    await consumer.handle(deliveries(*(f"r{number}" for number in range(16))))
    assert await handled(database) == {f"r{number}" for number in range(16)} - {"r5"}
    (waiting,) = await rows_of(database, "retry")
    assert (waiting["reason"], waiting["tries"]) == ("ZeroDivisionError", 1)


async def test_what_is_refused_by_a_rule_is_no_failure_of_the_batch(consumer, recorder, database):
    recorder.refused = {"r1"}
    await consumer.handle(deliveries("r0", "r1", "r2"))
    assert recorder.calls == 1
    assert await handled(database) == {"r0", "r2"}
    assert [row["reason"] for row in await rows_of(database, "dead_letter")] == ["tested"]


async def test_a_message_that_came_early_is_handled_when_its_time_has_come(
    consumer, recorder, database, clock
):
    recorder.postponed = {"r1"}
    await consumer.handle(deliveries("r1"))
    assert await consumer.retry_due() == 0
    clock.at += retry_delay(0)
    assert await consumer.retry_due() == 1
    assert len(await rows_of(database, "retry")) == 1
    recorder.postponed = set()
    clock.at += retry_delay(1)
    assert await consumer.retry_due() == 1
    assert await handled(database) == {"r1"}
    assert await rows_of(database, "retry") == []


async def test_after_the_last_try_a_message_is_dead(consumer, recorder, database, clock):
    recorder.poison["r1"] = Retryable("never", reason="never")
    await consumer.handle(deliveries("r1"))
    for _ in range(TRIES_MAX):
        clock.at += timedelta(hours=1)
        await consumer.retry_due()
    assert await rows_of(database, "retry") == []
    (dead,) = await rows_of(database, "dead_letter")
    assert (dead["reason"], dead["tries"]) == ("tries_exhausted", TRIES_MAX)


async def test_an_organization_over_its_quota_of_waiting_messages_leaves_room_for_others(
    consumer, recorder, database, monkeypatch
):
    monkeypatch.setattr(failures, "RETRY_ROWS_PER_ORG_MAX", 2)
    recorder.postponed = {"r0", "r1", "r2", "other"}
    feed = Feed()
    mine = [feed.channel(started(f"r{number}")) for number in range(3)]
    await consumer.handle([*mine, feed.channel(started("other"), org="beta")])
    assert len(await rows_of(database, "retry")) == 3
    assert [row["reason"] for row in await rows_of(database, "dead_letter")] == ["retry_quota"]


def test_delays_grow_to_a_limit():
    delays = [retry_delay(tries) for tries in range(20)]
    assert delays == sorted(delays)
    assert delays[0] == timedelta(seconds=1)
    assert delays[-1] == timedelta(minutes=10)


class Message:
    """A message as the client hands it over, with as many deliveries as a test wants."""

    def __init__(self, delivery: Delivery, deliveries: int) -> None:
        self.subject, self.data = delivery.subject, delivery.body
        self.metadata = SimpleNamespace(
            stream=delivery.stream,
            sequence=SimpleNamespace(stream=delivery.sequence),
            num_delivered=deliveries,
            timestamp=NOON,
        )
        self.acknowledged = False

    @property
    def is_acked(self) -> bool:
        return self.acknowledged

    async def ack(self) -> None:
        self.acknowledged = True

    async def in_progress(self) -> None:
        pass


class Killed(BaseException):
    """Stands for the end of the process."""


async def test_a_message_that_ends_the_process_is_isolated_and_then_buried(database, clock):
    """Its neighbours have their effect long before; the culprit becomes a dead letter."""
    handled_ids = []

    async def deadly(connection, batch) -> None:
        for item in batch.received:
            if item.event.data.run_id == "r1":
                raise Killed
        handled_ids.extend(item.event.data.run_id for item in batch.received)

    consumer = Consumer(
        room="ledger", durable=CHANNEL, database=database, handler=deadly, clock=clock
    )
    waiting = deliveries("r0", "r1", "r2")
    deaths = 0
    for count in range(1, DELIVERIES_MAX + 10):
        messages = [Message(delivery, count) for delivery in waiting]
        try:
            await consumer.on_messages(messages)
        except Killed:
            deaths += 1
        left = [m.metadata.sequence.stream for m in messages if not m.acknowledged]
        waiting = [delivery for delivery in waiting if delivery.sequence in left]
        if not waiting:
            break
    assert deaths == DELIVERIES_MAX
    assert sorted(handled_ids) == ["r0", "r2"]
    (dead,) = await rows_of(database, "dead_letter")
    assert dead["reason"] == "deliveries_exhausted"


async def test_a_message_that_comes_beside_itself_is_handled_once(consumer, recorder, database):
    """Missed by the server while its batch was held, it was delivered again into the same batch."""
    recorder.refused = {"r1"}
    (one, other) = deliveries("r0", "r1")
    messages = [Message(one, 1), Message(other, 1), Message(one, 2), Message(other, 2)]
    await consumer.on_messages(messages)
    assert recorder.calls == 1
    assert all(message.acknowledged for message in messages)
    assert len(await rows_of(database, "dead_letter")) == 1


async def test_reading_ahead_that_fails_leaves_the_message_to_its_own_handling(
    consumer, recorder, database, monkeypatch
):
    """A bug in reading costs the message a place among retries, not the room its process."""
    (good, bad) = deliveries("r0", "r1")

    def read_event(subject, body):
        if body == bad.body:
            raise RecursionError
        return real(subject, body)

    real = consume.read_event
    monkeypatch.setattr(consume, "read_event", read_event)
    messages = [Message(good, 1), Message(bad, 1)]
    consumer.read_ahead(messages)
    await consumer.on_messages(messages)
    assert await handled(database) == {"r0"}
    (waiting,) = await rows_of(database, "retry")
    assert (waiting["reason"], waiting["stream_sequence"]) == ("RecursionError", bad.sequence)
    assert all(message.acknowledged for message in messages)


async def test_what_may_end_the_process_is_not_touched_ahead_of_its_turn(
    consumer, database, monkeypatch
):
    """Whoever reads it may die: it would never come to be buried."""
    (culprit,) = deliveries("r1")

    def read_event(subject, body):
        raise Killed

    monkeypatch.setattr(consume, "read_event", read_event)
    consumer.read_ahead([Message(culprit, SUSPECT_DELIVERIES + 1)])
    buried = [Message(culprit, DELIVERIES_MAX + 1)]
    consumer.read_ahead(buried)
    await consumer.on_messages(buried)
    assert [row["reason"] for row in await rows_of(database, "dead_letter")] == [
        "deliveries_exhausted"
    ]


async def test_what_was_read_ahead_is_not_kept(consumer, recorder):
    recorder.refused = {"r2"}
    feed = Feed()
    for count in (1, SUSPECT_DELIVERIES + 1, DELIVERIES_MAX + 1):
        messages = [Message(feed.channel(started(f"r{n}")), count) for n in range(5)]
        consumer.read_ahead(messages)
        await consumer.on_messages(messages)
    assert consumer._read == {}
