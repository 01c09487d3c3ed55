"""Usage that comes late, or is history."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.types import ChannelRight
from tests.factories import (
    NOON,
    Feed,
    channel,
    ingestion,
    minutes,
    organization,
    started,
    usage,
)
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ONE_REQUEST = 7_500_000


async def dead_reasons(room: LedgerRoom) -> list[str]:
    return [row["reason"] for row in await room.rows("SELECT reason FROM dead_letter")]


async def test_old_usage_waits_for_its_channel_to_be_known(room: LedgerRoom, feed: Feed):
    """Found by the long test: the directory's stream may be behind the channel's."""
    await room.hear([feed.directory(organization(), "acme")])
    old = NOON - timedelta(hours=73)
    await room.hear([feed.channel(usage("q1", "r1", occurred_at=old), channel_id="hist")])
    assert await dead_reasons(room) == []
    await room.hear([feed.directory(channel("hist", ChannelRight.BACKFILL), "hist")])
    room.clock.at += minutes(1)
    assert await room.consumers["CHANNEL"].retry_due() == 1
    assert (await room.run("r1")).totals.cost_nanousd == ONE_REQUEST


async def test_old_usage_needs_the_right_backfill(room: LedgerRoom, feed: Feed):
    await room.know(feed, channels=("c1",))
    await room.hear([feed.directory(channel("hist", ChannelRight.BACKFILL), "hist")])
    old = NOON - timedelta(hours=73)
    await room.hear([feed.channel(usage("q1", "r1", occurred_at=old))])
    await room.hear([feed.channel(usage("q2", "r2", occurred_at=old), channel_id="hist")])
    assert await dead_reasons(room) == ["usage_too_old"]
    assert (await room.run("r2")).totals.cost_nanousd == ONE_REQUEST


async def test_a_late_report_is_billed_in_its_month_and_borne_by_this_months_cap(
    room: LedgerRoom, feed: Feed
):
    room.clock.at = NOON.replace(month=12, day=1, hour=1)
    await room.know(feed)
    said = room.clock.at - timedelta(hours=3)
    await room.hear(
        [
            feed.channel(started("r1", started_at=said), at=room.clock.at),
            feed.channel(usage("q1", "r1", occurred_at=said), at=room.clock.at),
        ]
    )
    (cap,) = (await room.caps()).items
    assert (cap.month, cap.spent_nanousd, cap.late_nanousd) == ("2026-12", 0, ONE_REQUEST)
    assert cap.remaining_nanousd == cap.limit_nanousd - ONE_REQUEST
    months = await room.rows(
        "SELECT month, cost_nanousd FROM month_spend WHERE scope = 'organization' ORDER BY 1"
    )
    assert [(row["month"], int(row["cost_nanousd"])) for row in months] == [
        ("2026-11", ONE_REQUEST),
        ("2026-12", 0),
    ]


async def test_it_is_late_by_when_it_was_stored_whenever_it_is_handled(
    room: LedgerRoom, feed: Feed
):
    """A ledger that was down over the end of a month charges the caps that it would have charged.

    Of the same words stored twice the copy that was in time counts, in either order.
    """
    said = NOON.replace(day=30, hour=23)
    in_time, late = said + minutes(5), said + minutes(120)
    behind = NOON.replace(month=12, day=2)
    orders = {
        "at-once": (said + minutes(6), (in_time,)),
        "behind": (behind, (in_time,)),
        "twice": (behind, (in_time, late)),
        "turned": (behind, (late, in_time)),
    }
    books = {}
    for org, (clock_at, stored) in orders.items():
        room.clock.at = clock_at
        await room.know(feed, org)
        report = usage("q1", "r1", occurred_at=said)
        for at in stored:
            await room.hear([feed.channel(report, org=org, at=at, stored_at=at)])
        rows = await room.rows(
            "SELECT month, cost_nanousd, late_nanousd FROM month_spend WHERE org = $1 "
            "AND scope = 'organization' AND (cost_nanousd <> 0 OR late_nanousd <> 0)",
            org,
        )
        books[org] = [
            (row["month"], int(row["cost_nanousd"]), int(row["late_nanousd"])) for row in rows
        ]
    assert books == {org: [("2026-11", ONE_REQUEST, 0)] for org in orders}
    room.clock.at = behind
    await room.know(feed, "late")
    report = usage("q1", "r1", occurred_at=said)
    await room.hear([feed.channel(report, org="late", at=late, stored_at=late)])
    rows = await room.rows("SELECT late_nanousd FROM month_spend WHERE org = 'late' ORDER BY month")
    assert [int(row["late_nanousd"]) for row in rows] == [0, ONE_REQUEST]


async def test_a_time_is_ahead_by_when_it_was_stored_whenever_it_is_handled(
    room: LedgerRoom, feed: Feed
):
    """A ledger that is behind, or reads its stream again, takes in what it would have taken in."""
    await room.know(feed)
    limit = NOON + minutes(5)
    ahead = limit + timedelta(microseconds=1)
    said = [
        started("r1", started_at=limit),
        usage("q1", "r1", occurred_at=limit),
        started("r2", started_at=ahead),
        usage("q2", "r1", occurred_at=ahead),
        ingestion("q3", occurred_at=ahead),
    ]
    batch = [feed.channel(each, stored_at=NOON) for each in said]
    for handled_at in (NOON, NOON + minutes(60)):
        room.clock.at = handled_at
        await room.rows("DELETE FROM inbox")
        await room.hear(batch)
        assert set(await dead_reasons(room)) == {"time_in_future"}
        assert [run.run_id for run in (await room.runs()).items] == ["r1"]
        assert (await room.spend()).cost_nanousd == ONE_REQUEST
