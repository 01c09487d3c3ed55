"""The reaper and what is said of runs, in real processes over a real bus."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from contracts.catalog import DURABLES
from contracts.envelope import message_id
from contracts.types import Surface
from shared.bus import Bus, BusUnavailable
from shared.outbox import Message
from shared.watermark import reached, read_position, read_watermark
from tests.factories import (
    Feed,
    channel,
    finished,
    heartbeat,
    organization,
    parked,
    started,
    usage,
)
from tests.waiting import eventually

pytestmark = pytest.mark.integration
SOON = {"STALE_RUN_REAPED_AFTER_SECONDS": "2", "RIENDA_LEDGER_REAP_EVERY_S": "0.2"}


class Bench:
    """A ledger's database, and a bus to speak on as a channel would over HTTP."""

    def __init__(self, bus: Bus, database) -> None:
        self.bus = bus
        self.database = database
        self.feed = Feed()

    async def say(self, *said) -> None:
        await self.bus.publish_all(
            [
                Message(
                    one.subject, message_id(one.subject, "x", str(one.sequence), one.body), one.body
                )
                for one in map(self.feed.channel, said)
            ]
        )

    async def know(self) -> None:
        entries = [(organization(), "acme"), (channel("c1"), "c1")]
        made = [self.feed.directory(data, entity_id) for data, entity_id in entries]
        await self.bus.publish_all(
            [
                Message(one.subject, message_id(one.subject, "x", "1", one.body), one.body)
                for one in made
            ]
        )

    async def rows(self, statement: str, *values):
        connection = await asyncpg.connect(self.database.url("ledger"), ssl=False)
        try:
            await connection.execute("SET search_path TO ledger")
            return await connection.fetch(statement, *values)
        finally:
            await connection.close()

    async def statuses(self) -> dict[str, str]:
        return {
            row["run_id"]: row["status"]
            for row in await self.rows("SELECT run_id, status FROM run")
        }

    async def told(self, run_id: str) -> list[dict]:
        rows = await self.rows(
            "SELECT body FROM outbox WHERE subject LIKE '%run_changed%' ORDER BY id"
        )
        events = [json.loads(bytes(row["body"]))["data"] for row in rows]
        return [data for data in events if data["run_id"] == run_id]


@pytest.fixture
async def bench(servers, fresh_streams, room_database):
    bus = Bus(servers.bus_address("gateway"))
    await bus.start()
    made = Bench(bus, await room_database("ledger"))
    await made.know()
    yield made
    await bus.stop()


def now() -> datetime:
    return datetime.now(UTC)


async def test_a_dead_run_is_failed_reopened_by_a_beat_and_ended_by_its_end(
    bench: Bench, rienda_process
):
    await rienda_process("ledger", "ingest", bench.database, environment=SOON)
    await bench.say(
        started("dead", started_at=now()),
        started("call", started_at=now(), surface=Surface.VOICE),
        started("waits", started_at=now()),
        parked("waits", now()),
    )
    await eventually(bench.statuses, lambda found: found.get("dead") == "failed")
    await bench.say(heartbeat("dead", now()))
    await eventually(bench.statuses, lambda found: found["dead"] == "running")
    await eventually(bench.statuses, lambda found: found["dead"] == "failed")
    await bench.say(finished("dead", ended_at=now()))
    found = await eventually(bench.statuses, lambda found: found["dead"] == "completed")
    assert (found["call"], found["waits"]) == ("running", "awaiting_approval")
    reasons = [data["reason"] for data in await bench.told("dead")]
    assert reasons == ["started", "reaped", "reopened", "reaped", "finished"]


async def test_a_run_that_beats_lives_through_steps_of_the_rooms_clock(
    bench: Bench, rienda_process, tmp_path
):
    clock = tmp_path / "clock"
    settings = SOON | {"RIENDA_LEDGER_TEST_CLOCK": str(clock)}
    await rienda_process("ledger", "ingest", bench.database, environment=settings)
    await bench.say(started("dead", started_at=now()), started("alive", started_at=now()))
    await eventually(bench.statuses, lambda found: len(found) == 2)
    steps = iter((3_600, -3_600, 86_400, 0))

    async def beat() -> dict[str, str]:
        await bench.say(heartbeat("alive", now()))
        if (step := next(steps, None)) is not None:
            clock.write_text(str(step))
        await asyncio.sleep(0.1)
        return await bench.statuses()

    await eventually(beat, lambda found: found["dead"] == "failed")
    assert [data["reason"] for data in await bench.told("alive")] == ["started"]


