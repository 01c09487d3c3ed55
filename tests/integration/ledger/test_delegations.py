"""What a delegated row says, and which figure counts it (facts.md 2.3 and 2.4; the seed, *Cómo se
registra un run delegado*)."""

from __future__ import annotations

import random

import pytest

from contracts.channel import ProviderCost
from contracts.types import RunStatus
from tests.factories import NOON, Feed, finished, minutes, parked, resumed, started, usage
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
USD = 1_000_000_000


def spent(request_id: str, run_id: str, amount: str, **changes):
    """A request that its provider says cost so much."""
    cost = ProviderCost(amount=amount, currency="USD")
    return usage(request_id, run_id, provider_cost=cost, **changes)


def delegated(run_id: str, parent: str, root: str = "root", agent_id: str = "helper", **changes):
    """A start inside another run."""
    return started(
        run_id,
        root_run_id=root,
        parent_run_id=parent,
        agent_id=agent_id,
        delegation_id=f"d-{run_id}",
        **changes,
    )


async def hear(room: LedgerRoom, feed: Feed, *said) -> None:
    """Handle what was said in some order, whichever."""
    deliveries = [feed.channel(one) for one in said]
    random.Random(len(said)).shuffle(deliveries)
    await room.hear(deliveries, batch=2)


async def own_usd(room: LedgerRoom) -> dict[str, float]:
    runs = await room.runs(include_delegations=True)
    return {run.run_id: run.own.cost_nanousd / USD for run in runs.items}


async def agents_usd(room: LedgerRoom) -> dict[str, float]:
    rows = await room.rows("SELECT scope_id, cost_nanousd FROM month_spend WHERE scope = 'agent'")
    return {row["scope_id"]: int(row["cost_nanousd"]) / USD for row in rows}


