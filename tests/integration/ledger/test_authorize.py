"""May the next request be sent? Narrowest cap first; refused when spent has reached it."""

from __future__ import annotations

import asyncio

import pytest

from contracts.channel import ProviderCost, Tokens
from contracts.errors import AlreadyExists, Rejected
from contracts.ledger import Authorize
from contracts.types import UnpricedPolicy
from tests.factories import (
    NOON,
    Feed,
    agent,
    minutes,
    organization,
    parked,
    resumed,
    started,
    usage,
)
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
USD = 10**9
ONE_REQUEST = 7_500_000


def ask(request_id: str = "a1", **changes) -> Authorize:
    values = {
        "request_id": request_id,
        "run_id": "r1",
        "root_run_id": "r1",
        "agent_id": "coder",
        "root_agent_id": "coder",
        "user_id": "user-1",
        "started_by_user_id": "user-1",
        "model": "claude-opus-4-6",
        "provider": "anthropic",
    }
    return Authorize(**(values | changes))


async def know(room: LedgerRoom, feed: Feed, *, agent_cap: int | None, org_cap: int | None) -> None:
    await room.know(feed)
    newer = organization(monthly_budget_nanousd=org_cap, entity_revision=2)
    await room.hear(
        [feed.directory(newer, "acme"), feed.directory(agent("coder", agent_cap), "coder")]
    )


async def test_an_organization_the_ledger_does_not_know_is_refused(room: LedgerRoom):
    answer = await room.authorize(ask(), org="nobody")
    assert not answer.allowed
    assert answer.refusal.code == "organization_unknown"
    assert await room.rows("SELECT * FROM admission") == []
    assert await room.rows("SELECT * FROM run") == []


async def test_allowed_under_its_caps_with_what_remains(room: LedgerRoom, feed: Feed):
    await know(room, feed, agent_cap=10 * USD, org_cap=50 * USD)
    await room.hear([feed.channel(started("r1", budget_nanousd=USD))])
    await room.hear([feed.channel(usage("q1", "r1"))])
    answer = await room.authorize(ask())
    assert answer.allowed
    assert [(cap.scope, cap.limit_nanousd) for cap in answer.remaining] == [
        ("run", USD),
        ("agent", 10 * USD),
        ("organization", 50 * USD),
    ]
    assert all(cap.remaining_nanousd == cap.limit_nanousd - ONE_REQUEST for cap in answer.remaining)


@pytest.mark.parametrize(
    ("run_cap", "agent_cap", "org_cap", "scope"),
    [
        (1, 1, 1, "run"),
        (None, 1, 1, "agent"),
        (None, None, 1, "organization"),
        (None, USD, 1, "organization"),
        (USD, 1, USD, "agent"),
    ],
)
async def test_the_narrowest_cap_that_binds_is_named(
    room: LedgerRoom, feed: Feed, run_cap, agent_cap, org_cap, scope
):
    await know(room, feed, agent_cap=agent_cap, org_cap=org_cap)
    await room.hear([feed.channel(started("r1", budget_nanousd=run_cap))])
    await room.hear([feed.channel(usage("q1", "r1"))])
    answer = await room.authorize(ask())
    assert not answer.allowed
    assert answer.refusal.scope == scope
    assert answer.refusal.spent_nanousd == ONE_REQUEST
    assert "0.0075 USD" in answer.sentence


async def test_spent_equal_to_the_limit_refuses_and_one_nano_less_does_not(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed, agent_cap=ONE_REQUEST, org_cap=None)
    await room.hear([feed.channel(usage("q1", "r1")), feed.channel(started("r1"))])
    assert not (await room.authorize(ask("a1"))).allowed
    raised = agent("coder", ONE_REQUEST + 1, entity_revision=2, cap_revision=2)
    await room.hear([feed.directory(raised, "coder")])
    assert (await room.authorize(ask("a2"))).allowed


async def test_the_same_question_gets_the_same_answer_however_the_world_moved(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed, agent_cap=ONE_REQUEST, org_cap=None)
    first = await room.authorize(ask("a1"))
    await room.hear([feed.channel(usage("q1", "r1")), feed.channel(started("r1"))])
    assert await room.authorize(ask("a1")) == first
    assert not (await room.authorize(ask("a2"))).allowed
    with pytest.raises(AlreadyExists):
        await room.authorize(ask("a1", model="gpt-5"))
    assert len(await room.rows("SELECT * FROM admission")) == 2


