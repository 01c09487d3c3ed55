"""Ways in which a bill, a cap or a floor was once wrong; each found by attacking it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from contracts.channel import ProviderCost, Tokens
from contracts.errors import Rejected
from contracts.ledger import Authorize
from tests.factories import (
    MODEL,
    NOON,
    agent,
    finished,
    minutes,
    started,
    usage,
)

pytestmark = pytest.mark.integration


def ask(request_id: str, run_id: str, **changes) -> Authorize:
    values = {
        "request_id": request_id,
        "run_id": run_id,
        "root_run_id": run_id,
        "agent_id": "coder",
        "root_agent_id": "coder",
        "user_id": None,
        "started_by_user_id": None,
        "model": MODEL,
        "provider": "anthropic",
    }
    return Authorize(**(values | changes))


async def test_a_better_report_that_names_another_billed_run_is_billed(room, feed):
    await room.know(feed)
    await room.hear([feed.channel(usage("q", "inline", billed_run_id="owner"))])
    await room.hear([feed.channel(usage("q", "inline", tokens=Tokens(input=1000, output=500)))])
    assert not await room.rows("SELECT 1 FROM retry")
    assert (await room.run("inline")).own.cost_nanousd == 17_500_000


async def test_a_tree_whose_root_never_spoke_is_in_the_bill(room, feed):
    await room.know(feed)
    await room.hear(
        [
            feed.channel(started("kid", root_run_id="lost", parent_run_id="lost")),
            feed.channel(usage("q", "kid")),
        ]
    )
    assert (await room.spend()).cost_nanousd == 7_500_000


async def test_no_channel_joins_another_channels_tree_by_asking(room, feed):
    await room.know(feed, channels=("c1", "c2"))
    await room.hear([feed.channel(started("victim", budget_nanousd=10_000_000))])
    with pytest.raises(Rejected):
        await room.authorize(ask("a", "leech", root_run_id="victim"), channel_id="c2")
    await room.hear([feed.channel(usage("q", "leech"), channel_id="c2")])
    assert (await room.run("victim")).totals.cost_nanousd == 0


async def test_a_start_in_the_year_1_does_not_break_the_list(room, feed):
    await room.know(feed)
    old = feed.channel(started("r"))
    body = old.body.replace(b"2026-11-20T12:00:00Z", b"0001-01-01T00:00:00Z")
    await room.hear([replace(old, body=body)])
    assert (await room.runs()).total == 0
    assert [row["reason"] for row in await room.rows("SELECT reason FROM dead_letter")] == [
        "invalid_field"
    ]


async def test_a_missing_delegate_makes_the_months_a_floor(room, feed):
    await room.know(feed)
    await room.hear(
        [
            feed.channel(started("r")),
            feed.channel(usage("q", "r")),
            feed.channel(finished("r", missing_delegates=1)),
        ]
    )
    spend = await room.spend()
    assert spend.is_partial
    assert spend.month_to_date_is_partial
    assert any(line.is_partial for line in spend.by_provider)
    assert any(line.is_partial for line in spend.by_key)
    assert (await room.caps()).items[0].is_partial
    assert (await room.authorize(ask("x", "r"))).partial


async def test_what_is_too_large_to_price_does_not_fit(room, feed):
    await room.know(feed)
    answer = await room.authorize(
        ask("x", "r", must_fit=True, input_tokens_max=2**63 - 1, output_tokens_max=2**63 - 1)
    )
    assert not answer.allowed


async def test_late_money_follows_the_agent(room, feed):
    room.clock.at = datetime(2026, 12, 1, 0, 30, tzinfo=UTC)
    old = datetime(2026, 11, 30, 23, 50, tzinfo=UTC)
    await room.know(feed)
    await room.hear([feed.directory(agent("coder", 10**9), "coder")])
    await room.hear([feed.channel(usage("q", "r", occurred_at=old), at=old)])
    await room.hear([feed.channel(started("r", started_at=old), at=old)])
    assert {c.scope: c.late_nanousd for c in (await room.caps()).items} == {
        "organization": 7_500_000,
        "agent": 7_500_000,
    }


async def test_a_report_that_grows_over_midnight_is_charged_once(room, feed):
    room.clock.at = new = datetime(2026, 12, 1, 0, 30, tzinfo=UTC)
    old = datetime(2026, 11, 30, 23, 50, tzinfo=UTC)
    await room.know(feed)
    await room.hear([feed.channel(usage("q", "r", occurred_at=old), at=old)])
    await room.hear(
        [
            feed.channel(
                usage("q", "r", tokens=Tokens(input=1000, output=101), occurred_at=new), at=new
            )
        ]
    )
    cap = (await room.caps()).items[0]
    assert cap.spent_nanousd + cap.late_nanousd == 7_525_000


async def test_backdating_the_envelope_is_no_backfill(room, feed):
    await room.know(feed)
    old = datetime(2026, 8, 1, tzinfo=UTC)
    await room.hear([feed.channel(usage("q", "r", occurred_at=old), at=old)])
    assert [r["reason"] for r in await room.rows("SELECT reason FROM dead_letter")] == [
        "usage_too_old"
    ]


async def test_the_agents_cap_binds_though_usage_came_before_the_question(room, feed):
    await room.know(feed)
    await room.hear([feed.directory(agent("coder", 1_000_000), "coder")])
    await room.hear([feed.channel(usage("q1", "r"))])
    await room.authorize(ask("q2", "r"))
    await room.hear([feed.channel(usage("q2", "r"))])
    assert not (await room.authorize(ask("q3", "r"))).allowed


async def test_sums_beyond_64_bits_are_answered(room, feed):

    await room.know(feed)
    await room.hear(
        [
            feed.channel(
                usage(f"q{n}", "r", provider_cost=ProviderCost(amount="9223372036", currency="USD"))
            )
            for n in range(3)
        ]
    )
    assert not (await room.authorize(ask("x", "r"))).allowed


async def test_by_day_adds_up_for_a_run_that_starts_after_midnight_on_a_fast_clock(room, feed):
    room.clock.at = datetime(2026, 11, 20, 23, 58, tzinfo=UTC)
    at = datetime(2026, 11, 21, 0, 1, tzinfo=UTC)
    await room.know(feed)
    await room.hear(
        [
            feed.channel(started("r", started_at=at), at=at),
            feed.channel(usage("q", "r", occurred_at=at), at=at),
        ]
    )
    spend = await room.spend()
    assert sum(d.cost_nanousd for d in spend.by_day) == spend.cost_nanousd == 7_500_000


async def test_another_channel_cannot_take_a_request_away(room, feed):
    await room.know(feed, channels=("c1", "c2"))
    await room.hear([feed.channel(usage("q", "r1"))])
    await room.hear(
        [
            feed.channel(
                usage("q", "r2", tokens=Tokens(input=1, output=0), occurred_at=NOON - minutes(60)),
                channel_id="c2",
            )
        ]
    )
    assert (await room.run("r1")).own.cost_nanousd == 7_500_000


async def test_a_claim_too_many_leaves_a_floor(room, feed):
    await room.know(feed, channels=("c1", "c2"))
    await room.hear(
        [
            feed.channel(usage("q", f"f{n}", tokens=Tokens(input=1, output=0)), channel_id="c2")
            for n in range(16)
        ]
    )
    await room.hear([feed.channel(started("r")), feed.channel(usage("q", "r"))])
    assert (await room.run("r")).is_partial
