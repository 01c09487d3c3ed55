"""A platform deletes runs: nobody sees them any more, and no cent is lost (facts.md 2.3)."""

from __future__ import annotations

import asyncio
import random

import asyncpg
import pytest

from contracts.errors import Fault
from contracts.ledger import RunChanged
from contracts.types import RunStatus
from services.ledger.domain.holds import GRACE
from tests.factories import (
    NOON,
    Feed,
    agent,
    belongs,
    deleted,
    department,
    finished,
    heartbeat,
    minutes,
    started,
)
from tests.integration.ledger.asking import ask, handle_until, held, paid
from tests.integration.ledger.asking import know as strict
from tests.integration.ledger.reconciling import (
    assert_books_are_sums_of_entries,
    assert_rebuilding_agrees,
)
from tests.integration.ledger.test_delegations import USD, agents_usd, delegated, spent
from tests.ledger_room import LedgerRoom
from tests.waiting import eventually

pytestmark = pytest.mark.integration
TREE = (
    started("root", agent_id="a", started_by_user_id="ana"),
    delegated("b", "root", agent_id="b", started_by_user_id="ana"),
    delegated("c", "b", agent_id="c", started_by_user_id="ana"),
    spent("q1", "root", "0.50", key_id="k1"),
    spent("q2", "b", "0.30", provider="openai", key_id="k2"),
    spent("q3", "c", "0.20", provider="mistral", delegation_id="d-c"),
)
"""a delegates to b, b to c: 1.00 in all."""


@pytest.fixture
async def room(room_database):
    """With its owner's sign-in, to make everything again."""
    database = await room_database("ledger")
    made = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    yield made
    await made.close()


async def know(room: LedgerRoom, feed: Feed, *orgs: str) -> None:
    await room.know(feed, *orgs)
    for org in orgs or ("acme",):
        await room.hear([feed.directory(agent(name), name, org=org) for name in "abc"])


async def hear(room: LedgerRoom, feed: Feed, *said, org: str = "acme", batch: int = 50) -> None:
    await room.hear([feed.channel(one, org=org) for one in said], batch=batch)


async def top(room: LedgerRoom, org: str = "acme") -> dict[str, float]:
    return {run.run_id: run.totals.cost_nanousd / USD for run in (await room.runs(org)).items}


async def assert_every_breakdown_is_the_bill(room: LedgerRoom, cost_nanousd: int) -> None:
    spend = await room.spend()
    assert spend.cost_nanousd == spend.month_to_date_nanousd == cost_nanousd
    for breakdown in (
        spend.by_agent,
        spend.by_provider,
        spend.by_key,
        spend.by_day,
        spend.by_person,
    ):
        assert sum(line.cost_nanousd for line in breakdown) == spend.cost_nanousd
    listed = sum(run.totals.cost_nanousd for run in (await room.runs()).items)
    assert listed + spend.deleted.cost_nanousd == spend.cost_nanousd


