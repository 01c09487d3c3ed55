"""What the platform does on its own initiative for a person is capped per person and month."""

from __future__ import annotations

import pytest

from contracts.directory import MemberChanged
from contracts.ledger import CapLeft
from contracts.types import CapMode, Surface
from tests.admission_checker import Checker
from tests.factories import NOON, Feed, agent, belongs, department, minutes, organization, started
from tests.integration.ledger.asking import USD, ask, overruns, paid
from tests.integration.ledger.reconciling import assert_rebuilding_agrees
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
CENT = USD // 100


def proactive(run_id: str, user_id: str | None = "ana", **changes):
    values = {"surface": Surface.PROACTIVE, "user_id": user_id, "started_by_user_id": None}
    return started(run_id, **(values | changes))


def about(request_id: str, run_id: str, cost: int | None = CENT, **changes):
    """A question that says no more of its run than its id."""
    values = {"run_id": run_id, "root_run_id": run_id, "user_id": None, "started_by_user_id": None}
    return ask(request_id, cost, **(values | changes))


def by_person(left: tuple[CapLeft, ...]) -> dict[str, tuple[int, int]]:
    return {cap.id: (cap.spent_nanousd, cap.limit_nanousd) for cap in left if cap.scope == "person"}


async def know(room: LedgerRoom, feed: Feed, *, revision: int = 2, **changes) -> None:
    state = organization(entity_revision=revision, cap_revision=revision, **changes)
    await room.hear([feed.directory(state, "acme")])


async def months(room: LedgerRoom) -> dict[str, int]:
    rows = await room.rows(
        "SELECT scope_id, cost_nanousd FROM month_spend WHERE scope = 'person' AND cost_nanousd > 0"
    )
    return {row["scope_id"]: int(row["cost_nanousd"]) for row in rows}


async def test_it_refuses_when_a_persons_proactive_work_has_used_its_limit_up(room: LedgerRoom):
    feed = Feed()
    await room.know(feed)
    ana = MemberChanged(
        entity_revision=1, user_id="ana", name="Ana", role="member", changed_at=NOON
    )
    await room.hear([feed.directory(ana, "ana")])
    await room.hear([feed.channel(proactive("night")), feed.channel(proactive("watch"))])
    await room.hear([feed.channel(paid("q1", "0.40", "night"))])
    answer = await room.authorize(about("a1", "watch"))
    assert (answer.allowed, by_person(answer.remaining)) == (True, {"ana": (40 * CENT, USD)})
    await room.hear([feed.channel(paid("q2", "0.60", "watch"))])
    answer = await room.authorize(about("a2", "night"))
    assert answer.refusal is not None
    assert (answer.refusal.scope, answer.refusal.id, answer.refusal.name) == (
        "person",
        "ana",
        "Ana",
    )
    assert (answer.refusal.spent_nanousd, answer.refusal.limit_nanousd) == (USD, USD)
    assert answer.sentence == (
        "Shared monthly budget of proactive work of Ana exhausted: 1.0000 USD of 1.00 USD are "
        "spent in 2026-11. Raise it, or wait for 2026-12."
    )
    page = await room.caps()
    assert [(row.scope, row.id, row.name, row.spent_nanousd) for row in page.items] == [
        ("organization", "acme", "Acme", USD),
        ("person", "ana", "Ana", USD),
    ]
    assert page.total == 2
    stops = await room.rows("SELECT scope, scope_id FROM cap_notice WHERE threshold_percent = 100")
    assert [tuple(row) for row in stops] == [("person", "ana")]


async def test_it_binds_nobody_else_and_nothing_else(room: LedgerRoom):
    feed = Feed()
    await room.know(feed)
    await room.hear([feed.channel(proactive("night")), feed.channel(paid("q1", "2", "night"))])
    await room.hear([feed.channel(proactive("other", "bea")), feed.channel(started("chat"))])
    await room.hear([feed.channel(proactive("nobodys", None))])
    assert not (await room.authorize(about("a0", "night"))).allowed
    other = await room.authorize(about("a1", "other"))
    assert (other.allowed, by_person(other.remaining)) == (True, {"bea": (0, USD)})
    for run_id in ("chat", "nobodys"):
        answer = await room.authorize(about(f"a-{run_id}", run_id, user_id="ana"))
        assert (answer.allowed, by_person(answer.remaining)) == (True, {})
    ingested = await room.authorize(
        ask("a9", run_id=None, root_run_id=None, surface=Surface.PROACTIVE, user_id="ana")
    )
    assert by_person(ingested.remaining) == {}


async def test_a_platform_without_such_runs_notices_nothing(room: LedgerRoom):
    feed = Feed()
    await room.know(feed)
    await know(room, feed, proactive_limit_nanousd=0)
    await room.hear([feed.channel(started("chat")), feed.channel(paid("q1", "3", "chat"))])
    answer = await room.authorize(about("a1", "chat"))
    assert [cap.scope for cap in answer.remaining] == ["organization"]
    assert [row.scope for row in (await room.caps()).items] == ["organization"]
    assert await months(room) == {}
    assert await room.rows("SELECT 1 FROM cap_state") == []


async def test_its_place_is_after_the_runs_and_before_the_agent(room: LedgerRoom):
    feed = Feed()
    await room.know(feed)
    await room.hear([feed.directory(agent("coder", 5 * USD), "coder")])
    await room.hear([feed.directory(department("sales", belongs("ana"), cap=USD), "sales")])
    root = proactive("night", budget_nanousd=USD, started_by_user_id="ana", routine_id="watch-1")
    await room.hear([feed.channel(root)])
    answer = await room.authorize(about("a1", "night"))
    assert [cap.scope for cap in answer.remaining] == [
        "run",
        "person",
        "agent",
        "department",
        "organization",
    ]


