"""Months, days and windows in billing time zones, from UTC+14 to UTC-11, and across changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from contracts.directory import BillingZone
from contracts.ledger import Authorize
from tests.factories import Feed, ingestion, minutes, organization, started, usage
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
KIRITIMATI, NIUE = "Pacific/Kiritimati", "Pacific/Niue"
ONE_REQUEST = 7_500_000
EDGE = datetime(2026, 11, 30, 23, 30, tzinfo=UTC)


def zoned(*zones: tuple[str, str], revision: int = 1):
    return organization(
        entity_revision=revision,
        billing_timezone=zones[-1][1],
        billing_zones=tuple(BillingZone(from_month=m, timezone=name) for m, name in zones),
    )


async def months(room: LedgerRoom, org: str) -> dict[str, int]:
    rows = await room.rows(
        "SELECT month, cost_nanousd FROM month_spend WHERE org = $1 AND scope = 'organization'",
        org,
    )
    return {row["month"]: int(row["cost_nanousd"]) for row in rows}


async def test_one_instant_is_billed_in_the_month_that_its_organization_has(
    room: LedgerRoom, feed: Feed
):
    """Half an hour before midnight of UTC: tomorrow on Kiritimati, noon on Niue."""
    room.clock.at = EDGE + minutes(5)
    for org, name in (("east", KIRITIMATI), ("west", NIUE), ("middle", "UTC")):
        await room.hear([feed.directory(zoned(("0001-01", name)), org, org=org)])
        await room.hear(
            [
                feed.channel(started("r1", started_at=EDGE), org=org),
                feed.channel(usage("q1", "r1", occurred_at=EDGE), org=org),
                feed.channel(ingestion("q2", occurred_at=EDGE), org=org),
            ]
        )
    both = 2 * ONE_REQUEST
    assert await months(room, "east") == {"2026-12": both}
    assert await months(room, "west") == {"2026-11": both}
    assert await months(room, "middle") == {"2026-11": both}
    days = {}
    for org in ("east", "west", "middle"):
        spend = await room.spend(org, EDGE - timedelta(days=1))
        assert spend.month_to_date_nanousd == both
        days[org] = {line.day: line.cost_nanousd for line in spend.by_day if line.cost_nanousd}
    assert days == {
        "east": {"2026-12-01": both},
        "west": {"2026-11-30": both},
        "middle": {"2026-11-30": both},
    }


async def test_a_cap_begins_anew_at_the_organizations_own_midnight(room: LedgerRoom, feed: Feed):
    newer = zoned(("0001-01", NIUE)).model_copy(
        update={"monthly_budget_nanousd": ONE_REQUEST, "cap_revision": 1}
    )
    last = datetime(2026, 12, 1, 10, 59, tzinfo=UTC)
    room.clock.at = last
    await room.hear([feed.directory(newer, "acme")])
    await room.hear(
        [
            feed.channel(started("r1", started_at=last)),
            feed.channel(usage("q1", "r1", occurred_at=last)),
        ]
    )

    async def may_ask(request_id: str) -> bool:
        asked = Authorize(
            request_id=request_id,
            run_id="r1",
            root_run_id="r1",
            agent_id="coder",
            root_agent_id="coder",
            user_id=None,
            started_by_user_id=None,
            model="claude-opus-4-6",
            provider="anthropic",
        )
        return (await room.authorize(asked)).allowed

    assert not await may_ask("a1"), "it is still November on Niue"
    room.clock.at = last + minutes(1)
    assert await may_ask("a2")


async def test_what_was_authorized_is_billed_when_it_was_authorized(room: LedgerRoom, feed: Feed):
    """Asked a minute before midnight, answered after it; beside one that nobody asked about."""
    room.clock.at = EDGE + minutes(29)
    await room.know(feed)
    asked = Authorize(
        request_id="q1",
        run_id="r1",
        root_run_id="r1",
        agent_id="coder",
        root_agent_id="coder",
        user_id=None,
        started_by_user_id=None,
        model="claude-opus-4-6",
        provider="anthropic",
    )
    assert (await room.authorize(asked)).allowed
    room.clock.at = EDGE + minutes(33)
    after = EDGE + minutes(32)
    await room.hear(
        [
            feed.channel(started("r1", started_at=EDGE)),
            feed.channel(usage("q1", "r1", occurred_at=after)),
            feed.channel(usage("q2", "r1", occurred_at=after)),
        ]
    )
    assert await months(room, "acme") == {"2026-11": ONE_REQUEST, "2026-12": ONE_REQUEST}
    (entry, *_) = (await room.entries("r1")).items
    assert (entry.request_id, entry.occurred_at) == ("q1", after)
    assert entry.billed_at == EDGE + minutes(29)


async def test_a_window_counts_a_run_whole_by_its_start(room: LedgerRoom, feed: Feed):
    """Begun before the window, spent within: not in it. Ingestion goes by its own time."""
    await room.know(feed)
    begun = room.clock.at - timedelta(days=2)
    spent = room.clock.at - timedelta(hours=1)
    await room.hear(
        [
            feed.channel(started("old", started_at=begun)),
            feed.channel(usage("q1", "old", occurred_at=spent)),
            feed.channel(started("new", started_at=spent)),
            feed.channel(usage("q2", "new", occurred_at=spent)),
            feed.channel(ingestion("q3", occurred_at=spent)),
            feed.channel(ingestion("q4", occurred_at=begun)),
        ]
    )
    spend = await room.spend("acme", room.clock.at - timedelta(days=1))
    assert spend.cost_nanousd == 2 * ONE_REQUEST
    assert (spend.run_count, spend.ingestion.request_count) == (1, 1)
    whole = await room.spend("acme", room.clock.at - timedelta(days=3))
    assert (whole.cost_nanousd, whole.run_count) == (4 * ONE_REQUEST, 2)


@pytest.mark.parametrize(
    ("name", "first", "last", "hours"),
    [
        # Clocks go back: a Sunday of 25 hours; and forward: one of 23.
        ("America/New_York", date(2026, 10, 31), date(2026, 11, 2), 25),
        ("Europe/Madrid", date(2026, 3, 28), date(2026, 3, 30), 23),
    ],
)
async def test_days_are_dense_across_a_change_of_clocks(
    room: LedgerRoom, feed: Feed, name: str, first: date, last: date, hours: int
):
    from zoneinfo import ZoneInfo

    zone = ZoneInfo(name)
    midnights = [
        datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
        for day in (first + timedelta(days=n) for n in range((last - first).days + 1))
    ]
    assert midnights[2] - midnights[1] == timedelta(hours=hours)
    room.clock.at = midnights[-1] + minutes(30)
    await room.hear([feed.directory(zoned(("0001-01", name)), "acme")])
    moments = [midnights[1], midnights[2] - minutes(1), midnights[2]]
    for number, at in enumerate(moments):
        await room.hear(
            [
                feed.channel(started(f"r{number}", started_at=at)),
                feed.channel(usage(f"q{number}", f"r{number}", occurred_at=at)),
            ]
        )
    spend = await room.spend("acme", midnights[0])
    assert [(line.day, line.run_count) for line in spend.by_day] == [
        (first.isoformat(), 0),
        ((first + timedelta(days=1)).isoformat(), 2),
        (last.isoformat(), 1),
    ]


async def test_a_change_of_zone_moves_no_day_and_no_month_that_has_begun(
    room: LedgerRoom, feed: Feed
):
    """From UTC to UTC+14 from December on: what happened in November stays where it was shown."""
    before = datetime(2026, 11, 20, 22, tzinfo=UTC)
    room.clock.at = before + minutes(5)
    await room.hear([feed.directory(zoned(("0001-01", "UTC")), "acme")])
    await room.hear(
        [
            feed.channel(started("r1", started_at=before)),
            feed.channel(usage("q1", "r1", occurred_at=before)),
            feed.channel(ingestion("q2", occurred_at=before)),
        ]
    )
    change = zoned(("0001-01", "UTC"), ("2026-12", KIRITIMATI), revision=2)
    await room.hear([feed.directory(change, "acme")])
    after = datetime(2026, 11, 30, 10, tzinfo=UTC)
    room.clock.at = after + minutes(5)
    await room.hear(
        [
            feed.channel(started("r2", started_at=after - minutes(1))),
            feed.channel(usage("q3", "r2", occurred_at=after - minutes(1))),
            feed.channel(started("r3", started_at=after)),
            feed.channel(usage("q4", "r3", occurred_at=after)),
        ]
    )
    assert await months(room, "acme") == {"2026-11": 3 * ONE_REQUEST, "2026-12": ONE_REQUEST}
    spend = await room.spend("acme", before - timedelta(days=1))
    assert {line.day: line.cost_nanousd for line in spend.by_day if line.cost_nanousd} == {
        "2026-11-20": 2 * ONE_REQUEST,
        "2026-11-30": ONE_REQUEST,
        "2026-12-01": ONE_REQUEST,
    }
    assert spend.by_day[0].day == "2026-11-19"
    assert spend.by_day[-1].day == "2026-12-01"