async def test_deleting_the_parent_makes_the_child_count_keeping_its_cost(
    room: LedgerRoom, feed: Feed
):
    """facts.md 2.8: the child is a run of its own, and the bill is what it was."""
    await know(room, feed)
    await hear(room, feed, *TREE)
    before = await room.spend()
    await hear(room, feed, deleted("root"))
    assert await top(room) == {"b": 0.50}, "with what it delegated itself"
    b, c = await room.run("b"), await room.run("c")
    assert (b.parent_run_id, b.root_run_id, b.delegation_id) == (None, "b", None)
    assert (b.totals.cost_nanousd, b.own.cost_nanousd) == (USD // 2, 3 * USD // 10)
    assert (c.parent_run_id, c.root_run_id, c.delegation_id) == ("b", "b", "d-c")
    spend = await room.spend()
    assert spend.cost_nanousd == before.cost_nanousd == USD
    assert (spend.deleted.cost_nanousd, spend.deleted.run_count) == (USD // 2, 1)
    assert spend.run_count == 2
    assert {line.agent_id: line.cost_nanousd / USD for line in spend.by_agent} == {
        "a": 0.50,
        "b": 0.50,
    }
    for name in ("by_provider", "by_key", "by_person"):
        was = {line.model_copy(update={"run_count": 0}) for line in getattr(before, name)}
        assert {line.model_copy(update={"run_count": 0}) for line in getattr(spend, name)} == was
    assert await agents_usd(room) == {"a": 0.50, "b": 0.50, "c": 0.20}
    await assert_every_breakdown_is_the_bill(room, USD)
    await assert_books_are_sums_of_entries(room, "acme")
    await assert_rebuilding_agrees(room)


async def test_a_deleted_delegate_stays_in_its_parents_figure_and_lets_its_own_go(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed)
    await hear(room, feed, *TREE, deleted("b"))
    assert await top(room) == {"root": 0.80, "c": 0.20}
    root, c = await room.run("root"), await room.run("c")
    assert root.delegation_count == 0
    assert (c.parent_run_id, c.delegation_id, c.root_run_id) == (None, None, "c")
    assert (await room.spend()).deleted.run_count == 0, "its money is in a figure that is shown"
    kept = [entry.request_id for entry in (await room.entries("root")).items]
    assert sorted(kept) == ["q1", "q2"], "every figure can be explained"
    assert await agents_usd(room) == {"a": 0.80, "b": 0.30, "c": 0.20}
    await assert_every_breakdown_is_the_bill(room, USD)
    await assert_rebuilding_agrees(room)


async def test_a_deleted_run_answers_like_an_unknown_one(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    await hear(room, feed, *TREE, deleted("root"))
    for reading in (room.run, room.entries):
        answers = []
        for run_id in ("root", "nobody"):
            with pytest.raises(Fault) as refused:
                await reading(run_id)
            answers.append((refused.value.code, refused.value.reason, refused.value.message))
        assert answers[0] == answers[1]
    assert (await room.runs(include_delegations=True)).total == 2
    assert (await room.runs(agent_id="a", include_delegations=True)).items == ()
    gone, unknown = await room.runs(parent_run_id="root"), await room.runs(parent_run_id="nobody")
    assert gone == unknown


async def test_the_delegation_of_an_orphan_is_withheld_and_inner_ones_are_not(
    room: LedgerRoom, feed: Feed
):
    """facts.md 2.3 and 3.8: an orphan child shows no task id, in no read."""
    await know(room, feed)
    await hear(
        room,
        feed,
        started("root"),
        delegated("child", "root"),
        delegated("inner", "child"),
        spent("q1", "child", "0.10", delegation_id="d-child"),
        spent("q2", "child", "0.10", delegation_id="inline-1"),
        spent("q3", "inner", "0.10", delegation_id="d-inner"),
    )
    shown = {entry.request_id: entry.delegation_id for entry in (await room.entries("root")).items}
    assert shown == {"q1": "d-child", "q2": "inline-1", "q3": "d-inner"}
    await hear(room, feed, deleted("root"))
    shown = {entry.request_id: entry.delegation_id for entry in (await room.entries("child")).items}
    assert shown == {"q1": None, "q2": "inline-1", "q3": "d-inner"}
    assert (await room.run("inner")).delegation_id == "d-inner"


async def test_departments_of_an_orphan_are_those_of_who_started_it(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    await room.hear([feed.directory(department("sales", belongs("ana")), "sales")])
    await hear(room, feed, *TREE)
    (sales,) = (await room.departments()).items
    assert (sales.spent_nanousd, sales.run_count) == (USD, 1)
    await hear(room, feed, deleted("root"))
    (sales,) = (await room.departments()).items
    assert sales.spent_nanousd == USD, "nobody spent less"
    await assert_rebuilding_agrees(room)


ORDERED = (*TREE, deleted("root"), deleted("b", NOON + minutes(1)), heartbeat("c"), finished("b"))


async def test_every_order_leaves_the_same(room: LedgerRoom):
    """Before its start, before a child, with the parent said last, and twice."""
    chance = random.Random(37)
    states = []
    for number in range(30):
        org = f"order-{number}"
        feed = Feed()
        await know(room, feed, org)
        said = [*ORDERED, *chance.sample(ORDERED, 3)]
        if number:
            chance.shuffle(said)
        await hear(room, feed, *said, org=org, batch=chance.choice((1, 2, 50)))
        await room.reaper.sweep(room.clock.at + minutes(10), minutes(2))
        spend = await room.spend(org)
        months = await room.rows(
            "SELECT scope, scope_id, cost_nanousd FROM month_spend WHERE org = $1 "
            "AND scope = 'agent' AND cost_nanousd <> 0 ORDER BY 1, 2",
            org,
        )
        rows = (await room.runs(org, include_delegations=True)).items
        states.append(
            (
                [row.model_dump(exclude={"last_sign_at"}) for row in rows],
                spend.model_dump(),
                [tuple(row) for row in months],
            )
        )
    assert all(state == states[0] for state in states)
    (shown,) = (await room.runs("order-1", include_delegations=True)).items
    assert (shown.run_id, shown.totals.cost_nanousd) == ("c", 2 * USD // 10)
    assert (await room.spend("order-1")).deleted.cost_nanousd == 8 * USD // 10
    await assert_rebuilding_agrees(room)


async def test_signs_of_life_and_late_usage_bring_nothing_back(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    await hear(room, feed, *TREE, deleted("root"))
    await hear(
        room,
        feed,
        heartbeat("root", NOON + minutes(9)),
        started("root", agent_id="a", started_by_user_id="ana", started_at=NOON - minutes(1)),
        spent("q9", "root", "0.25", key_id="k1"),
        finished("root"),
    )
    assert await top(room) == {"b": 0.50}
    assert (await room.spend()).deleted.cost_nanousd == 3 * USD // 4
    await assert_every_breakdown_is_the_bill(room, 5 * USD // 4)
    await assert_rebuilding_agrees(room)


async def test_a_run_that_nobody_knows_is_deleted_before_it_is_heard_of(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed)
    await hear(room, feed, deleted("root"))
    assert (await room.runs()).total == 0
    assert (await room.spend()).deleted.run_count == 0, "it is in no window yet"
    await hear(room, feed, *TREE)
    assert await top(room) == {"b": 0.50}
    await assert_every_breakdown_is_the_bill(room, USD)


async def test_another_channels_run_is_not_deleted(room: LedgerRoom, feed: Feed):
    await room.know(feed, channels=("c1", "c2"))
    await hear(room, feed, started("root"))
    await room.hear([feed.channel(deleted("root"), channel_id="c2")])
    letters = await room.rows("SELECT reason FROM dead_letter")
    assert [letter["reason"] for letter in letters] == ["run_of_other_channel"]
    assert await top(room) == {"root": 0}


async def test_it_is_said_once_to_whoever_listens(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    await hear(room, feed, *TREE)
    before = len(await room.said())
    await hear(room, feed, deleted("root"))
    await hear(room, feed, deleted("root", NOON + minutes(5)))
    said = {one.run_id: one for one in (await room.said())[before:]}
    assert len(await room.said()) - before == len(said) == 3
    assert _words(said["root"]) == ("deleted", True, None, "root", 0.50)
    assert _words(said["b"]) == ("reattributed", False, None, "b", 0.50)
    assert _words(said["c"]) == ("reattributed", False, "b", "b", 0.20)


def _words(one: RunChanged) -> tuple[str, bool, str | None, str, float]:
    cost = one.totals.cost_nanousd / USD
    return (one.reason, one.deleted, one.parent_run_id, one.root_run_id, cost)


async def test_a_deleted_run_may_not_spend_and_what_it_delegated_may(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    await hear(room, feed, *TREE, deleted("root"))
    refused = await room.authorize(ask("n1", run_id="root", agent_id="a", root_agent_id="a"))
    assert (refused.allowed, refused.refusal and refused.refusal.code) == (False, "run_deleted")
    assert refused.refusal is not None
    assert (refused.refusal.scope, refused.refusal.id) == ("run", "root")
    assert "root" in refused.sentence
    # Its process still names the root that it was delegated from.
    asked = ask("n2", run_id="b", root_run_id="root", agent_id="b", root_agent_id="a")
    assert (await room.authorize(asked)).allowed
    again = await room.authorize(ask("n1", run_id="root", agent_id="a", root_agent_id="a"))
    assert again == refused


async def test_the_own_agents_cap_binds_an_orphan(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.directory(agent("a", USD // 10), "a")])
    await room.hear([feed.directory(agent("b", 10 * USD), "b")])
    await hear(room, feed, *TREE)
    asked = ask("n1", run_id="b", root_run_id="root", agent_id="b", root_agent_id="a")
    assert not (await room.authorize(asked)).allowed, "inside the delegation a's cap binds"
    await hear(room, feed, deleted("root"))
    asked = ask("n2", run_id="b", root_run_id="root", agent_id="b", root_agent_id="a")
    assert (await room.authorize(asked)).allowed


async def test_an_orphan_that_is_silent_is_failed_as_every_root_is(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    await hear(room, feed, *TREE, deleted("root"))
    assert await room.reaper.sweep(NOON + minutes(60), minutes(2)) == 1
    assert (await room.run("b")).status is RunStatus.FAILED


async def test_a_correction_of_what_a_deleted_run_spent_is_in_the_bill(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed)
    await hear(room, feed, *TREE)
    first = next(e for e in (await room.entries("root")).items if e.request_id == "q1")
    await hear(room, feed, deleted("root"))
    await room.correct(first.id, USD, "c1")
    assert (await room.spend()).deleted.cost_nanousd == USD
    await assert_every_breakdown_is_the_bill(room, 3 * USD // 2)


async def test_a_start_waits_for_a_deletion_that_is_under_way(room: LedgerRoom):
    """Neither would see the other: the child would hang under a parent that is gone."""
    feed = Feed()
    await know(room, feed)
    batch = [feed.channel(deleted("root"))]
    start = feed.channel(delegated("child", "root", root="other"))
    async with room.uncommitted("CHANNEL", batch):
        task = asyncio.create_task(room.hear([start]))
        await room.waits_or_ends(task)
        assert not task.done(), "it waits"
    await task
    child = await room.run("child")
    assert (child.parent_run_id, child.root_run_id) == (None, "child")
    await assert_rebuilding_agrees(room)


async def test_deletions_beside_reports_on_many_connections_lose_nothing(room: LedgerRoom):
    """Trees are told of and deleted at once; whoever comes last, the books are the same."""
    feed = Feed()
    await know(room, feed)
    chance = random.Random(5)
    events = []
    for tree in range(12):
        names = {name: f"{name}{tree}" for name in ("root", "b", "c")}
        for one in (*TREE, deleted("root"), deleted("b")):
            changes = {
                field: names.get(value, value)
                for field, value in one.model_dump().items()
                if field in ("run_id", "root_run_id", "parent_run_id") and value is not None
            }
            if hasattr(one, "request_id"):
                changes["request_id"] = f"{one.request_id}-{tree}"
            events.append(feed.channel(one.model_copy(update=changes)))
    chance.shuffle(events)
    batches = [events[n : n + 7] for n in range(0, len(events), 7)]

    async def handle(batch) -> None:
        async def settled() -> bool:
            try:
                await room.consumers["CHANNEL"].handle(batch)
            except asyncpg.DeadlockDetectedError:
                return False  # What is needed late is locked late: such a batch is tried again.
            return True

        await eventually(settled, bool)

    await asyncio.gather(*(handle(batch) for batch in batches))
    await room.hear(events)
    assert await top(room) == {f"c{tree}": 0.20 for tree in range(12)}
    spend = await room.spend()
    assert spend.cost_nanousd == 12 * USD
    assert spend.deleted.cost_nanousd == 12 * 8 * USD // 10
    await assert_rebuilding_agrees(room)


async def test_what_was_held_for_a_deleted_run_expires_as_that_of_an_ended_one(
    room: LedgerRoom, feed: Feed
):
    """Its signs of life prolong nothing; a report settles as always."""
    await strict(room, feed)
    await hear(room, feed, started("r2"))
    begun = room.clock.at
    for run_id in ("r1", "r2"):
        asked = ask(f"a-{run_id}", USD, run_id=run_id, root_run_id=run_id, request_timeout_s=30)
        assert (await room.authorize(asked)).allowed
    alive_at = room.clock.at = begun + minutes(3)
    for run_id in ("r1", "r2"):
        beat = feed.channel(heartbeat(run_id, at=alive_at), at=alive_at, stored_at=alive_at)
        await room.hear([beat])
    await hear(room, feed, deleted("r1"))
    assert (await held(room, state="open")).total == 2
    await handle_until(room, alive_at + GRACE / 2)
    await room.keeper.keep()
    (kept,) = (await held(room, state="open")).items
    assert kept.run_id == "r2"
    await hear(room, feed, paid("a-r1", "1"))
    assert (await room.spend()).deleted.cost_nanousd == USD