async def test_what_it_delegates_counts_whoever_the_delegate_runs_as(room: LedgerRoom):
    feed = Feed()
    await room.know(feed)
    await room.hear([feed.channel(proactive("night", system_role="suggestions"))])
    kid = started("kid", root_run_id="night", parent_run_id="night", surface=Surface.CLI)
    await room.hear([feed.channel(kid), feed.channel(paid("q1", "0.25", "kid"))])
    assert await months(room) == {"ana": 25 * CENT}
    answer = await room.authorize(about("a1", "kid", root_run_id="night"))
    assert by_person(answer.remaining) == {"ana": (25 * CENT, USD)}
    await assert_rebuilding_agrees(room)


async def test_money_moves_when_a_start_says_what_the_run_is(room: LedgerRoom):
    feed = Feed()
    await room.know(feed)
    kid = started("kid", root_run_id="night", parent_run_id="night")
    await room.hear([feed.channel(kid), feed.channel(paid("q1", "0.25", "kid"))])
    assert await months(room) == {}
    await room.hear([feed.channel(proactive("night"))])
    assert await months(room) == {"ana": 25 * CENT}
    # An earlier start holds, and says that it was bea's.
    await room.hear([feed.channel(proactive("night", "bea", started_at=NOON - minutes(1)))])
    assert await months(room) == {"bea": 25 * CENT}
    await assert_rebuilding_agrees(room)


async def test_a_question_may_say_it_before_the_start_does(room: LedgerRoom):
    feed = Feed()
    await room.know(feed)
    await room.hear([feed.channel(paid("q1", "0.25", "night"))])
    said = {"surface": Surface.PROACTIVE, "user_id": "ana"}
    first = await room.authorize(about("a1", "night", **said))
    assert by_person(first.remaining) == {"ana": (0, USD)}
    assert await months(room) == {"ana": 25 * CENT}
    new = await room.authorize(about("a2", "watch", **said))
    assert by_person(new.remaining) == {"ana": (25 * CENT, USD)}
    await room.hear([feed.channel(paid("q2", "0.10", "watch"))])
    assert await months(room) == {"ana": 35 * CENT}
    await room.hear([feed.channel(started("watch")), feed.channel(proactive("night", "bea"))])
    assert await months(room) == {"bea": 25 * CENT}
    while await room.placer.step():
        continue
    await assert_rebuilding_agrees(room)


async def test_it_is_warned_of_once_and_again_when_the_limit_changed(room: LedgerRoom):
    feed = Feed()
    await room.know(feed)
    await room.hear([feed.channel(proactive("night")), feed.channel(paid("q1", "0.80", "night"))])
    await room.hear([feed.channel(paid("q2", "0.01", "night"))])

    async def warned() -> list[tuple[str, str, int]]:
        rows = await room.rows(
            "SELECT scope, scope_id, cap_revision FROM cap_notice ORDER BY cap_revision"
        )
        return [tuple(row) for row in rows]

    assert await warned() == [("person", "ana", USD)]
    await know(room, feed, name="Acme & Co")
    assert await warned() == [("person", "ana", USD)], "the limit is the same"
    await know(room, feed, revision=3, proactive_limit_nanousd=90 * CENT)
    assert await warned() == [("person", "ana", 90 * CENT), ("person", "ana", USD)]


async def test_strict_holds_under_it_and_a_lower_limit_is_an_overrun(room: LedgerRoom):
    feed = Feed()
    checker = Checker(room.database._dsn)
    await room.know(feed)
    strict = {"cap_mode": CapMode.STRICT, "monthly_budget_nanousd": None}
    await know(room, feed, **strict)
    said = {"surface": Surface.PROACTIVE, "user_id": "ana"}
    assert (await room.authorize(about("a1", "night", 70 * CENT, **said))).allowed
    refused = await room.authorize(about("a2", "watch", 40 * CENT, **said))
    assert refused.refusal is not None
    assert (refused.refusal.scope, refused.refusal.held_nanousd) == ("person", 70 * CENT)
    assert "shared monthly budget of proactive work of ana" in refused.sentence
    await checker.look()
    assert [(row.id, row.held_nanousd) for row in (await room.caps()).items] == [("ana", 70 * CENT)]
    await room.hear([feed.channel(proactive("night")), feed.channel(paid("a1", "0.60", "night"))])
    await checker.look()
    await know(room, feed, revision=3, proactive_limit_nanousd=50 * CENT, **strict)
    await checker.look()
    (row,) = (await overruns(room)).items
    assert (row.scope, row.scope_id, row.cause, row.amount_nanousd) == (
        "person",
        "ana",
        "cap_lowered",
        10 * CENT,
    )
    assert checker.held_most == 70 * CENT
    # One that is told late to be proactive brings its money along.
    await room.hear([feed.channel(paid("u1", "0.05", "late")), feed.channel(proactive("late"))])
    await checker.look()
    causes = sorted(each.cause for each in (await overruns(room)).items)
    assert causes == ["cap_lowered", "unheld_usage"]
    await assert_rebuilding_agrees(room)


async def test_a_limit_that_was_said_before_the_ledger_kept_it_is_copied(room: LedgerRoom):
    feed = Feed()
    await room.know(feed)
    state = feed.directory(organization(proactive_limit_nanousd=3 * USD), "acme")
    await room.hear([state])
    await room.rows("UPDATE organization SET proactive_limit_nanousd = NULL")
    said = {"surface": Surface.PROACTIVE, "user_id": "ana"}
    answer = await room.authorize(about("a1", "night", **said))
    assert by_person(answer.remaining) == {"ana": (0, USD)}
    await room.hear([state])
    answer = await room.authorize(about("a2", "night", **said))
    assert by_person(answer.remaining) == {"ana": (0, 3 * USD)}