async def test_two_processes_fail_a_run_once_and_say_its_totals_once(bench: Bench, rienda_process):
    for _ in range(2):
        await rienda_process("ledger", "ingest", bench.database, environment=SOON)
    runs = [f"r{number}" for number in range(20)]
    await bench.say(*(started(run_id, started_at=now()) for run_id in runs))
    await eventually(bench.statuses, lambda found: len(found) == 20)
    await bench.say(
        *(usage(f"q{n}-{run_id}", run_id, occurred_at=now()) for run_id in runs for n in range(3))
    )
    await eventually(bench.statuses, lambda found: set(found.values()) == {"failed"})
    verdicts = await bench.rows("SELECT run_id FROM run_transition WHERE kind = 'reaped'")
    assert sorted(row["run_id"] for row in verdicts) == sorted(runs)
    for run_id in runs:
        told = await bench.told(run_id)
        revisions = [data["run_revision"] for data in told]
        assert revisions == sorted(set(revisions))
        assert told[-1]["totals"]["request_count"] == 3


async def test_what_was_due_when_the_process_was_killed_is_said_by_the_next(
    bench: Bench, rienda_process
):
    first = await rienda_process("ledger", "ingest", bench.database)
    await bench.say(started("r", started_at=now()))
    await eventually(lambda: bench.told("r"))
    await bench.say(usage("q1", "r", occurred_at=now()))

    async def marked() -> bool:
        return bool(await bench.rows("SELECT 1 FROM run WHERE say_due_at IS NOT NULL"))

    await eventually(marked)
    await first.kill()
    assert [data["reason"] for data in await bench.told("r")] == ["started"]
    await rienda_process("ledger", "ingest", bench.database)
    told = await eventually(lambda: bench.told("r"), lambda told: len(told) == 2)
    assert (told[1]["reason"], told[1]["totals"]["request_count"]) == ("totals", 1)


async def test_a_ledger_that_is_behind_fails_nobody_until_it_has_caught_up(
    bench: Bench, rienda_process
):
    """The run's end waits on the bus while nobody handles it: silence is no proof."""
    first = await rienda_process("ledger", "ingest", bench.database, environment=SOON)
    await bench.say(started("r", started_at=now()))
    await eventually(bench.statuses, lambda found: "r" in found)
    await first.kill()
    await bench.say(finished("r", ended_at=now()))
    old = now() - timedelta(minutes=10)
    await bench.rows("UPDATE run SET heard_at = $1", old)
    await rienda_process("ledger", "ingest", bench.database, environment=SOON)
    await eventually(bench.statuses, lambda found: found["r"] == "completed")
    assert [data["reason"] for data in await bench.told("r")] == ["started", "finished"]


async def test_the_setting_0_fails_nobody_and_the_watermark_is_kept(
    bench: Bench, rienda_process, servers
):
    settings = SOON | {"STALE_RUN_REAPED_AFTER_SECONDS": "0"}
    await rienda_process("ledger", "ingest", bench.database, environment=settings)
    await bench.say(started("r", started_at=now()))
    await eventually(bench.statuses, lambda found: "r" in found)
    since = now() + timedelta(seconds=4)

    async def watermark():
        return await bench.rows("SELECT stream, handled_until FROM watermark ORDER BY stream")

    rows = await eventually(
        watermark, lambda rows: bool(rows) and all(row["handled_until"] > since for row in rows)
    )
    assert [row["stream"] for row in rows] == ["CHANNEL", "PULSE"]
    assert await bench.statuses() == {"r": "running"}
    environment = servers.environment("ledger", bench.database, http_port=1)
    for options in ([], ["--json"]):
        shown = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "services.ledger", "watermark", *options],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "CHANNEL" in shown.stdout
        assert "PULSE" in shown.stdout


async def test_a_connection_that_was_lost_is_counted(bench: Bench, servers):
    """What the reaper's vigil begins anew by."""
    assert bench.bus.connections == 0
    await servers.kill_nats()

    async def connections() -> int:
        return bench.bus.connections

    await eventually(connections)


async def test_the_watermark_is_known_once_everything_is_handled(
    bench: Bench, servers, rienda_process
):
    bus = Bus(servers.bus_address("ledger"))
    await bus.start()
    (spec,) = (one for one in DURABLES if (one.room, one.stream) == ("ledger", "CHANNEL"))
    try:
        await bench.say(*(started(f"r{number}", started_at=now()) for number in range(30)))
        behind = await read_position(bus, spec)
        assert (behind.pending, reached(None, behind)) == (30, None)
        await rienda_process("ledger", "ingest", bench.database)
        mark = await read_watermark(bus, spec)
        assert mark is not None
        assert mark.at > behind.at
        (row,) = await bench.rows(
            "SELECT (SELECT count(*) FROM run) + (SELECT count(*) FROM retry) AS taken"
        )
        assert row["taken"] == 30, "in the books, or waiting for its organization to be known"
        missing = replace(spec, durable="nobody")
        with pytest.raises(BusUnavailable):
            await read_position(bus, missing)
    finally:
        await bus.stop()
