"""Caps that are near or that stop a run: each said once, whoever sees it first."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import orjson
import pytest

from contracts.channel import Tokens
from contracts.types import ChannelRight
from services.ledger.requests.authorize import Authorizer
from services.ledger.requests.facts import Asked
from shared.outbox import derived_id
from tests.factories import (
    NOON,
    Feed,
    agent,
    belongs,
    channel,
    department,
    organization,
    started,
    usage,
)
from tests.integration.ledger.test_authorize import ask
from tests.integration.ledger.test_departments import handled
from tests.ledger_room import BOOK, LedgerRoom

pytestmark = pytest.mark.integration
ONE_REQUEST = 7_500_000


async def said(room: LedgerRoom, name: str) -> list[dict[str, Any]]:
    """What waits to be said, in the order in which it was written."""
    rows = await room.rows(
        "SELECT body FROM outbox WHERE subject LIKE $1 ORDER BY id", f"%.ledger.{name}.v1"
    )
    return [orjson.loads(row["body"]) for row in rows]


async def scopes(room: LedgerRoom, name: str) -> list[tuple[str, str, int]]:
    found = [event["data"] for event in await said(room, name)]
    return sorted((data["scope"], data["id"], data["cap_revision"]) for data in found)


def request(feed: Feed, number: int, run_id: str = "r1", **changes: Any) -> Any:
    return feed.channel(usage(f"q{number}", run_id, **changes))


async def test_each_cap_is_warned_of_once_when_four_fifths_are_spent(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear(
        [
            feed.directory(agent("coder", 5 * ONE_REQUEST), "coder"),
            feed.directory(
                department("sales", belongs("ana"), cap=10 * ONE_REQUEST, lead_user_id="lea"),
                "sales",
            ),
            feed.directory(
                organization(entity_revision=2, monthly_budget_nanousd=15 * ONE_REQUEST), "acme"
            ),
            feed.channel(started("r1", started_by_user_id="ana")),
        ]
    )
    seen = []
    for number in range(14):
        await room.hear([request(feed, number)])
        seen.append([scope for scope, _, _ in await scopes(room, "cap_warned")])
    firsts = [seen.index(found) + 1 for found in map(list, dict.fromkeys(map(tuple, seen)))]
    assert firsts == [1, 4, 8, 12]
    assert seen[-1] == ["agent", "department", "organization"]
    of_department = (await said(room, "cap_warned"))[1]
    assert of_department["data"] == {
        "scope": "department",
        "id": "sales",
        "name": "Sales",
        "lead_user_id": "lea",
        "month": "2026-11",
        "limit_nanousd": 10 * ONE_REQUEST,
        "spent_nanousd": 8 * ONE_REQUEST,
        "held_nanousd": 0,
        "partial": False,
        "cap_revision": 1,
        "threshold_percent": 80,
        "at": of_department["time"],
    }
    assert await said(room, "cap_stopped") == []


async def test_a_cap_that_is_lowered_warns_at_once_and_again_per_revision(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    await room.hear([feed.channel(started("r1")), *(request(feed, n) for n in range(4))])
    for revision, limit in ((2, 6), (3, 5), (4, 5), (5, 1)):
        # The fourth state has another name only: its cap is the third's.
        state = organization(
            entity_revision=revision,
            cap_revision=revision if revision != 4 else 3,
            monthly_budget_nanousd=limit * ONE_REQUEST,
            name=f"Acme {revision}",
        )
        await room.hear([feed.directory(state, "acme")])
    assert await scopes(room, "cap_warned") == [
        ("organization", "acme", 3),
        ("organization", "acme", 5),
    ]
    published = agent("coder", 4 * ONE_REQUEST)
    of_sales = department("sales", belongs("user-1"), cap=3 * ONE_REQUEST)
    # In one batch with who belongs: what that moves is warned of by whoever moves it.
    await room.hear([feed.directory(published, "coder"), feed.directory(of_sales, "sales")])
    assert (await scopes(room, "cap_warned"))[:2] == [
        ("agent", "coder", 1),
        ("department", "sales", 1),
    ]


async def test_a_month_that_is_over_is_not_warned_of_and_late_money_counts(
    room: LedgerRoom, feed: Feed
):
    room.clock.at = NOON.replace(month=12, day=1, hour=1)
    await room.know(feed)
    await room.hear([feed.directory(channel("hist", ChannelRight.BACKFILL), "hist")])
    cap = organization(entity_revision=2, monthly_budget_nanousd=ONE_REQUEST)
    await room.hear([feed.directory(cap, "acme")])
    old = usage("q1", "h1", occurred_at=NOON - timedelta(days=20))
    await room.hear([feed.channel(old, channel_id="hist")])
    assert await said(room, "cap_warned") == []
    late = room.clock.at - timedelta(hours=3)
    await room.hear([feed.channel(usage("q2", "r1", occurred_at=late), at=room.clock.at)])
    (event,) = await said(room, "cap_warned")
    assert (event["data"]["month"], event["data"]["spent_nanousd"]) == ("2026-12", ONE_REQUEST)


async def test_a_department_is_warned_of_and_stops_once_more_in_the_next_month(
    room: LedgerRoom, feed: Feed
):
    """One revision of its cap in two months; whatever is said again says nothing again."""
    await room.know(feed)
    sales = department("sales", belongs("ana"), cap=2 * ONE_REQUEST)
    await room.hear([feed.directory(sales, "sales")])
    await room.hear([feed.channel(started("r1", started_by_user_id="ana"))])
    for month, number in ((11, 0), (12, 10)):
        room.clock.at = NOON.replace(month=month)
        spent = [request(feed, number + n, occurred_at=room.clock.at) for n in range(3)]
        await room.hear([*spent, *spent], batch=1)
        for again in ("a", "b"):
            asked = ask(f"{again}{month}", started_by_user_id="ana")
            assert not (await room.authorize(asked)).allowed
    for name in ("cap_warned", "cap_stopped"):
        told = [event["data"] for event in await said(room, name)]
        assert [(each["id"], each["cap_revision"], each["month"]) for each in told] == [
            ("sales", 1, "2026-11"),
            ("sales", 1, "2026-12"),
        ], name


async def test_a_floor_is_said_to_be_one(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    cap = organization(entity_revision=2, monthly_budget_nanousd=ONE_REQUEST)
    await room.hear([feed.directory(cap, "acme")])
    await room.hear([request(feed, 1, model="no-such-model"), request(feed, 2)])
    (event,) = await said(room, "cap_warned")
    assert event["data"]["partial"]


async def test_a_replay_says_nothing_again(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    events = [
        feed.directory(organization(entity_revision=2, monthly_budget_nanousd=1), "acme"),
        feed.channel(started("r1")),
        request(feed, 1),
    ]
    await room.hear(events)
    before = await said(room, "cap_warned")
    assert len(before) == 1
    await room.rows("DELETE FROM inbox")
    await room.hear(events)
    await room.hear([request(feed, 2)])
    assert await said(room, "cap_warned") == before


async def test_who_commits_last_sees_what_both_have_spent(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    cap = organization(entity_revision=2, monthly_budget_nanousd=2 * ONE_REQUEST)
    await room.hear([feed.directory(cap, "acme")])
    async with room.uncommitted("CHANNEL", [request(feed, 1, "r1")]):
        other = asyncio.create_task(room.consumers["CHANNEL"].handle([request(feed, 2, "r2")]))
        await room.waits_or_ends(other)
        assert await said(room, "cap_warned") == []
    await other
    (event,) = await said(room, "cap_warned")
    assert event["data"]["spent_nanousd"] == 2 * ONE_REQUEST


async def test_a_lowered_cap_waits_for_what_is_spent_under_the_higher_one(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    lowered = organization(entity_revision=2, cap_revision=2, monthly_budget_nanousd=ONE_REQUEST)
    async with room.uncommitted("CHANNEL", [request(feed, 1)]):
        word = feed.directory(lowered, "acme")
        change = asyncio.create_task(room.consumers["DIRECTORY"].handle([word]))
        await room.waits_or_ends(change)
    await change
    assert await scopes(room, "cap_warned") == [("organization", "acme", 2)]


@pytest.mark.parametrize("round_", range(5))
async def test_processes_that_cross_a_threshold_together_say_it_once(
    room: LedgerRoom, feed: Feed, round_: int
):
    """Each alone is below it, and neither sees what the other has not committed."""
    await room.know(feed)
    cap = organization(entity_revision=2, monthly_budget_nanousd=10 * ONE_REQUEST)
    await room.hear([feed.directory(cap, "acme")])
    batches = [[request(feed, 2 * n, f"r{n}"), request(feed, 2 * n + 1, f"r{n}")] for n in range(4)]
    await asyncio.gather(*(handled(room, "CHANNEL", batch) for batch in batches))
    (event,) = await said(room, "cap_warned")
    assert event["data"]["spent_nanousd"] == 8 * ONE_REQUEST


@pytest.mark.parametrize("round_", range(8))
async def test_a_cap_that_is_lowered_while_money_is_spent_is_warned_of(
    room: LedgerRoom, feed: Feed, round_: int
):
    """Neither is near with the other's old state: one of the two has to see both."""
    await room.know(feed)
    await room.hear([feed.channel(started("r1")), request(feed, 0)])
    lowered = organization(
        entity_revision=2, cap_revision=2, monthly_budget_nanousd=5 * ONE_REQUEST
    )
    words = [
        handled(room, "DIRECTORY", [feed.directory(lowered, "acme")]),
        *(handled(room, "CHANNEL", [request(feed, n, f"r{n}")]) for n in range(1, 4)),
    ]
    if round_ % 2:
        words.reverse()
    await asyncio.gather(*words)
    assert await scopes(room, "cap_warned") == [("organization", "acme", 2)]


