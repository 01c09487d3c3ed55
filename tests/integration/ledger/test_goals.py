"""A goal may have a budget over all its months; its channel says so once."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from contracts.types import CapMode, Surface
from tests.admission_checker import Checker
from tests.factories import Feed, minutes, organization, started
from tests.integration.ledger.asking import USD, overruns, paid
from tests.integration.ledger.reconciling import assert_rebuilding_agrees
from tests.integration.ledger.test_routines import about, goal, routine
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
CENT = USD // 100
OCTOBER = datetime(2026, 10, 31, 23, 50, tzinfo=UTC)


def working(run_id: str, **changes):
    return started(run_id, **({"goal_id": "green"} | changes))


async def test_it_refuses_when_all_months_together_have_used_it_up(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(goal())])
    room.clock.at = OCTOBER + minutes(5)
    old = [working("r1", started_at=OCTOBER), paid("q1", "0.60", "r1", occurred_at=OCTOBER)]
    await room.hear([feed.channel(data, at=OCTOBER, stored_at=OCTOBER) for data in old])
    room.clock.at = OCTOBER + minutes(60 * 24)
    now = room.clock.at
    new = [working("r2", started_at=now), paid("q2", "0.40", "r2", occurred_at=now)]
    # Arrived in November for October: once is enough for a sum without months.
    late = paid("q3", "0.10", "r1", occurred_at=OCTOBER + minutes(5))
    await room.hear([feed.channel(data, at=now, stored_at=now) for data in (*new, late)])
    sums = await room.rows(
        "SELECT month, cost_nanousd, late_nanousd FROM month_spend WHERE scope = 'goal'"
    )
    assert [tuple(row) for row in sums] == [("", 110 * CENT, 0)]
    answer = await room.authorize(about("a1", "r2"))
    assert answer.refusal is not None
    assert (answer.refusal.scope, answer.refusal.id) == ("goal", "green")
    assert answer.sentence == (
        "The budget of goal green is exhausted: 1.1000 USD of 1.00 USD are spent."
    )
    assert [row.scope for row in (await room.caps()).items] == ["organization"]
    assert await room.rows("SELECT 1 FROM cap_notice") == []
    await assert_rebuilding_agrees(room)


async def test_of_several_words_the_least_holds_in_any_order(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    for name, words in {"a": [5, 3, None], "b": [None, 3, 5], "c": [3, None, 5, 3]}.items():
        for number, cents in enumerate(words):
            budget = None if cents is None else cents * CENT
            said = goal(budget, goal_id=name, turns_max=number + 1)
            await room.hear([feed.channel(said)])
    kept = await room.rows("SELECT goal_id, budget_nanousd FROM goal ORDER BY goal_id")
    assert [tuple(row) for row in kept] == [("a", 3 * CENT), ("b", 3 * CENT), ("c", 3 * CENT)]


async def test_its_place_is_between_routine_and_person(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    run = working("r1", routine_id="daily", surface=Surface.PROACTIVE, user_id="ana")
    await room.hear([feed.channel(data) for data in (routine(), goal(), run)])
    answer = await room.authorize(about("a1", "r1"))
    scopes = [cap.scope for cap in answer.remaining]
    assert scopes == ["routine", "goal", "person", "organization"]


async def test_strict_holds_under_it_in_every_order(room: LedgerRoom, feed: Feed):
    checker = Checker(room.database._dsn)
    await room.know(feed)
    strict = {"cap_mode": CapMode.STRICT, "monthly_budget_nanousd": None}
    state = organization(entity_revision=2, **strict)
    await room.hear([feed.directory(state, "acme"), feed.channel(goal())])
    said = {"goal_id": "green"}
    assert (await room.authorize(about("a1", "r1", 70 * CENT, **said))).allowed
    refused = await room.authorize(about("a2", "r2", 40 * CENT, **said))
    assert refused.refusal is not None
    assert (refused.refusal.scope, refused.refusal.held_nanousd) == ("goal", 70 * CENT)
    await checker.look()
    await room.hear([feed.channel(goal(50 * CENT))])
    await checker.look()
    await room.hear([feed.channel(paid("a1", "0.30", "r1")), feed.channel(working("r1"))])
    await checker.look()
    # Money that is told late to have been the goal's.
    await room.hear([feed.channel(paid("u1", "0.90", "r3"))])
    await room.hear([feed.channel(working("r3"))])
    await checker.look()
    found = sorted((row.scope, row.cause, row.month) for row in (await overruns(room)).items)
    assert found == [("goal", "cap_lowered", None), ("goal", "reattributed", None)]
    await room.keeper.keep()
    await checker.look()
    await assert_rebuilding_agrees(room)


async def test_a_switch_to_strict_finds_what_is_exceeded(room: LedgerRoom, feed: Feed):
    checker = Checker(room.database._dsn)
    await room.know(feed)
    said = [goal(), working("r1"), paid("q1", "1.50", "r1")]
    await room.hear([feed.channel(data) for data in said])
    state = organization(entity_revision=2, cap_mode=CapMode.STRICT)
    await room.hear([feed.directory(state, "acme")])
    await checker.look()
    (row,) = (await overruns(room)).items
    assert (row.scope, row.cause, row.amount_nanousd) == ("goal", "mode_switched", 50 * CENT)
