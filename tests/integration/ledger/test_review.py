"""Found by attacking the ledger's rules: questions that say what a run is, repairs under load."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asyncpg.exceptions import DeadlockDetectedError

from contracts.channel import Tokens
from contracts.ledger import Authorize
from services.ledger.store import rebuilding
from shared.db import open_connection
from tests.factories import MODEL, NOON, Feed, belongs, department, minutes, started, usage
from tests.integration.ledger.reconciling import assert_rebuilding_agrees
from tests.ledger_room import LedgerRoom
from tests.waiting import eventually

pytestmark = pytest.mark.integration
COST = 7_500_000
"""What a report of the factory costs, in nano-USD."""


@pytest.fixture
async def room(room_database):
    database = await room_database("ledger")
    made = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    yield made
    await made.close()


def asked(request_id: str, run_id: str, **changes) -> Authorize:
    values = {
        "request_id": request_id,
        "run_id": run_id,
        "root_run_id": run_id,
        "agent_id": "coder",
        "root_agent_id": "coder",
        "user_id": "ana",
        "started_by_user_id": "ana",
        "model": MODEL,
        "provider": "anthropic",
    }
    return Authorize(**(values | changes))


async def insist(act: Callable[[], Awaitable[Any]]) -> None:
    """Do it again where Postgres ended a deadlock, as consumers and clients do."""
    while True:
        try:
            await act()
        except DeadlockDetectedError:
            continue
        return


async def month_usd(room: LedgerRoom, scope: str) -> dict[str, int]:
    rows = await room.rows(
        "SELECT scope_id, cost_nanousd FROM month_spend WHERE scope = $1 AND cost_nanousd <> 0",
        scope,
    )
    return {row["scope_id"]: int(row["cost_nanousd"]) for row in rows}


async def test_what_a_question_says_of_a_run_moves_what_the_run_has_spent(
    room: LedgerRoom, feed: Feed
) -> None:
    """Spent before anybody said whose run it is; its start has not arrived yet."""
    await room.know(feed)
    await room.hear([feed.directory(department("sales", belongs("ana")), "sales")])
    await room.hear([feed.channel(usage("q0", "r1"))])
    await room.authorize(asked("q1", "r1"))
    assert await month_usd(room, "agent") == {"coder": COST}
    assert await month_usd(room, "department") == {"sales": COST}
    await assert_rebuilding_agrees(room)


async def test_a_question_brings_a_run_that_has_spent_into_its_tree(
    room: LedgerRoom, feed: Feed
) -> None:
    await room.know(feed)
    await room.hear([feed.channel(started("r1", agent_id="boss")), feed.channel(usage("q0", "r2"))])
    await room.authorize(asked("q1", "r2", root_run_id="r1", root_agent_id="boss"))
    assert (await room.run("r1")).totals.cost_nanousd == COST
    assert await month_usd(room, "agent") == {"boss": COST, "coder": COST}
    assert (await room.runs()).total == 1
    await assert_rebuilding_agrees(room)


async def test_a_question_names_the_agent_of_a_root_that_only_its_delegates_named(
    room: LedgerRoom, feed: Feed
) -> None:
    await room.know(feed)
    child = started("r2", agent_id="helper", root_run_id="r1", parent_run_id="r1")
    await room.hear([feed.channel(child), feed.channel(usage("q0", "r2"))])
    assert await month_usd(room, "agent") == {"helper": COST}
    await room.authorize(asked("q1", "r1"))
    assert await month_usd(room, "agent") == {"helper": COST, "coder": COST}
    await assert_rebuilding_agrees(room)


async def test_the_start_has_the_last_word_on_what_a_question_said(
    room: LedgerRoom, feed: Feed
) -> None:
    await room.know(feed)
    await room.hear([feed.channel(usage("q0", "r1"))])
    await room.authorize(asked("q1", "r1"))
    await room.hear([feed.channel(started("r1", agent_id="other"))])
    assert await month_usd(room, "agent") == {"other": COST}
    await assert_rebuilding_agrees(room)


async def test_a_run_known_by_its_question_alone_counts_where_it_belongs(
    room: LedgerRoom, feed: Feed
) -> None:
    await room.know(feed)
    await room.hear([feed.directory(department("sales", belongs("ana")), "sales")])
    await room.authorize(asked("q1", "r1"))
    await room.authorize(asked("q2", "r2", root_run_id="r1", agent_id="helper"))
    await room.authorize(asked("q3", "r4", root_run_id="r3", agent_id="helper"))
    await assert_rebuilding_agrees(room)
    (row,) = (await room.departments()).items
    assert row.run_count == 1, "r1; who started r3 nobody has said"


async def test_questions_and_reports_of_one_run_at_once_lose_nothing(
    room: LedgerRoom, feed: Feed
) -> None:
    await room.know(feed)
    for number in range(8):
        run_id, root = f"a{number}", f"z{number}"
        reports = [feed.channel(usage(f"u{number}-{n}", run_id)) for n in range(3)]
        start = feed.channel(started(root, agent_id="boss"))
        first, second = (asked(f"{name}{number}", run_id, root_run_id=root) for name in ("q", "p"))
        await asyncio.gather(
            insist(lambda said=reports: room.hear(said, batch=1)),
            insist(lambda said=first: room.authorize(said)),
            insist(lambda said=start: room.hear([said])),
            insist(lambda said=second: room.authorize(said)),
        )
        await room.hear([feed.channel(usage(f"v{number}", run_id))])
    await assert_rebuilding_agrees(room)
    assert (await month_usd(room, "organization"))["acme"] == 8 * 4 * COST


async def test_a_repair_waits_for_a_batch_that_holds_runs_it_will_write(
    room: LedgerRoom, feed: Feed
) -> None:
    """The batch has locked its runs and not written them yet: neither must wait for the other."""
    await room.know(feed)
    await room.hear([feed.channel(started("r1")), feed.channel(usage("q1", "r1"))])
    repair = await open_connection(room.owner_url, "ledger", {})
    batch = await open_connection(room.owner_url, "ledger", {})

    async def apply() -> None:
        async with repair.transaction(isolation="read_committed"):
            await rebuilding.hold_rollups(repair)
            await rebuilding.build(repair)
            await rebuilding.apply_rollups(repair)
            await rebuilding.drop(repair)

    try:
        async with batch.transaction():
            await batch.execute("SELECT 1 FROM run WHERE run_id = 'r1' FOR UPDATE")
            pid = await repair.fetchval("SELECT pg_backend_pid()")
            applying = asyncio.create_task(apply())

            async def waits() -> bool:
                waiting = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted"
                return bool(await batch.fetchval(waiting, pid))

            await eventually(waits, bool)
            await batch.execute("UPDATE run SET heard_at = heard_at WHERE run_id = 'r1'")
        await applying
    finally:
        await repair.close()
        await batch.close()
    await assert_rebuilding_agrees(room)


@pytest.mark.parametrize("what", ["report", "correction"])
async def test_a_root_is_held_before_its_delegate_where_its_id_is_the_smaller(
    room: LedgerRoom, feed: Feed, what: str
) -> None:
    """Whoever holds the root may take the delegate: nobody has it and waits for the root."""
    await room.know(feed)
    child = started("r1", agent_id="helper", root_run_id="r0", parent_run_id="r0")
    said = [started("r0", agent_id="boss"), child, usage("q1", "r1")]
    await room.hear([feed.channel(each) for each in said])
    (entry,) = (await room.entries("r1")).items
    tasks = {
        "report": lambda: room.hear([feed.channel(usage("q2", "r1"))]),
        "correction": lambda: room.correct(entry.id, 1, "c1"),
    }
    async with room.database.transaction() as connection:
        await connection.execute("SELECT 1 FROM run WHERE run_id = 'r0' FOR UPDATE")
        task = asyncio.create_task(tasks[what]())
        await room.waits_or_ends(task)
        assert not task.done()
        await connection.execute("SELECT 1 FROM run WHERE run_id = 'r1' FOR UPDATE NOWAIT")
    await task
    await assert_rebuilding_agrees(room)


async def test_a_correction_beside_reports_that_grow_and_a_tree_that_moves(
    room: LedgerRoom, feed: Feed
) -> None:
    await room.know(feed)
    await room.hear([feed.channel(started("r1")), feed.channel(usage("q1", "r1"))])
    (entry,) = (await room.entries("r1")).items

    async def grow() -> None:
        for output in range(200, 208):
            tokens = Tokens(input=1_000, output=output)
            grown = feed.channel(usage("q1", "r1", tokens=tokens))
            await insist(lambda said=grown: room.hear([said]))

    async def correct() -> None:
        for cost in range(1, 9):
            await insist(lambda cost=cost: room.correct(entry.id, cost, f"c{cost}"))

    async def belong() -> None:
        members = department("sales", belongs("user-1"))
        await room.hear([feed.directory(members, "sales"), feed.channel(started("r2"))])
        await room.hear([feed.directory(department("sales", revision=2), "sales")])

    await asyncio.gather(grow(), correct(), belong())
    await room.recount()
    moved = started(
        "r1", agent_id="helper", root_run_id="r0", parent_run_id="r0", started_at=NOON - minutes(1)
    )
    moving = feed.channel(moved)
    await asyncio.gather(
        insist(lambda: room.hear([moving])), insist(lambda: room.correct(entry.id, 100, "last"))
    )
    grown = Tokens(input=1_000, output=207)
    added = (grown.output - 100) * (COST - 5_000_000) // 100
    assert (await room.run("r0")).totals.cost_nanousd == 100 + added
    assert await month_usd(room, "agent") == {"helper": 100 + added}
    assert await month_usd(room, "department") == {}
    await assert_rebuilding_agrees(room)


async def test_a_correction_that_waits_while_its_run_moves_counts_where_it_is_then(
    room: LedgerRoom, feed: Feed
) -> None:
    await room.know(feed)
    await room.hear([feed.channel(started("r1")), feed.channel(usage("q1", "r1"))])
    (entry,) = (await room.entries("r1")).items
    moved = started("r1", root_run_id="r0", parent_run_id="r0", started_at=NOON - minutes(1))
    async with room.uncommitted("CHANNEL", [feed.channel(moved)]):
        task = asyncio.create_task(room.correct(entry.id, 100, "c1"))
        await room.waits_or_ends(task)
        assert not task.done()
    await task
    assert (await room.run("r0")).totals.cost_nanousd == 100
    await assert_rebuilding_agrees(room)