async def test_a_question_before_the_start_makes_a_provisional_run(room: LedgerRoom, feed: Feed):
    await know(room, feed, agent_cap=None, org_cap=None)
    await room.authorize(ask(run_id="c", root_run_id="r", agent_id="helper"))
    child, root = await room.run("c"), await room.run("r")
    assert child.provisional
    assert root.provisional
    assert child.root_run_id == "r"
    await room.hear([feed.channel(usage("q1", "c"))])
    assert (await room.run("r")).totals.cost_nanousd == ONE_REQUEST
    await room.hear([feed.channel(started("c", agent_id="real"))])
    corrected = await room.run("c")
    assert (corrected.agent_id, corrected.root_run_id) == ("real", "c")
    assert (await room.run("r")).totals.cost_nanousd == 0


async def test_inside_a_delegation_the_roots_agent_is_capped(room: LedgerRoom, feed: Feed):
    await know(room, feed, agent_cap=ONE_REQUEST, org_cap=None)
    await room.hear([feed.directory(agent("helper", 1), "helper")])
    child = started("c", agent_id="helper", root_run_id="r1", parent_run_id="r1")
    await room.hear([feed.channel(started("r1")), feed.channel(child)])
    question = ask("a1", run_id="c", root_run_id="r1", agent_id="helper")
    assert (await room.authorize(question)).allowed
    await room.hear([feed.channel(usage("q1", "c"))])
    refused = await room.authorize(ask("a2", run_id="c", root_run_id="r1", agent_id="helper"))
    assert (refused.refusal.scope, refused.refusal.id) == ("agent", "coder")


async def test_free_models_pass_and_unpriced_ones_follow_the_policy(room: LedgerRoom, feed: Feed):
    await know(room, feed, agent_cap=None, org_cap=0)
    free = ask("a1", provider="openrouter", model="deepseek/deepseek-r1:free")
    assert (await room.authorize(free)).allowed
    unknown = ask("a2", model="no-such-model")
    assert (await room.authorize(unknown)).refusal.code == "budget_exceeded"
    strict = organization(
        entity_revision=3, unpriced_policy=UnpricedPolicy.REFUSE, monthly_budget_nanousd=USD
    )
    await room.hear([feed.directory(strict, "acme")])
    refused = await room.authorize(ask("a3", model="no-such-model"))
    assert (refused.refusal.code, refused.unpriced) == ("unpriced_model", False)
    as_floor = organization(entity_revision=4, monthly_budget_nanousd=USD)
    await room.hear([feed.directory(as_floor, "acme")])
    allowed = await room.authorize(ask("a4", model="no-such-model"))
    assert (allowed.allowed, allowed.unpriced) == (True, True)
    assert not (await room.authorize(ask("a5"))).unpriced


async def test_a_floor_says_so_in_the_answer(room: LedgerRoom, feed: Feed):
    await know(room, feed, agent_cap=USD, org_cap=None)
    await room.hear([feed.channel(usage("q1", "r1", model="no-such-model"))])
    await room.hear([feed.channel(started("r1"))])
    answer = await room.authorize(ask())
    assert answer.allowed
    assert answer.partial


async def test_must_fit_refuses_what_could_cost_more_than_remains(room: LedgerRoom, feed: Feed):
    await know(room, feed, agent_cap=USD, org_cap=None)
    fits = {"must_fit": True, "cost_nanousd_max": USD}
    assert (await room.authorize(ask("a1", **fits))).allowed
    assert not (await room.authorize(ask("a2", **(fits | {"cost_nanousd_max": USD + 1})))).allowed
    counted = {"must_fit": True, "input_tokens_max": 200_001, "output_tokens_max": 0}
    assert not (await room.authorize(ask("a3", **counted))).allowed
    loose = {"must_fit": False, "cost_nanousd_max": USD + 1}
    assert (await room.authorize(ask("a4", **loose))).allowed


