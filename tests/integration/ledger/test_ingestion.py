"""Money that belongs to no run: in the organization's figures and in nobody else's."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.channel import Tokens
from contracts.errors import NotFound
from contracts.ledger import Authorize
from contracts.types import ChannelRight, UsageKind
from tests.factories import (
    NOON,
    Feed,
    agent,
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


def question(request_id: str, **changes) -> Authorize:
    values = dict.fromkeys(
        ("run_id", "root_run_id", "agent_id", "root_agent_id", "user_id", "started_by_user_id")
    )
    return Authorize(
        **(values | {"request_id": request_id, "kind": UsageKind.INGESTION, "model": "m"} | changes)
    )


async def months(room: LedgerRoom) -> dict[tuple[str, str], int]:
    rows = await room.rows(
        "SELECT scope, month, sum(cost_nanousd) AS c FROM month_spend GROUP BY 1, 2"
    )
    return {(row["scope"], row["month"]): int(row["c"]) for row in rows if row["c"]}


async def test_it_is_in_the_bill_and_in_no_agents_figure(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.directory(agent("coder", 10**9), "coder")])
    await room.hear(
        [
            feed.channel(started("r1")),
            feed.channel(usage("q1", "r1")),
            feed.channel(ingestion("q2", document_id="d1", collection_id="c1", key_id="k1")),
        ]
    )
    spend = await room.spend()
    assert spend.cost_nanousd == 2 * ONE_REQUEST
    assert [line.cost_nanousd for line in spend.by_agent] == [ONE_REQUEST]
    assert spend.by_agent[0].month_to_date_nanousd == ONE_REQUEST
    assert (spend.ingestion.cost_nanousd, spend.ingestion.request_count) == (ONE_REQUEST, 1)
    assert [(line.cost_nanousd, line.run_count) for line in spend.by_provider] == [
        (2 * ONE_REQUEST, 1)
    ]
    assert {line.key_id: (line.cost_nanousd, line.run_count) for line in spend.by_key} == {
        None: (ONE_REQUEST, 1),
        "k1": (ONE_REQUEST, 0),
    }
    assert sum(line.cost_nanousd for line in spend.by_day) == 2 * ONE_REQUEST
    assert spend.month_to_date_nanousd == 2 * ONE_REQUEST
    assert await months(room) == {
        ("organization", "2026-11"): 2 * ONE_REQUEST,
        ("agent", "2026-11"): ONE_REQUEST,
    }
    caps = {cap.scope: cap.spent_nanousd for cap in (await room.caps()).items}
    assert caps == {"organization": 2 * ONE_REQUEST, "agent": ONE_REQUEST}
    (entry,) = (await room.ingested("i1")).items
    assert (entry.kind, entry.document_id, entry.collection_id) == ("ingestion", "d1", "c1")
    assert (entry.cost_nanousd, entry.priced, entry.price_source) == (
        ONE_REQUEST,
        True,
        "catalogue",
    )


async def test_a_month_of_ingestion_alone_has_no_agent_and_no_run(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    empty = await room.spend()
    assert (empty.cost_nanousd, empty.by_provider, empty.ingestion.cost_nanousd) == (0, (), 0)
    await room.hear([feed.channel(ingestion("q1"))])
    spend = await room.spend()
    assert (spend.cost_nanousd, spend.run_count, spend.by_agent) == (ONE_REQUEST, 0, ())
    assert (await room.runs()).total == 0


async def test_windows_select_it_by_when_it_occurred(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    early = NOON - timedelta(hours=30)
    await room.hear(
        [
            feed.channel(ingestion("q1", occurred_at=early, provider="anthropic")),
            feed.channel(ingestion("q2", occurred_at=NOON, model="gpt-5", provider="openai")),
        ]
    )
    whole = await room.spend(since=early)
    assert whole.ingestion.request_count == 2, "both ends included"
    part = await room.spend(since=early + timedelta(microseconds=1))
    assert part.ingestion.request_count == 1
    assert [line.provider for line in part.by_provider] == ["openai"], "no row without spend"
    days = {line.day: line.cost_nanousd for line in whole.by_day}
    assert (days["2026-11-19"], days["2026-11-20"]) == (ONE_REQUEST, part.cost_nanousd)


async def test_what_has_no_price_makes_the_bill_a_floor(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(ingestion("q1", model="no-such-model"))])
    spend = await room.spend()
    assert (spend.is_partial, spend.ingestion.is_partial, spend.partial_run_count) == (
        True,
        True,
        0,
    )
    assert [line.is_partial for line in spend.by_provider] == [True]
    assert any(line.is_partial for line in spend.by_day)
    assert spend.month_to_date_is_partial
    (cap,) = (await room.caps()).items
    assert cap.is_partial
    answer = await room.authorize(question("q9"))
    assert (answer.allowed, answer.partial) == (True, True)


async def test_a_report_that_grew_is_one_request_in_its_newest_day(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    cut = ingestion("q1", interrupted=True, occurred_at=NOON - timedelta(hours=20))
    whole = ingestion("q1", tokens=Tokens(input=1_000, output=300))
    for said in (cut, whole, whole, cut):
        await room.hear([feed.channel(said)])
    spend = await room.spend()
    assert (spend.ingestion.cost_nanousd, spend.ingestion.request_count) == (12_500_000, 1)
    assert {d.day: d.cost_nanousd for d in spend.by_day if d.cost_nanousd} == {
        "2026-11-20": 12_500_000
    }


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_request_of_a_run_and_of_an_ingestion_is_billed_once_and_flagged(
    room: LedgerRoom, feed: Feed, order
):
    await room.know(feed)
    said = [usage("q1", "r1"), ingestion("q1", occurred_at=NOON + minutes(2))]
    for position in order:
        await room.hear([feed.channel(said[position])])
    spend = await room.spend()
    assert (spend.cost_nanousd, spend.ingestion.cost_nanousd) == (ONE_REQUEST, 0)
    assert (spend.ingestion.is_partial, spend.ingestion.request_count) == (True, 0)
    assert (await room.run("r1")).totals.cost_nanousd == ONE_REQUEST
    assert not (await room.run("r1")).is_partial
    assert (await room.ingested("i1")).items[-1].reason == "request_conflict"


async def test_its_question_has_no_run_and_is_bound_by_the_organizations_cap_alone(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    await room.hear([feed.directory(agent("coder", 1), "coder")])
    await room.hear([feed.channel(started("r1")), feed.channel(usage("q0", "r1"))])
    allowed = await room.authorize(question("q1", agent_id="coder", root_agent_id="coder"))
    assert allowed.allowed, "the agent's cap is used up, and does not bind"
    assert [cap.scope for cap in allowed.remaining] == ["organization"]
    small = organization(entity_revision=2, monthly_budget_nanousd=2 * ONE_REQUEST, cap_revision=2)
    await room.hear([feed.directory(small, "acme")])
    await room.hear([feed.channel(ingestion("q1"))])
    refused = await room.authorize(question("q2"))
    assert (refused.allowed, refused.refusal.scope) == (False, "organization")
    assert refused.refusal.spent_nanousd == 2 * ONE_REQUEST


async def test_it_is_billed_in_the_month_of_its_authorization(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    room.clock.at = NOON.replace(month=11, day=30, hour=23, minute=59)
    assert (await room.authorize(question("q1"))).allowed
    room.clock.at += minutes(5)
    after = NOON.replace(month=12, day=1, hour=0, minute=2)
    await room.hear([feed.channel(ingestion("q1", occurred_at=after))])
    await room.hear([feed.channel(ingestion("q2", occurred_at=after))])
    assert await months(room) == {
        ("organization", "2026-11"): ONE_REQUEST,
        ("organization", "2026-12"): ONE_REQUEST,
    }


async def test_late_and_old_ingestion_follows_the_rules_of_usage(room: LedgerRoom, feed: Feed):
    room.clock.at = NOON.replace(month=12, day=1, hour=1)
    await room.know(feed)
    await room.hear([feed.directory(channel("hist", ChannelRight.BACKFILL), "hist")])
    late, old = room.clock.at - timedelta(hours=3), room.clock.at - timedelta(hours=73)
    await room.hear(
        [
            feed.channel(ingestion("q1", occurred_at=late), at=room.clock.at),
            feed.channel(ingestion("q2", occurred_at=old), at=room.clock.at),
            feed.channel(ingestion("q3", occurred_at=old), at=room.clock.at, channel_id="hist"),
            feed.channel(ingestion("q4", occurred_at=room.clock.at + minutes(6))),
        ]
    )
    reasons = await room.rows("SELECT reason FROM dead_letter ORDER BY stream_sequence")
    assert [row["reason"] for row in reasons] == ["usage_too_old", "time_in_future"]
    (cap,) = (await room.caps()).items
    assert (cap.spent_nanousd, cap.late_nanousd) == (0, ONE_REQUEST)
    assert await months(room) == {("organization", "2026-11"): 2 * ONE_REQUEST}


async def test_another_organizations_ingestion_answers_like_an_unknown_one(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed, "acme", "beta")
    await room.hear([feed.channel(ingestion(f"q{n}")) for n in range(3)])
    answers = []
    for ingestion_id in ("i1", "nothing"):
        with pytest.raises(NotFound) as refused:
            await room.ingested(ingestion_id, "beta")
        answers.append((refused.value.reason, refused.value.message))
    assert answers[0] == answers[1] == ("ingestion_unknown", "there is no such ingestion")
    assert (await room.spend("beta")).cost_nanousd == 0
    first = await room.ingested("i1", limit=2)
    rest = await room.ingested("i1", limit=2, cursor=first.cursor)
    assert [entry.request_id for entry in first.items + rest.items] == ["q0", "q1", "q2"]
    assert rest.cursor is None