async def test_each_vendor_is_paid_its_own_share_of_one_bill(room: LedgerRoom, feed: Feed):
    """The worked numbers: 1.00 in all, 0.40 of it a delegate's on another vendor."""
    await room.know(feed)
    await hear(
        room,
        feed,
        started("root"),
        spent("q1", "root", "0.60", key_id="k1"),
        delegated("child", "root"),
        spent("q2", "child", "0.40", provider="openai", key_id="k2"),
    )
    spend = await room.spend()
    assert spend.cost_nanousd == spend.month_to_date_nanousd == USD
    assert [(line.agent_id, line.cost_nanousd, line.run_count) for line in spend.by_agent] == [
        ("coder", USD, 1)
    ]
    assert {line.provider: line.cost_nanousd / USD for line in spend.by_provider} == {
        "anthropic": 0.60,
        "openai": 0.40,
    }
    assert {line.key_id: line.cost_nanousd / USD for line in spend.by_key} == {"k1": 0.6, "k2": 0.4}
    assert sum(line.cost_nanousd for line in spend.by_day) == USD
    assert await agents_usd(room) == {"coder": 1.00, "helper": 0.40}
    root, child = await room.run("root"), await room.run("child")
    assert (root.totals.cost_nanousd, child.totals.cost_nanousd) == (USD, 4 * USD // 10)


async def test_nesting_subtracts_each_level_once(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(
        room,
        feed,
        started("root", agent_id="a"),
        delegated("b", "root", agent_id="b"),
        delegated("c", "b", agent_id="c"),
        spent("q1", "root", "0.50"),
        spent("q2", "b", "0.30", provider="openai"),
        spent("q3", "c", "0.20", provider="mistral"),
    )
    assert await own_usd(room) == {"root": 0.50, "b": 0.30, "c": 0.20}
    assert (await room.run("root")).totals.cost_nanousd == USD
    assert (await room.run("b")).totals.cost_nanousd == 3 * USD // 10, "c has a row of its own"
    assert await agents_usd(room) == {"a": 1.00, "b": 0.30, "c": 0.20}
    spend = await room.spend()
    for breakdown in (spend.by_agent, spend.by_provider, spend.by_key, spend.by_day):
        assert sum(line.cost_nanousd for line in breakdown) == spend.cost_nanousd == USD


async def test_an_inline_specialist_is_billed_to_the_nearest_row(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(
        room,
        feed,
        started("root"),
        delegated("child", "root"),
        # Under the run's own agent: the top row bears it.
        spent("q1", "root", "0.10", delegation_id="inline-1"),
        # Under a published delegate: that row bears it, whichever row the channel names as sender.
        spent("q2", "child", "0.20", delegation_id="inline-2"),
        spent("q3", "root", "0.30", billed_run_id="child", delegation_id="inline-3"),
    )
    assert await own_usd(room) == {"root": 0.10, "child": 0.50}
    assert await agents_usd(room) == {"coder": 0.60, "helper": 0.50}
    kept = {entry.request_id: entry for entry in (await room.entries("root")).items}
    assert {name: entry.delegation_id for name, entry in kept.items()} == {
        "q1": "inline-1",
        "q2": "inline-2",
        "q3": "inline-3",
    }
    assert (kept["q3"].run_id, kept["q3"].billed_run_id) == ("root", "child")


async def test_an_agent_that_delegates_to_itself_is_counted_once(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(
        room,
        feed,
        started("root"),
        delegated("child", "root", agent_id="coder"),
        spent("q1", "root", "0.60"),
        spent("q2", "child", "0.40"),
    )
    assert await agents_usd(room) == {"coder": 1.00}


async def test_segments_of_a_delegation_that_was_parked_are_one_row(room: LedgerRoom, feed: Feed):
    """Parked twice: three segments, one sum, a floor since the first had a model without price."""
    await room.know(feed)
    room.clock.at = NOON + minutes(60 * 24 * 3)
    later = NOON + minutes(60 * 24 * 2)
    await hear(
        room,
        feed,
        started("root"),
        delegated("child", "root", started_at=NOON + minutes(1)),
        spent("q1", "child", "0.10"),
        usage("q2", "child", model="no-such-model"),
        parked("child", NOON + minutes(3)),
        resumed("child", NOON + minutes(90), "claim-1"),
        spent("q3", "child", "0.20"),
        parked("child", NOON + minutes(95)),
        resumed("child", later, "claim-2"),
        spent("q4", "child", "0.30", occurred_at=later),
        finished("child", ended_at=later + minutes(1)),
    )
    rows = (await room.runs(parent_run_id="root")).items
    assert [(row.run_id, row.status) for row in rows] == [("child", RunStatus.COMPLETED)]
    (child,) = rows
    assert (child.started_at, child.ended_at) == (NOON + minutes(1), later + minutes(1))
    assert (child.totals.cost_nanousd, child.is_partial) == (6 * USD // 10, True)
    kinds = await room.rows("SELECT kind FROM run_transition WHERE run_id = 'child' ORDER BY at")
    assert [row["kind"] for row in kinds] == ["parked", "resumed", "parked", "resumed"]


async def test_a_delegation_in_the_background_takes_nothing_of_its_parents_spend(
    room: LedgerRoom, feed: Feed
):
    """The seed's defect: 0.01 was recorded as 0.51 where the parent spent 0.50 meanwhile."""
    await room.know(feed)
    for said in (
        started("root"),
        delegated("child", "root", started_at=NOON + minutes(1)),
        spent("q1", "root", "0.50", occurred_at=NOON + minutes(3)),
        finished("root", ended_at=NOON + minutes(4)),
        # Settled after its parent has answered.
        spent("q2", "child", "0.01", occurred_at=NOON + minutes(2)),
        finished("child", ended_at=NOON + minutes(2)),
    ):
        await room.hear([feed.channel(said)])
    child, root = await room.run("child"), await room.run("root")
    assert (child.started_at, child.ended_at) == (NOON + minutes(1), NOON + minutes(2))
    assert child.totals.cost_nanousd == USD // 100
    assert (root.ended_at, root.totals.cost_nanousd) == (NOON + minutes(4), 51 * USD // 100)
    assert await agents_usd(room) == {"coder": 0.51, "helper": 0.01}


async def test_a_delegation_in_the_background_spends_in_a_month_after_its_parents_end(
    room: LedgerRoom, feed: Feed
):
    """Entries count in their own month, for both agents; the tree counts whole by its start."""
    await room.know(feed)
    ended = NOON.replace(day=30, hour=23, minute=50)
    later = ended + minutes(30)
    room.clock.at = later + minutes(5)
    await hear(
        room,
        feed,
        started("root", started_at=ended - minutes(5)),
        delegated("child", "root", started_at=ended - minutes(4)),
        spent("q1", "root", "0.50", occurred_at=ended - minutes(1)),
        spent("q2", "child", "0.03", occurred_at=ended - minutes(1)),
        finished("root", ended_at=ended),
        spent("q3", "child", "0.01", occurred_at=later),
        finished("child", ended_at=later),
    )
    rows = await room.rows(
        "SELECT scope_id, month, cost_nanousd FROM month_spend "
        "WHERE scope <> 'department' AND cost_nanousd <> 0"
    )
    cents = {(row["scope_id"], row["month"]): int(row["cost_nanousd"]) * 100 // USD for row in rows}
    assert cents == {
        ("acme", "2026-11"): 53,
        ("acme", "2026-12"): 1,
        ("coder", "2026-11"): 53,
        ("coder", "2026-12"): 1,
        ("helper", "2026-11"): 3,
        ("helper", "2026-12"): 1,
    }
    root, child = await room.run("root"), await room.run("child")
    assert (root.status, root.ended_at, child.ended_at) == ("completed", ended, later)
    assert (root.totals.cost_nanousd, child.totals.cost_nanousd) == (54 * USD // 100, USD // 25)
    days = (await room.spend()).by_day
    assert {line.day: line.cost_nanousd for line in days if line.cost_nanousd} == {
        "2026-11-30": 54 * USD // 100
    }


async def test_overlapping_delegations_keep_their_own_spans(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(
        room,
        feed,
        started("root"),
        delegated("late", "root", started_at=NOON + minutes(2)),
        delegated("early", "root", started_at=NOON + minutes(1)),
        finished("late", ended_at=NOON + minutes(3)),
        finished("early", ended_at=NOON + minutes(9)),
        finished("root", ended_at=NOON + minutes(10)),
    )
    rows = {run.run_id: run for run in (await room.runs(parent_run_id="root")).items}
    assert list(rows) == ["late", "early"], "newest start first"
    assert (rows["late"].ended_at, rows["early"].ended_at) == (
        NOON + minutes(3),
        NOON + minutes(9),
    )


async def test_an_end_without_a_start_is_a_span_of_no_length(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    cancelled = finished("child", status=RunStatus.CANCELLED, ended_at=NOON + minutes(5))
    await room.hear([feed.channel(cancelled)])
    row = await room.run("child")
    assert (row.started_at, row.ended_at) == (NOON + minutes(5), NOON + minutes(5))
    # A channel that knows the parent says a start at that end: the same span, in its tree.
    await hear(room, feed, started("root"), delegated("child", "root", started_at=row.ended_at))
    row = await room.run("child")
    assert (row.started_at, row.ended_at, row.status) == (row.ended_at, row.ended_at, "cancelled")
    assert (row.parent_run_id, (await room.runs()).total) == ("root", 1)


async def test_a_floor_is_per_row(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(
        room,
        feed,
        started("root"),
        usage("q1", "root", model="no-such-model"),
        delegated("priced", "root"),
        spent("q2", "priced", "0.40"),
        delegated("floor", "root"),
        usage("q3", "floor", model="no-such-model"),
    )
    floors = {run.run_id: run.is_partial for run in (await room.runs(parent_run_id="root")).items}
    assert floors == {"priced": False, "floor": True}
    assert (await room.run("root")).is_partial
    spend = await room.spend()
    assert spend.partial_run_count == 1, "trees are counted, not rows"


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (RunStatus.FAILED, "TimeoutError was raised"),
        (RunStatus.BUDGET_EXCEEDED, "Agent helper spent 10.0000 of its 10.00 USD this month."),
    ],
)
async def test_a_failed_delegate_shows_its_channels_sentence_whole(
    room: LedgerRoom, feed: Feed, status: RunStatus, sentence: str
):
    await room.know(feed)
    end = finished("child", status=status, error=sentence, ended_at=NOON + minutes(2))
    await hear(room, feed, started("root"), delegated("child", "root"), end)
    row = await room.run("child")
    assert (row.status, row.error) == (status, sentence)
    assert (await room.run("root")).error is None


async def test_a_delegate_of_a_parent_that_never_spoke_is_counted_once(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    await hear(room, feed, delegated("child", "root"), spent("q1", "child", "0.40"))
    root = await room.run("root")
    assert (root.provisional, root.agent_id, root.started_at) == (True, None, NOON)
    assert root.totals.cost_nanousd == (await room.spend()).cost_nanousd == 4 * USD // 10
    assert [run.run_id for run in (await room.runs()).items] == ["root"]
    assert await agents_usd(room) == {"helper": 0.40}


async def test_the_rows_of_a_dead_tree_stay_as_they_are(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await hear(
        room,
        feed,
        started("root"),
        delegated("done", "root"),
        finished("done", ended_at=NOON + minutes(2)),
        delegated("open", "root"),
        spent("q1", "open", "0.40"),
    )
    assert await room.reaper.sweep(NOON + minutes(60), minutes(2)) == 1
    shown = {run.run_id: run.status for run in (await room.runs(include_delegations=True)).items}
    assert shown == {"root": "failed", "done": "completed", "open": "running"}
    assert (await room.run("root")).totals.cost_nanousd == 4 * USD // 10
