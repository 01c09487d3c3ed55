"""A routine may have a cap of its own per month; every order of it and of goals ends alike."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.channel import GoalStarted, RoutineChanged
from contracts.types import CapMode, Surface
from tests.admission_checker import Checker
from tests.factories import Feed, agent, organization, started
from tests.integration.ledger.asking import USD, ask, overruns, paid
from tests.integration.ledger.reconciling import assert_rebuilding_agrees
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ORGS = itertools.count(1)
CENT = USD // 100


def routine(revision: int = 1, cap: int | None = USD, **changes) -> RoutineChanged:
    values = {
        "routine_id": "daily",
        "kind": "schedule",
        "name": "Daily report",
        "owner_user_id": "ana",
        "agent_id": "coder",
        "state": "active",
        "monthly_budget_nanousd": cap,
        "notification_channels": None,
        "failures_max": None,
        "result_mode": "report",
        "config_revision": revision,
    }
    return RoutineChanged(**(values | changes))


def goal(budget: int | None = USD, **changes) -> GoalStarted:
    values = {
        "goal_id": "green",
        "project_id": "project-1",
        "session_id": "session-1",
        "agent_id": "coder",
        "user_id": "ana",
        "goal": "Every test is green.",
        "turns_max": 20,
        "budget_nanousd": budget,
    }
    return GoalStarted(**(values | changes))


def scheduled(run_id: str, routine_id: str | None = "daily", **changes):
    values = {"surface": Surface.SCHEDULE, "routine_id": routine_id, "started_by_user_id": None}
    return started(run_id, **(values | changes))


def about(request_id: str, run_id: str, cost: int | None = CENT, **changes):
    """A question that says no more of its run than its id."""
    values = {"run_id": run_id, "root_run_id": run_id, "user_id": None, "started_by_user_id": None}
    return ask(request_id, cost, **(values | changes))


async def test_it_refuses_when_the_routines_month_is_used_up(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(scheduled("r1")), feed.channel(scheduled("r2"))])
    await room.hear([feed.channel(paid("q1", "1", "r1"))])
    before = await room.authorize(about("a0", "r2"))
    assert [cap.scope for cap in before.remaining] == ["organization"], "it has no cap"
    await room.hear([feed.channel(routine())])
    answer = await room.authorize(about("a1", "r2"))
    assert answer.refusal is not None
    assert (answer.refusal.scope, answer.refusal.id) == ("routine", "daily")
    assert answer.sentence.startswith("Daily report routine monthly budget exhausted: 1.0000 USD")
    assert [(row.scope, row.id, row.spent_nanousd) for row in (await room.caps()).items] == [
        ("organization", "acme", USD),
        ("routine", "daily", USD),
    ]
    notices = await room.rows("SELECT scope, threshold_percent FROM cap_notice ORDER BY 2")
    assert [tuple(row) for row in notices] == [("routine", 80), ("routine", 100)]
    # Deleted, it caps what it started; without a budget it caps nothing.
    await room.hear([feed.channel(routine(2, state="deleted"))])
    assert not (await room.authorize(about("a2", "r2"))).allowed
    await room.hear([feed.channel(routine(3, None))])
    assert (await room.authorize(about("a3", "r2"))).allowed
    assert len(await room.rows("SELECT 1 FROM cap_notice")) == 2, "nothing is said again"


async def test_its_place_is_before_the_persons(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.directory(agent("coder", 5 * USD), "coder")])
    watch = scheduled("r1", surface=Surface.PROACTIVE, user_id="ana", budget_nanousd=USD)
    kid = started("kid", root_run_id="r1", parent_run_id="r1", routine_id="other")
    await room.hear([feed.channel(routine()), feed.channel(watch), feed.channel(kid)])
    answer = await room.authorize(about("a1", "kid", root_run_id="r1", routine_id="other"))
    scopes = [cap.scope for cap in answer.remaining]
    assert scopes == ["run", "routine", "person", "agent", "organization"]


async def test_strict_holds_under_it_before_the_start_and_notes_a_lower_cap(
    room: LedgerRoom, feed: Feed
):
    checker = Checker(room.database._dsn)
    await room.know(feed)
    strict = organization(entity_revision=2, cap_mode=CapMode.STRICT, monthly_budget_nanousd=None)
    await room.hear([feed.directory(strict, "acme"), feed.channel(routine())])
    said = {"routine_id": "daily"}
    assert (await room.authorize(about("a1", "r1", 70 * CENT, **said))).allowed
    refused = await room.authorize(about("a2", "r2", 40 * CENT, **said))
    assert refused.refusal is not None
    assert (refused.refusal.scope, refused.refusal.held_nanousd) == ("routine", 70 * CENT)
    await checker.look()
    await room.hear([feed.channel(routine(2, 50 * CENT))])
    await checker.look()
    (row,) = (await overruns(room)).items
    assert (row.scope, row.cause, row.amount_nanousd) == ("routine", "cap_lowered", 20 * CENT)
    # What comes in with the change of the cap, too.
    late = [scheduled("r3"), paid("u1", "0.30", "r3"), routine(3, 40 * CENT)]
    await room.hear([feed.channel(data) for data in late])
    await checker.look()
    await assert_rebuilding_agrees(room)


@st.composite
def stories(draw):
    """Roots of routines and goals, their delegates, money, and caps that change."""
    runs = []
    for number in range(draw(st.integers(1, 4))):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        name = draw(st.sampled_from(("daily", "weekly", None)))
        surface = draw(st.sampled_from((Surface.SCHEDULE, Surface.PROACTIVE)))
        runs.append((parent, name, surface, draw(st.sampled_from(("green", None)))))
    spent = draw(
        st.lists(
            st.tuples(st.integers(0, len(runs) - 1), st.integers(1, 90)), min_size=1, max_size=5
        )
    )
    caps = st.none() | st.integers(1, 100)
    states = draw(
        st.lists(
            st.tuples(st.sampled_from(("daily", "weekly")), st.integers(1, 3), caps), max_size=6
        )
    )
    return runs, spent, states, draw(st.lists(caps, max_size=3))


def said_in(story) -> tuple[list, dict[tuple[str, str], int]]:
    """What is said, and what it comes to by routine and goal."""
    runs, spent, states, budgets = story
    roots: list[int] = []
    said: list = []
    for number, (parent, name, surface, goal_id) in enumerate(runs):
        roots.append(number if parent is None else roots[parent])
        parent_id = None if parent is None else f"r{parent}"
        named = {"root_run_id": f"r{roots[-1]}", "parent_run_id": parent_id}
        named |= {"surface": surface, "user_id": "ana", "goal_id": goal_id}
        said.append(scheduled(f"r{number}", name, **named))
    sums: dict[tuple[str, str], int] = {}
    for number, (run, cents) in enumerate(spent):
        said.append(paid(f"q{number}", f"{cents / 100:.2f}", f"r{run}"))
        _, name, _, goal_id = runs[roots[run]]
        for key in (("routine", name), ("goal", goal_id)):
            if key[1] is not None:
                sums[key] = sums.get(key, 0) + cents * CENT
    for name, revision, cents in states:
        cap = None if cents is None else cents * CENT
        said.append(routine(revision, cap, routine_id=name, name=name.title()))
    for number, cents in enumerate(budgets):
        said.append(goal(None if cents is None else cents * CENT, turns_max=number + 1))
    return said, sums


async def books_of(room: LedgerRoom, org: str):
    months = await room.rows(
        "SELECT scope, CASE WHEN scope = 'organization' THEN '' ELSE scope_id END, month, "
        "cost_nanousd FROM month_spend WHERE org = $1 AND cost_nanousd <> 0 ORDER BY 1, 2, 3",
        org,
    )
    states = await room.rows(
        "SELECT routine_id, monthly_nanousd, config_revision FROM routine WHERE org = $1 "
        "ORDER BY routine_id",
        org,
    )
    budgets = await room.rows("SELECT budget_nanousd FROM goal WHERE org = $1", org)
    return [[tuple(row) for row in rows] for rows in (months, states, budgets)]


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(story=stories(), seed=st.integers(0, 2**32))
async def test_every_order_leaves_the_same_months_and_caps(room: LedgerRoom, story, seed):
    chance = random.Random(seed)
    checker = Checker(room.database._dsn)
    books = []
    for shuffled in (False, True, True):
        org, feed = f"org-{next(ORGS)}", Feed()
        strict = organization(cap_mode=CapMode.STRICT, proactive_limit_nanousd=50 * CENT)
        await room.hear([feed.directory(strict, org, org=org)])
        said, sums = said_in(story)
        events = [feed.channel(data, org=org) for data in said]
        if shuffled:
            events += chance.choices(events, k=len(events) // 2)
            chance.shuffle(events)
        whole = list(events)
        while events:
            cut = chance.randint(1, len(events))
            await room.hear(events[:cut], batch=chance.choice((1, 3, 50)))
            await checker.look()
            events = events[cut:]
        books.append(await books_of(room, org))
        scopes = ("routine", "goal")
        counted = {row[:2]: int(row[3]) for row in books[-1][0] if row[0] in scopes}
        assert counted == sums
        await room.rows("DELETE FROM inbox WHERE org = $1", org)
        await room.hear(whole)
        assert await books_of(room, org) == books[-1], "a replay changes nothing"
    assert books[0] == books[1] == books[2]
    await assert_rebuilding_agrees(room)
