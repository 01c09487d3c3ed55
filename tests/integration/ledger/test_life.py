"""The life of a run on a real database: parked, resumed, failed for its silence, reopened."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest

from contracts.types import RunStatus, Surface
from services.ledger.domain.life import REAPED_SENTENCE
from services.ledger.handlers.reaping import REAP_ROWS_MAX
from services.ledger.handlers.saying import Change, say
from services.ledger.store import runs
from shared.outbox import derived_id
from tests.factories import (
    NOON,
    Feed,
    finished,
    heartbeat,
    minutes,
    parked,
    resumed,
    started,
    usage,
)
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ONE_REQUEST = 7_500_000
THRESHOLD = timedelta(seconds=120)


async def hear(room: LedgerRoom, feed: Feed, *said, at=NOON) -> None:
    """Handle what channel c1 said, as its stream stored it at that time."""
    for one in said:
        await room.hear([feed.channel(one, stored_at=at)])


async def status(room: LedgerRoom, run_id: str = "r") -> str:
    return (await room.run(run_id)).status.value


async def reasons(room: LedgerRoom) -> list[str]:
    return [one.reason for one in await room.said()]


async def test_a_run_waits_for_people_and_goes_on(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(room, feed, started("r"), usage("q1", "r"), parked("r", NOON + minutes(2)))
    waiting = await room.run("r")
    assert (waiting.status, waiting.parked_at) == ("awaiting_approval", NOON + minutes(2))
    assert [run.run_id for run in (await room.runs(statuses=["awaiting_approval"])).items] == ["r"]
    room.clock.at = NOON + minutes(210)
    later = NOON + minutes(201)
    await hear(room, feed, resumed("r", NOON + minutes(200)), usage("q2", "r"), at=later)
    going = await room.run("r")
    assert (going.status, going.parked_at, going.started_at) == ("running", None, NOON)
    await hear(room, feed, finished("r", ended_at=later), at=later)
    over = await room.run("r")
    assert (over.status, over.ended_at) == ("completed", later)
    assert over.totals.cost_nanousd == 2 * ONE_REQUEST
    said = await room.said()
    assert [(one.reason, one.previous, one.status.value) for one in said] == [
        ("started", None, "running"),
        ("parked", "running", "awaiting_approval"),
        ("resumed", "awaiting_approval", "running"),
        ("finished", "running", "completed"),
    ]
    assert [one.run_revision for one in said] == [1, 2, 3, 4]


async def test_a_park_that_comes_after_its_resume_changes_nothing(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(room, feed, started("r"), resumed("r", NOON + minutes(5)))
    await hear(room, feed, parked("r", NOON + minutes(2)))
    assert await status(room) == "running"
    kept = await room.rows("SELECT kind, at FROM run_transition ORDER BY at")
    assert [tuple(row) for row in kept] == [
        ("parked", NOON + minutes(2)),
        ("resumed", NOON + minutes(5)),
    ]


async def test_parks_of_another_channels_run_are_refused(room: LedgerRoom, feed: Feed):
    await room.know(feed, channels=("c1", "c2"))
    await hear(room, feed, started("r"))
    foreign = [parked("r", NOON), resumed("r", NOON)]
    await room.hear([feed.channel(said, channel_id="c2") for said in foreign])
    dead = await room.rows("SELECT reason FROM dead_letter")
    assert [row["reason"] for row in dead] == ["run_of_other_channel"] * 2
    assert await status(room) == "running"
    assert await room.rows("SELECT * FROM run_transition") == []


async def test_a_silent_run_is_failed_and_keeps_its_spend(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(room, feed, started("r"), usage("q1", "r"), at=NOON + minutes(1))
    assert await room.reaper.sweep(NOON + minutes(3), THRESHOLD) == 0, "not a moment too early"
    assert await room.reaper.sweep(NOON + minutes(3.01), THRESHOLD) == 1
    run = await room.run("r")
    assert (run.status, run.error, run.reaped_at) == ("failed", REAPED_SENTENCE, room.clock.at)
    assert run.ended_at == NOON + minutes(1), "its last sign of life"
    assert run.totals.cost_nanousd == (await room.spend()).cost_nanousd == ONE_REQUEST
    (*_, last) = await room.said()
    assert (last.reason, last.status, last.previous) == ("reaped", "failed", "running")
    assert (last.error, last.totals.cost_nanousd) == (REAPED_SENTENCE, ONE_REQUEST)
    (fact,) = await room.rows("SELECT * FROM run_transition")
    assert (fact["kind"], fact["sign_at"]) == ("reaped", NOON + minutes(1))
    assert fact["watermark_at"] == NOON + minutes(3.01)
    assert await room.reaper.sweep(NOON + minutes(9), THRESHOLD) == 0, "once is enough"


async def test_a_verdict_can_be_added_and_never_changed(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(room, feed, started("r"), parked("r", NOON))
    for change in ("UPDATE run_transition SET kind = 'resumed'", "DELETE FROM run_transition"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await room.rows(change)


async def test_a_sign_of_life_after_the_verdict_reopens(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(room, feed, started("r"))
    await room.reaper.sweep(NOON + minutes(5), THRESHOLD)
    await hear(room, feed, heartbeat("r", NOON), at=NOON + minutes(6))
    assert await status(room) == "failed", "that sign was known"
    await hear(room, feed, heartbeat("r", NOON + minutes(6)), at=NOON + minutes(6))
    run = await room.run("r")
    assert (run.status, run.error, run.ended_at, run.reaped_at) == ("running", None, None, None)
    assert await room.reaper.sweep(NOON + minutes(7), THRESHOLD) == 0
    assert await room.reaper.sweep(NOON + minutes(9), THRESHOLD) == 1
    assert await reasons(room) == ["started", "reaped", "reopened", "reaped"]


@pytest.mark.parametrize("ended", [NOON - minutes(1), NOON, NOON + minutes(30)])
async def test_a_real_end_replaces_a_verdict_whatever_its_time(room: LedgerRoom, feed: Feed, ended):
    await room.know(feed)
    await hear(room, feed, started("r", started_at=NOON - minutes(2)), heartbeat("r"))
    await room.reaper.sweep(NOON + minutes(5), THRESHOLD)
    await hear(room, feed, finished("r", ended_at=ended), at=max(ended, NOON + minutes(6)))
    run = await room.run("r")
    assert (run.status, run.error, run.ended_at) == ("completed", None, ended)
    assert await room.reaper.sweep(NOON + minutes(60), THRESHOLD) == 0
    assert await reasons(room) == ["started", "reaped", "finished"]


async def test_who_is_never_reaped(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(
        room,
        feed,
        started("call", surface=Surface.VOICE),
        started("waits"),
        parked("waits", NOON),
        started("over"),
        finished("over", ended_at=NOON),
        started("root"),
        started("child", root_run_id="root", parent_run_id="root"),
    )
    await hear(room, feed, heartbeat("root", NOON + minutes(5)), at=NOON + minutes(5))
    assert await room.reaper.sweep(NOON + minutes(6), THRESHOLD) == 0
    shown = {run.run_id: run.status for run in (await room.runs(include_delegations=True)).items}
    assert shown == {
        "call": "running",
        "waits": "awaiting_approval",
        "over": "completed",
        "root": "running",
        "child": "running",
    }


async def test_a_delegate_that_works_keeps_its_root_alive(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    child = started("child", root_run_id="root", parent_run_id="root")
    await hear(room, feed, started("root"), child)
    late = usage("q1", "child", occurred_at=NOON + minutes(5))
    await hear(room, feed, late, at=NOON + minutes(5))
    assert await room.reaper.sweep(NOON + minutes(6), THRESHOLD) == 0
    assert await room.reaper.sweep(NOON + minutes(8), THRESHOLD) == 1
    await hear(room, feed, heartbeat("child", NOON + minutes(9)), at=NOON + minutes(9))
    assert await status(room, "root") == "running"


async def test_a_run_that_went_on_ages_from_then(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(room, feed, started("r"), parked("r", NOON))
    days = timedelta(days=3)
    room.clock.at += days
    await hear(room, feed, resumed("r", NOON + days), at=NOON + days)
    assert await room.reaper.sweep(NOON + days + minutes(1), THRESHOLD) == 0
    assert await room.reaper.sweep(NOON + days + minutes(3), THRESHOLD) == 1


async def test_a_publisher_whose_clock_is_slow_is_not_taken_for_dead(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    slow = minutes(60)
    await hear(room, feed, started("r", started_at=NOON - slow))
    await hear(room, feed, heartbeat("r", NOON + minutes(4) - slow), at=NOON + minutes(4))
    assert await room.reaper.sweep(NOON + minutes(5), THRESHOLD) == 0
    assert await room.reaper.sweep(NOON + minutes(7), THRESHOLD) == 1


async def test_a_run_without_a_start_follows_the_same_rule(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(room, feed, usage("q1", "r"), at=NOON + minutes(1))
    assert await room.reaper.sweep(NOON + minutes(5), THRESHOLD) == 1
    run = await room.run("r")
    assert (run.status, run.provisional, run.totals.cost_nanousd) == ("failed", True, ONE_REQUEST)
    # Its start says that it was delegated: the verdict was on what it seemed to be.
    await hear(room, feed, started("r", root_run_id="root", parent_run_id="root"))
    assert await status(room) == "running"


async def test_an_organization_whose_messages_wait_is_left_alone(room: LedgerRoom, feed: Feed):
    await room.know(feed, "acme", "beta")
    for org in ("acme", "beta"):
        await room.hear([feed.channel(started("r"), org=org, stored_at=NOON)])
    await room.rows(
        "INSERT INTO retry (org, stream, stream_sequence, subject, body, tries, reason, next_at, "
        "created_at, stored_at) VALUES ('acme', 'CHANNEL', 1, 's', 'b', 1, 'x', $1, $1, $1)",
        NOON,
    )
    assert await room.reaper.sweep(NOON + minutes(5), THRESHOLD) == 1
    assert (await room.run("r", "acme")).status == "running"
    assert (await room.run("r", "beta")).status == "failed"


async def test_two_reapers_and_a_batch_at_once_fail_each_run_once(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    count = REAP_ROWS_MAX + 50
    await room.hear([feed.channel(started(f"r{n}"), stored_at=NOON) for n in range(count)])
    beats = [heartbeat(f"r{n}", NOON + minutes(5)) for n in range(0, count, 10)]
    lives = [feed.channel(beat, stored_at=NOON + minutes(5)) for beat in beats]
    await asyncio.gather(
        room.reaper.sweep(NOON + minutes(4), THRESHOLD),
        room.hear(lives, batch=3),
        room.reaper.sweep(NOON + minutes(4), THRESHOLD),
    )
    await room.reaper.sweep(NOON + minutes(4), THRESHOLD)
    rows = await room.rows("SELECT run_id, status FROM run")
    alive = {beat.run_id for beat in beats}
    assert {row["run_id"] for row in rows if row["status"] == "running"} == alive
    verdicts = await room.rows("SELECT run_id FROM run_transition WHERE kind = 'reaped'")
    assert len(verdicts) == len({row["run_id"] for row in verdicts})
    assert (await reasons(room)).count("reaped") == len(verdicts)


# --- what is said of totals ---------------------------------------------------------------------


async def test_totals_are_said_once_in_five_seconds_and_after_the_last_change(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    await hear(room, feed, started("r"))
    begun = room.clock.at
    for second in range(12):
        room.clock.at = begun + timedelta(seconds=second)
        await hear(room, feed, usage(f"q{second}", "r"))
        await room.sayer.say_due()
    totals = [one for one in await room.said() if one.reason == "totals"]
    assert [one.totals.request_count for one in totals] == [6, 11]
    room.clock.at = begun + timedelta(seconds=20)
    assert await room.sayer.say_due() == 1
    (*_, last) = await room.said()
    assert (last.reason, last.totals.request_count, last.run_revision) == ("totals", 12, 4)
    assert (last.previous, last.status) == ("running", "running")
    assert await room.sayer.say_due() == 0, "nothing has changed since"
    # A transition tells of the totals with it.
    await hear(room, feed, usage("q99", "r"), finished("r"), at=NOON + minutes(10))
    room.clock.at += minutes(1)
    assert await room.sayer.say_due() == 0
    (*_, last) = await room.said()
    assert (last.reason, last.totals.request_count) == ("finished", 13)


async def test_usage_writes_no_outbox_row_by_itself(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    reports = [feed.channel(usage(f"q{n}", "r")) for n in range(50)]
    await room.hear(reports, batch=5)
    assert await room.said() == []
    await room.hear(reports, batch=7)
    assert await room.sayer.say_due() == 1
    (only,) = await room.said()
    assert (only.reason, only.previous, only.totals.request_count) == ("totals", None, 50)


async def test_a_delegates_spend_is_told_of_its_row_and_of_its_root(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(room, feed, started("root"), started("c", root_run_id="root", parent_run_id="root"))
    room.clock.at += minutes(1)
    await hear(room, feed, usage("q1", "c"))
    assert await room.sayer.say_due() == 2
    told = {one.run_id: one.totals.cost_nanousd for one in (await room.said())[-2:]}
    assert told == {"root": ONE_REQUEST, "c": ONE_REQUEST}


async def test_another_tree_is_told_of_whoever_was_told_of(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(room, feed, started("g", root_run_id="c", parent_run_id="c"), usage("q1", "g"))
    await hear(room, feed, started("c", root_run_id="root", parent_run_id="root"))
    said = [(one.run_id, one.reason, one.root_run_id) for one in await room.said()]
    assert ("g", "reattributed", "root") in said


class Crashed(Exception):
    pass


async def crash_while_saying(room: LedgerRoom) -> None:
    async with room.database.transaction() as connection:
        due = await runs.lock_due(connection, now=room.clock.at, limit=200)
        assert len(due) == 200
        changes = {
            key: Change(run, replace(run, revision=run.revision + 1), "totals")
            for key, run in due.items()
        }
        await say(connection, changes, now=room.clock.at)
        raise Crashed


async def test_several_processes_and_a_crash_say_each_revision_once(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(usage(f"q{n}", f"r{n}")) for n in range(300)])
    with pytest.raises(Crashed):
        await crash_while_saying(room)
    assert await room.said() == []
    counts = await asyncio.gather(*(room.sayer.say_due() for _ in range(6)))
    assert sum(counts) == 300
    said = await room.said()
    assert len({one.run_id for one in said}) == len(said) == 300
    ids = await room.rows("SELECT convert_from(body, 'UTF8')::json ->> 'id' AS id FROM outbox")
    assert {row["id"] for row in ids} >= {derived_id("run_changed", "acme", "r7", "1")}


@pytest.mark.parametrize("step", [timedelta(hours=-5), timedelta(hours=5)])
async def test_totals_are_said_though_the_clock_was_set(room: LedgerRoom, feed: Feed, step):
    await room.know(feed)
    await hear(room, feed, started("r"), usage("q1", "r"))
    room.clock.at += step
    for number in (2, 3):
        at = room.clock.at
        await hear(room, feed, usage(f"q{number}", "r", occurred_at=at), at=at)
        room.clock.at += timedelta(seconds=6)
        assert await room.sayer.say_due() == 1
        (*_, last) = await room.said()
        assert last.totals.request_count == number


async def test_a_replay_without_the_inbox_says_nothing_more(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    events = [
        feed.channel(said, stored_at=NOON + minutes(10))
        for said in (
            started("r"),
            usage("q1", "r"),
            parked("r", NOON + minutes(1)),
            resumed("r", NOON + minutes(2)),
            heartbeat("r", NOON + minutes(3)),
            finished("r", status=RunStatus.FAILED, error="TimeoutError was raised"),
        )
    ]
    for event in events:
        await room.hear([event])
    said, row = await room.said(), await room.run("r")
    await room.rows("DELETE FROM inbox")
    room.clock.at += minutes(10)
    await room.hear(events, batch=2)
    await room.sayer.say_due()
    assert (await room.said(), await room.run("r")) == (said, row)