async def test_a_stop_is_said_once_per_cap_revision_with_the_first_run(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    sales = department("sales", belongs("user-1"), cap=ONE_REQUEST, lead_user_id="lea")
    await room.hear([feed.directory(sales, "sales")])
    await room.hear([feed.channel(started("r1")), request(feed, 1)])
    for number in range(3):
        answer = await room.authorize(ask(f"a{number}"))
        assert answer.refusal is not None
        assert answer.refusal.scope == "department"
    repeated = await room.authorize(ask("a0"))
    assert not repeated.allowed
    (event,) = await said(room, "cap_stopped")
    data = event["data"]
    assert (data["scope"], data["id"], data["lead_user_id"], data["run_id"]) == (
        "department",
        "sales",
        "lea",
        "r1",
    )
    assert (data["limit_nanousd"], data["spent_nanousd"], data["threshold_percent"]) == (
        ONE_REQUEST,
        ONE_REQUEST,
        100,
    )
    raised = department("sales", belongs("user-1"), cap=2 * ONE_REQUEST, revision=2)
    await room.hear([feed.directory(raised, "sales"), request(feed, 2)])
    assert not (await room.authorize(ask("a9"))).allowed
    assert await scopes(room, "cap_stopped") == [
        ("department", "sales", 1),
        ("department", "sales", 2),
    ]


async def test_a_runs_own_cap_and_a_request_that_does_not_fit_stop_no_months_cap(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    cap = organization(entity_revision=2, monthly_budget_nanousd=5 * ONE_REQUEST)
    await room.hear([feed.directory(cap, "acme")])
    await room.hear([feed.channel(started("r1", budget_nanousd=ONE_REQUEST)), request(feed, 1)])
    of_run = await room.authorize(ask("a1"))
    assert of_run.refusal.scope == "run"
    large = ask("a2", run_id="r2", root_run_id="r2", must_fit=True, cost_nanousd_max=10**12)
    assert (await room.authorize(large)).refusal.scope == "organization"
    assert await said(room, "cap_stopped") == []
    await room.hear([request(feed, n, tokens=Tokens(input=10_000)) for n in range(2, 4)])
    ingestion = ask("a3", run_id=None, root_run_id=None, agent_id=None, root_agent_id=None)
    assert not (await room.authorize(ingestion)).allowed
    (event,) = await said(room, "cap_stopped")
    assert event["data"]["run_id"] is None


async def test_answering_processes_say_a_stop_once(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.directory(agent("coder", ONE_REQUEST), "coder")])
    await room.hear([feed.channel(started("r1")), request(feed, 1)])
    processes = [Authorizer(database=room.database, book=BOOK, clock=room.clock) for _ in range(4)]
    answers = await asyncio.gather(
        *(
            process._decide([Asked("acme", "c1", ask(f"a{n}.{m}")) for m in range(5)])
            for n, process in enumerate(processes)
        )
    )
    assert not any(answer.allowed for group in answers for answer in group)
    assert await scopes(room, "cap_stopped") == [("agent", "coder", 1)]


async def test_its_id_comes_from_the_cap_and_not_from_what_crossed_it(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    cap = organization(entity_revision=2, monthly_budget_nanousd=1)
    await room.hear([feed.directory(cap, "acme"), request(feed, 1)])
    (event,) = await said(room, "cap_warned")
    key = ("cap_warned", "acme", "organization", "acme", "1", "2026-11", "80")
    assert event["id"] == derived_id(*key)