async def test_another_channels_run_is_not_asked_about(room: LedgerRoom, feed: Feed):
    await know(room, feed, agent_cap=None, org_cap=None)
    await room.hear([feed.channel(started("r1"))])
    with pytest.raises(Rejected):
        await room.authorize(ask(), channel_id="c2")


async def test_many_at_once_are_each_answered_once(room: LedgerRoom, feed: Feed):
    """Two deciding processes and many askers, the same request asked on both."""
    await know(room, feed, agent_cap=None, org_cap=USD)
    other = LedgerRoom(room.database._dsn)
    other.clock.at = room.clock.at + minutes(1)
    loops = [asyncio.ensure_future(one.authorizer.group.run()) for one in (room, other)]
    try:
        from services.ledger.requests.facts import Asked

        asked = [
            Asked("acme", "c1", ask(f"a{number}", run_id=f"r{number}", root_run_id=f"r{number}"))
            for number in range(200)
        ]
        first, second = await asyncio.gather(
            asyncio.gather(*(room.authorizer.group.submit(one) for one in asked)),
            asyncio.gather(*(other.authorizer.group.submit(one) for one in asked)),
        )
    finally:
        for loop in loops:
            loop.cancel()
        await other.close()
    assert first == second
    assert len(await room.rows("SELECT * FROM admission")) == 200


async def test_an_authorized_request_is_billed_in_the_month_of_its_authorization(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed, agent_cap=None, org_cap=USD)
    room.clock.at = room.clock.at.replace(day=30, hour=23, minute=59)
    await room.authorize(ask("q1"))
    after = room.clock.at + minutes(3)
    room.clock.at = after
    report = usage("q1", "r1", occurred_at=after, tokens=Tokens(input=1_000, output=100))
    await room.hear([feed.channel(report, at=after)])
    months = await room.rows("SELECT month FROM entry")
    assert [row["month"] for row in months] == ["2026-11"]


def paid(request_id: str, run_id: str, usd: str):
    """A request whose provider says what it cost."""
    return usage(
        request_id, run_id, provider_cost=ProviderCost(amount=usd, currency="USD"), model="any"
    )


@pytest.mark.parametrize(
    ("agent_usd", "org_usd", "spent_usd", "refused_by"),
    [
        # The seed's own numbers: no cap is the smaller of two.
        (5, 50, "4.99", None),
        (5, 50, "5", "agent"),
        (100, 10, "9.99", None),
        (100, 10, "10", "organization"),
    ],
)
async def test_each_cap_measures_its_own(
    room: LedgerRoom, feed: Feed, agent_usd, org_usd, spent_usd, refused_by
):
    await know(room, feed, agent_cap=agent_usd * USD, org_cap=org_usd * USD)
    await room.hear([feed.channel(started("r1")), feed.channel(paid("q1", "r1", spent_usd))])
    answer = await room.authorize(ask())
    assert (answer.refusal.scope if answer.refusal else None) == refused_by


async def test_a_neighbours_runs_exhaust_no_agents_cap(room: LedgerRoom, feed: Feed):
    """facts.md 2.9: an agent's cap measured against the organization's total is no cap."""
    await know(room, feed, agent_cap=5 * USD, org_cap=50 * USD)
    await room.hear(
        [feed.channel(started("r2", agent_id="other")), feed.channel(paid("q1", "r2", "49"))]
    )
    answer = await room.authorize(ask())
    assert answer.allowed
    assert [(cap.scope, cap.remaining_nanousd) for cap in answer.remaining] == [
        ("agent", 5 * USD),
        ("organization", USD),
    ]


async def test_a_run_that_was_parked_is_not_counted_twice(room: LedgerRoom, feed: Feed):
    """The seed: 6 of 10 spent, parked, resumed; `6 + 6 = 12` refused it with 4 to go."""
    await know(room, feed, agent_cap=10 * USD, org_cap=10 * USD)
    await room.hear(
        [
            feed.channel(started("r1")),
            feed.channel(paid("q1", "r1", "6")),
            feed.channel(parked("r1", NOON + minutes(2))),
            feed.channel(resumed("r1", NOON + minutes(9))),
        ]
    )
    answer = await room.authorize(ask())
    assert answer.allowed
    assert {cap.remaining_nanousd for cap in answer.remaining} == {4 * USD}
