"""Runs that questions tell of before anybody else: where they count, and what their roots show."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from contracts.ledger import Authorize
from contracts.types import CapMode
from services.ledger.handlers.counting import TreeCounter
from shared.db import open_connection
from tests.factories import (
    MODEL,
    NOON,
    Feed,
    agent,
    belongs,
    department,
    minutes,
    organization,
    started,
    usage,
)
from tests.integration.ledger.reconciling import (
    assert_books_are_sums_of_entries,
    assert_rebuilding_agrees,
)
from tests.integration.ledger.windows import assert_windows_agree
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
WINDOWS = [(NOON - minutes(60), None), (NOON - minutes(7), NOON + minutes(40))]


@pytest.fixture
async def room(servers):
    """With its owner's sign-in, to make everything again."""
    database = await servers.new_database("ledger")
    room = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    yield room
    await room.close()
    await servers.drop_database(database)


@pytest.fixture
def feed() -> Feed:
    return Feed()


def ask(request_id: str, run_id: str, root_run_id: str, agent_id: str = "inner") -> Authorize:
    return Authorize(
        request_id=request_id,
        run_id=run_id,
        root_run_id=root_run_id,
        agent_id=agent_id,
        root_agent_id="outer",
        user_id=None,
        started_by_user_id=None,
        model=MODEL,
        provider="anthropic",
    )


def delegated(run_id: str, root: str, agent_id: str):
    return started(run_id, root_run_id=root, parent_run_id=root, agent_id=agent_id)


async def agents_of(room: LedgerRoom, run_id: str) -> list[str]:
    (row,) = await room.rows("SELECT counted_agents FROM run WHERE run_id = $1", run_id)
    return list(row["counted_agents"])


@asynccontextmanager
async def nobody_writes_runs(room: LedgerRoom):
    """Whoever enters a run waits for the end of the block; readers and holders do not."""
    connection = await open_connection(room.owner_url, "ledger", {})
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE run IN SHARE MODE")
            yield
    finally:
        await connection.close()


async def place_all(room: LedgerRoom) -> None:
    while await room.placer.step():
        pass


async def assert_everything_agrees(room: LedgerRoom) -> None:
    """What waits is not in the way of the proof, and is put where it belongs."""
    await assert_rebuilding_agrees(room)
    await assert_windows_agree(room, "acme", WINDOWS)
    await place_all(room)
    assert await room.rows("SELECT 1 FROM unplaced_run") == []
    await assert_rebuilding_agrees(room)
    await TreeCounter(database=room.database).step()
    await assert_books_are_sums_of_entries(room, "acme")
    await assert_windows_agree(room, "acme", WINDOWS)
    await assert_rebuilding_agrees(room)


async def test_a_question_may_name_a_delegated_run_as_root(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    start = started("top", agent_id="outer"), delegated("middle", "top", "mid")
    await room.hear([feed.channel(each) for each in start])
    await room.authorize(ask("q", "kid", "middle"))
    assert await agents_of(room, "kid") == ["inner", "outer"], "at once"
    await assert_everything_agrees(room)
    await room.hear([feed.channel(usage("q", "kid"))])
    await assert_everything_agrees(room)
    assert (await room.run("top")).totals.cost_nanousd == 7_500_000


@pytest.mark.parametrize("cap_mode", list(CapMode))
async def test_whose_tree_it_is_decides_whose_caps_bind(
    room: LedgerRoom, feed: Feed, cap_mode: CapMode
):
    await room.know(feed)
    await room.hear([feed.directory(organization(cap_mode=cap_mode, entity_revision=2), "acme")])
    await room.hear([feed.directory(agent("outer", 1_000_000), "outer")])
    await room.hear([feed.directory(agent("mid", 10**12), "mid")])
    start = (
        started("top", agent_id="outer", budget_nanousd=10**12),
        delegated("middle", "top", "mid"),
    )
    await room.hear([feed.channel(each) for each in start])
    await room.hear([feed.channel(usage("q0", "top"))])
    for request_id in ("q1", "q2"):
        question = ask(request_id, "kid", "middle").model_copy(update={"root_agent_id": "mid"})
        answer = await room.authorize(question)
        assert not answer.allowed
        assert answer.refusal is not None
        assert (answer.refusal.scope, answer.refusal.id) == ("agent", "outer")
    await assert_everything_agrees(room)


async def test_roots_that_are_told_of_together_are_followed_to_the_end(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    await room.authorize(ask("q1", "kid", "middle"))
    await room.authorize(ask("q2", "middle", "top", "mid"))
    await room.hear([feed.channel(started("top", agent_id="outer"))])
    await assert_everything_agrees(room)
    assert await agents_of(room, "kid") == ["inner", "outer"]


async def test_a_root_is_seen_alive_with_a_run_that_a_question_told_of(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    await room.hear([feed.channel(started("top", agent_id="outer"))])
    await room.authorize(ask("q", "kid", "top"))
    await assert_everything_agrees(room)
    assert (await room.run("top")).last_sign_at == room.clock.at


async def test_a_question_does_not_wait_for_what_is_learned_of_its_root(
    room: LedgerRoom, feed: Feed
):
    """The root's start is not committed: neither sees the other, and it is made good later."""
    await room.know(feed)
    await room.hear([feed.channel(usage("q0", "top"))])
    start = [feed.channel(started("top", agent_id="outer"))]
    async with room.uncommitted("CHANNEL", start):
        assert (await room.authorize(ask("q", "kid", "top"))).allowed
    assert await agents_of(room, "kid") == ["inner"]
    await assert_everything_agrees(room)
    assert await agents_of(room, "kid") == ["inner", "outer"]


@pytest.mark.parametrize("joins", [True, False])
async def test_departments_that_change_while_a_question_enters_a_root_count_it_once(
    room: LedgerRoom, feed: Feed, joins: bool
):
    """The question has read who belongs where, the change is counted, and then the run is there."""
    await room.know(feed)
    outside, inside = department("sales"), department("sales", belongs("ana"))
    first, then = (outside, inside) if joins else (inside, outside)
    await room.hear([feed.directory(first, "sales")])
    question = ask("q", "r1", "r1").model_copy(update={"started_by_user_id": "ana"})
    async with nobody_writes_runs(room):
        task = asyncio.create_task(room.authorize(question))
        await room.waits_or_ends(task)
        assert not task.done(), "it has read, and waits to write"
        change = then.model_copy(update={"entity_revision": 2})
        await room.hear([feed.directory(change, "sales")])
    assert (await task).allowed
    await place_all(room)
    (row,) = (await room.departments()).items
    assert (row.run_count, row.spent_nanousd) == (int(joins), 0)
    await assert_everything_agrees(room)
    await room.hear([feed.channel(usage("q", "r1"))])
    (row,) = (await room.departments()).items
    assert (row.run_count, row.spent_nanousd) == (int(joins), joins * 7_500_000)
    await assert_everything_agrees(room)


async def test_a_root_that_nobody_is_said_to_have_started_waits_for_nothing(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    assert (await room.authorize(ask("q", "r1", "r1"))).allowed
    assert await room.rows("SELECT 1 FROM unplaced_run") == []
