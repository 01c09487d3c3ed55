"""Acceptance cases of the earlier systems that no other test tells (facts.md 2.5, 2.8, 3.8)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from contracts.ledger import GetSpend, ListRuns, RunFilter, Spend
from contracts.types import RunStatus
from tests.factories import (
    NOON,
    Feed,
    agent,
    finished,
    minutes,
    organization,
    started,
    usage,
)
from tests.integration.ledger.asking import ask
from tests.integration.ledger.test_delegations import USD, delegated, spent
from tests.ledger_room import LedgerRoom, _question

pytestmark = pytest.mark.integration


async def window(room: LedgerRoom, start: Any, end: Any = None, org: str = "acme") -> Spend:
    asked = GetSpend(started_from=start, started_to=end)
    return await room.reader.answer_get_spend(_question(asked, org))


async def ordered(room: LedgerRoom, order_by: str, *, descending: bool = True) -> list[str]:
    asked = ListRuns(order_by=order_by, descending=descending, filter=RunFilter())
    page = await room.reader.answer_list_runs(_question(asked, "acme"))
    return [run.run_id for run in page.items]


async def test_four_numbers_of_one_screen_agree(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    said = (
        started("root"),
        spent("q1", "root", "0.60"),
        delegated("child", "root"),
        spent("q2", "child", "0.40", provider="openai"),
    )
    await room.hear([feed.channel(one) for one in said])
    spend, (cap,) = await room.spend(), (await room.caps()).items
    (row,) = (await room.runs()).items
    assert (
        spend.cost_nanousd
        == spend.month_to_date_nanousd
        == cap.spent_nanousd
        == row.totals.cost_nanousd
        == USD
    )


async def test_the_window_has_two_ends_and_the_month_ignores_it(room: LedgerRoom, feed: Feed):
    """An agent whose only runs predate the window is absent, not a row of zeros."""
    await room.know(feed, "acme", "other")
    await room.hear([feed.directory(agent("late", 5 * USD), "late")])
    early, late = NOON - timedelta(days=2), NOON
    said = (
        started("r1", agent_id="early", started_at=early),
        spent("q1", "r1", "0.25", occurred_at=early),
        started("r2", agent_id="late", started_at=late),
        spent("q2", "r2", "0.50", occurred_at=late),
        started("r3", agent_id="early", started_at=early - minutes(1)),
        spent("q3", "r3", "0.10", occurred_at=early),
    )
    await room.hear([feed.channel(one) for one in said])
    now = await window(room, late)
    assert [(row.agent_id, row.cost_nanousd) for row in now.by_agent] == [("late", USD // 2)]
    assert now.by_agent[0].monthly_cap_nanousd == 5 * USD
    before = await window(room, early, late - timedelta(microseconds=1))
    assert [(row.agent_id, row.cost_nanousd) for row in before.by_agent] == [("early", USD // 4)]
    assert before.by_agent[0].monthly_cap_nanousd is None, "no cap is null, not zero"
    assert before.by_agent[0].month_to_date_nanousd == 35 * USD // 100, "whatever the window"
    assert (await window(room, early, late)).run_count == 2, "both ends are included"
    elsewhere = await window(room, early, org="other")
    assert (elsewhere.cost_nanousd, elsewhere.by_agent) == (0, ())
    assert elsewhere.month_to_date_nanousd == 0, "an empty month is zero and not unknown"


async def test_a_model_without_a_price_is_a_floor_of_its_tree_alone(room: LedgerRoom, feed: Feed):
    """Three unpriced delegates under one parent are one floor; a priced neighbour is none."""
    await room.know(feed)
    said = [started("root"), started("other"), spent("p", "other", "0.10")]
    for number in range(3):
        said += [
            delegated(f"c{number}", "root"),
            usage(f"q{number}", f"c{number}", model="no-such-model"),
        ]
    await room.hear([feed.channel(one) for one in said])
    spend = await room.spend()
    assert (spend.partial_run_count, spend.run_count) == (1, 2)


async def test_without_caps_nothing_is_enforced(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    uncapped = organization(entity_revision=2, monthly_budget_nanousd=None, cap_revision=2)
    await room.hear([feed.directory(uncapped, "acme")])
    await room.hear([feed.channel(started("r1")), feed.channel(spent("q1", "r1", "1000000"))])
    answer = await room.authorize(ask("a1"))
    assert (answer.allowed, answer.remaining) == (True, ())


async def test_filters_of_the_history(room: LedgerRoom, feed: Feed):
    await room.know(feed, "acme", "other")
    said = [started(f"r{number}", started_at=NOON + minutes(number)) for number in range(4)]
    said += [
        finished("r0"),
        finished("r1", status=RunStatus.FAILED),
        finished("r2", status=RunStatus.CANCELLED),
        delegated("child", "r3", root="r3"),
    ]
    await room.hear([feed.channel(one) for one in said])

    async def found(org: str = "acme", **narrowed: Any) -> set[str]:
        page = await room.runs(org, **narrowed)
        assert page.total == len(page.items), "the count narrows with the page"
        return {run.run_id for run in page.items}

    both = (RunStatus.COMPLETED, RunStatus.FAILED)
    assert await found(statuses=both) == {"r0", "r1"}
    assert await found(statuses=()) == {"r0", "r1", "r2", "r3"}, "nothing chosen narrows nothing"
    assert await found(started_from=NOON + minutes(1), started_to=NOON + minutes(2)) == {"r1", "r2"}
    assert await found(parent_run_id="r3") == {"child"}
    assert await found("other", parent_run_id="r3") == set()
    assert await found("other") == set(), "filters cannot leave the tenant"


async def test_orders_are_total_and_a_fan_out_is_one_run(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    said = []
    for number, name in enumerate(("a", "b", "c")):
        said += [started(name), finished(name, ended_at=NOON + minutes(9 - number))]
        said += [delegated(f"{name}{n}", name, root=name) for n in range(3)]
    await room.hear([feed.channel(one) for one in said])
    assert (await room.runs()).total == 3
    for order_by in ("started_at", "cost", "tokens"):
        # They tie in all of them: the id decides.
        assert await ordered(room, order_by) == ["c", "b", "a"]
        assert await ordered(room, order_by, descending=False) == ["a", "b", "c"]
    assert await ordered(room, "duration") == ["a", "b", "c"], "slowest first"
