"""Everything that a run costs besides its model requests, and work that is in nobody's month."""

from __future__ import annotations

from decimal import Decimal

import pytest

from contracts.channel import ProviderCost, Tokens
from contracts.ledger import Authorize
from contracts.types import UsageKind
from tests.factories import Feed, agent, minutes, organization, started, usage
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ONE_REQUEST = 7_500_000
OF_A_RUN = [kind for kind in UsageKind if kind is not UsageKind.INGESTION]


def question(request_id: str, run_id: str = "r1") -> Authorize:
    return Authorize(
        request_id=request_id,
        run_id=run_id,
        root_run_id=run_id,
        agent_id="coder",
        root_agent_id="coder",
        user_id=None,
        started_by_user_id=None,
        model="claude-opus-4-6",
        provider="anthropic",
    )


@pytest.mark.parametrize("kind", OF_A_RUN)
async def test_each_kind_is_billed_to_its_run_and_its_agents_month(
    room: LedgerRoom, feed: Feed, kind
):
    await room.know(feed)
    await room.hear([feed.channel(started("r1")), feed.channel(usage("q1", "r1", kind=kind))])
    (entry,) = (await room.entries("r1")).items
    assert (entry.kind, entry.cost_nanousd) == (kind.value, ONE_REQUEST)
    spend = await room.spend()
    (line,) = spend.by_agent
    assert (line.agent_id, line.cost_nanousd, line.month_to_date_nanousd) == (
        "coder",
        ONE_REQUEST,
        ONE_REQUEST,
    )
    assert spend.ingestion.request_count == 0


