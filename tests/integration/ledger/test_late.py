"""Usage that comes late, or is history."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.types import ChannelRight
from tests.factories import NOON, Feed, channel, minutes, organization, started, usage
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