async def test_an_embedding_has_the_price_of_its_model(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    said = usage(
        "q1",
        "r1",
        kind=UsageKind.EMBEDDING,
        provider="openai",
        model="text-embedding-3-small",
        tokens=Tokens(input=1_000_000),
    )
    await room.hear([feed.channel(said)])
    (entry,) = (await room.entries("r1")).items
    assert (entry.cost_nanousd, entry.priced) == (20_000_000, True)


async def test_what_an_inline_embedding_of_a_delegate_costs_is_its_own(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    child = started("c", agent_id="helper", root_run_id="r1", parent_run_id="r1")
    await room.hear(
        [
            feed.channel(started("r1")),
            feed.channel(child),
            feed.channel(usage("q1", "c", kind=UsageKind.EMBEDDING)),
        ]
    )
    root, delegated = await room.run("r1"), await room.run("c")
    assert (root.own.cost_nanousd, root.totals.cost_nanousd) == (0, ONE_REQUEST)
    assert delegated.own.cost_nanousd == ONE_REQUEST


@pytest.mark.parametrize("kind", [UsageKind.COMPACTION, UsageKind.REVIEWER, UsageKind.JUDGE])
async def test_a_compaction_that_crosses_a_cap_is_recorded_and_stops_the_next_request(
    room: LedgerRoom, feed: Feed, kind
):
    """It passes no guard, so it is recorded instead of refused (the seed)."""
    small = organization(monthly_budget_nanousd=ONE_REQUEST + 1)
    await room.hear([feed.directory(small, "acme")])
    await room.hear([feed.channel(started("r1"))])
    await room.hear([feed.channel(usage("q1", "r1"))])
    assert (await room.authorize(question("q2"))).allowed
    await room.hear([feed.channel(usage("q3", "r1", kind=kind))])
    refused = await room.authorize(question("q4"))
    assert (refused.allowed, refused.refusal.scope) == (False, "organization")
    assert refused.refusal.spent_nanousd == 2 * ONE_REQUEST
    assert (await room.run("r1")).totals.cost_nanousd == 2 * ONE_REQUEST


async def test_an_interrupted_request_costs_what_was_used_until_then(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    cut = usage("q1", "r1", interrupted=True, tokens=Tokens(input=1_000, output=10))
    await room.hear([feed.channel(cut)])
    (entry,) = (await room.entries("r1")).items
    assert (entry.interrupted, entry.priced, entry.cost_nanousd) == (True, True, 5_250_000)
    await room.hear([feed.channel(usage("q1", "r1")), feed.channel(cut)])
    run = await room.run("r1")
    assert (run.totals.cost_nanousd, run.totals.request_count) == (ONE_REQUEST, 1)


@pytest.mark.parametrize("first", ["usage", "start"])
async def test_work_of_the_platform_is_in_the_bill_and_in_no_agents_month(
    room: LedgerRoom, feed: Feed, first
):
    await room.know(feed)
    await room.hear([feed.directory(agent("coder", 1), "coder")])
    said = [
        feed.channel(started("r1", system_role="title")),
        feed.channel(usage("q1", "r1")),
        feed.channel(started("c", agent_id="helper", root_run_id="r1", parent_run_id="r1")),
        feed.channel(usage("q2", "c")),
    ]
    for each in said if first == "start" else reversed(said):
        await room.hear([each])
    months = await room.rows("SELECT scope, cost_nanousd FROM month_spend WHERE cost_nanousd <> 0")
    assert [(row["scope"], int(row["cost_nanousd"])) for row in months] == [
        ("organization", 2 * ONE_REQUEST)
    ]
    assert (await room.spend()).cost_nanousd == 2 * ONE_REQUEST
    assert (await room.authorize(question("q9"))).allowed, "the agent's cap does not bind it"


async def test_kroner_are_converted_and_everything_is_kept(room: LedgerRoom, feed: Feed):
    """At 10.5 kroner a dollar."""
    await room.know(feed)
    costs = {
        "nok": ProviderCost(amount="0.21", currency="NOK"),
        "usd": ProviderCost(amount="0.02", currency="USD"),
        "sek": ProviderCost(amount="0.21", currency="SEK"),
    }
    await room.hear(
        [feed.channel(usage(name, "r1", provider_cost=cost)) for name, cost in costs.items()]
    )
    entries = {entry.request_id: entry for entry in (await room.entries("r1")).items}
    kept = {
        name: (e.cost_nanousd, e.price_source, e.provider_amount, e.provider_currency)
        for name, e in entries.items()
    }
    assert kept == {
        "nok": (20_000_000, "provider_reported", "0.21", "NOK"),
        "usd": (20_000_000, "provider_reported", "0.02", "USD"),
        "sek": (ONE_REQUEST, "catalogue", "0.21", "SEK"),
    }
    assert [entries[name].provider_rate for name in ("nok", "usd", "sek")] == ["10.5", None, None]


async def test_another_rate_prices_nothing_again(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    said = feed.channel(usage("q1", "r1", provider_cost=ProviderCost(amount="21", currency="NOK")))
    await room.hear([said])
    before = (await room.entries("r1")).items
    room.reports._rates = {"NOK": Decimal(21)}
    await room.hear([said])
    assert (await room.entries("r1")).items == before
    room.clock.at += minutes(1)
    await room.hear(
        [feed.channel(usage("q2", "r1", provider_cost=ProviderCost(amount="21", currency="NOK")))]
    )
    assert (await room.entries("r1")).items[-1].cost_nanousd == 10**9


async def test_a_picture_that_nobody_counted_makes_the_bill_a_floor_until_it_is(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    drawn = {"provider": "google", "model": "gemini-2.5-flash-image", "kind": UsageKind.IMAGE}
    tokens = Tokens(input=20, output=1_290)
    await room.hear(
        [feed.channel(started("r1")), feed.channel(usage("q1", "r1", tokens=tokens, **drawn))]
    )
    (entry,) = (await room.entries("r1")).items
    assert (entry.priced, entry.reason, entry.price_source) == (
        False,
        "media_uncounted",
        "catalogue",
    )
    least = 20 * 300 + 1_290 * 2_500
    row = await room.run("r1")
    assert (entry.cost_nanousd, row.totals.cost_nanousd, row.is_partial) == (least, least, True)
    (cap,) = (await room.caps()).items
    assert (cap.spent_nanousd, cap.is_partial) == (least, True)
    exact = 20 * 300 + 1_290 * 30_000
    await room.correct(entry.id, exact, "k1")
    row = await room.run("r1")
    assert (row.totals.cost_nanousd, row.is_partial) == (exact, False)
