"""Windows are put together from slots: every answer is what their trees amount to."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from asyncpg.exceptions import DeadlockDetectedError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.channel import Tokens
from contracts.types import ChannelRight
from services.ledger import migrations as ledger_migrations
from services.ledger.domain.months import Zone
from services.ledger.handlers.counting import TreeCounter
from shared.db import open_connection
from tests.factories import (
    NOON,
    Feed,
    channel,
    finished,
    heartbeat,
    minutes,
    organization,
    started,
    usage,
)
from tests.integration.ledger.reconciling import assert_rebuilding_agrees
from tests.integration.ledger.test_authorize import ask
from tests.integration.ledger.windows import assert_windows_agree
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ORGS = itertools.count(1)
MIGRATION = Path(ledger_migrations.__file__).parent / "versions" / "ledger_0009.sql"
ALL_TIME = (datetime(2000, 1, 1, tzinfo=UTC), None)
RUNS = 5
MICROSECOND = timedelta(microseconds=1)
HOUR = NOON.replace(minute=0, second=0, microsecond=0)
EDGES = (
    datetime(2005, 5, 5, 5, 5, tzinfo=UTC),
    datetime(2012, 1, 1, tzinfo=UTC),
    HOUR,
    HOUR - timedelta(hours=1),
    HOUR - timedelta(hours=30),
    HOUR.replace(hour=0) - timedelta(days=2),
    HOUR.replace(hour=0) - timedelta(days=3, minutes=15),
    HOUR.replace(hour=0) - timedelta(days=9, minutes=45),
)
NEAR_EDGES = st.tuples(st.sampled_from(EDGES), st.sampled_from((-1, 0, 0, 1))).map(
    lambda drawn: drawn[0] + drawn[1] * MICROSECOND
)
MOMENTS = NEAR_EDGES | st.integers(0, 20 * 24 * 60).map(lambda minute: NOON - minutes(minute))
WINDOWS = st.tuples(MOMENTS, st.none() | MOMENTS)
ZONES = (
    (Zone("0001-01", "UTC"),),
    (Zone("0001-01", "Asia/Kathmandu"),),
    (Zone("0001-01", "America/St_Johns"), Zone("2026-11", "Pacific/Apia")),
)


@pytest.fixture(scope="module")
async def room(servers):
    database = await servers.new_database("ledger")
    room = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    yield room
    await room.close()
    await servers.drop_database(database)


@st.composite
def stories(draw):
    """Starts of runs that are told twice, otherwise each time; their requests and ends.

    Answers as well whether a run is told of one tree only: what another tree has seen of it stays
    seen there.
    """
    said = []
    is_of_one_tree = draw(st.booleans())
    for number in range(RUNS):
        its_root = draw(st.integers(0, number))
        for _ in range(draw(st.integers(0, 2))):
            root = its_root if is_of_one_tree else draw(st.integers(0, number))
            said.append(
                started(
                    f"r{number}",
                    root_run_id=f"r{root}",
                    parent_run_id=None if root == number else f"r{root}",
                    agent_id=draw(st.sampled_from(("coder", "helper"))),
                    started_by_user_id=draw(st.sampled_from((None, "ana", "bea"))),
                    started_at=draw(MOMENTS),
                )
            )
    runs = st.integers(0, RUNS - 1).map(lambda number: f"r{number}")
    said += [
        usage(
            f"q{draw(st.integers(0, 4))}",
            draw(runs),
            model=draw(st.sampled_from(("claude-opus-4-6", "no-such-model"))),
            provider=draw(st.sampled_from((None, "anthropic"))),
            key_id=draw(st.sampled_from((None, "key-1", "key-2"))),
            tokens=Tokens(input=draw(st.integers(1, 2_000)), output=5),
            occurred_at=draw(MOMENTS),
            billed_run_id=draw(st.none() | runs),
        )
        for _ in range(draw(st.integers(0, 8)))
    ]
    said += [
        finished(draw(runs), ended_at=draw(MOMENTS), missing_delegates=draw(st.integers(0, 1)))
        for _ in range(draw(st.integers(0, 2)))
    ]
    said += [heartbeat(draw(runs), draw(MOMENTS)) for _ in range(draw(st.integers(0, 2)))]
    return said, is_of_one_tree


async def know(room: LedgerRoom, feed: Feed, org: str) -> None:
    rights = channel("c1", ChannelRight.BACKFILL)
    await room.hear([feed.directory(organization(), org, org=org)])
    await room.hear([feed.directory(rights, "c1", org=org)])


async def ask_something(room: LedgerRoom, org: str, chance: random.Random) -> None:
    number = chance.randrange(RUNS)
    root = chance.choice((f"r{number}", "r0"))
    asked = ask(
        f"a{chance.randrange(10**9)}",
        run_id=f"r{number}",
        root_run_id=root,
        agent_id=chance.choice(("coder", "helper")),
        root_agent_id=None,
        started_by_user_id=chance.choice((None, "ana")),
    )
    await room.authorize(asked, org=org)


async def slots_of(room: LedgerRoom, org: str) -> list[tuple[object, ...]]:
    rows = await room.rows(
        "SELECT grain_s, begins_at, dimension, value, cost_nanousd, run_count, floor_count, "
        "present_count FROM spend_slot WHERE org = $1 AND (cost_nanousd, run_count, floor_count, "
        "present_count) <> (0, 0, 0, 0) ORDER BY 1, 2, 3, 4",
        org,
    )
    return [tuple(row) for row in rows]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    story=stories(),
    windows=st.lists(WINDOWS, min_size=4, max_size=8),
    zones=st.sampled_from(ZONES),
    seed=st.integers(0, 2**32),
)
async def test_every_window_is_what_its_trees_amount_to(
    room: LedgerRoom, story, windows, zones, seed
):
    """In every order, with repetitions and cuts, and questions in between."""
    chance = random.Random(seed)
    said, is_of_one_tree = story
    kept = []
    for asks in (False, False, True):
        org = f"org-{next(ORGS)}"
        feed = Feed()
        await know(room, feed, org)
        told = [feed.channel(data, org=org) for data in said]
        told += chance.choices(told, k=len(told) // 3)
        chance.shuffle(told)
        while told:
            cut = chance.randint(1, len(told))
            if asks and chance.random() < 0.5:
                await ask_something(room, org, chance)
            await room.hear(told[:cut], batch=chance.choice((1, 3, 50)))
            told = told[cut:]
            if chance.random() < 0.3:
                await TreeCounter(database=room.database).step()
            await assert_windows_agree(room, org, chance.sample(windows, 1), zones)
        await assert_windows_agree(room, org, [ALL_TIME, *windows], zones)
        if not asks:
            kept.append(await slots_of(room, org))
    if is_of_one_tree:
        assert kept[0] == kept[1]
    await assert_rebuilding_agrees(room)
    await TreeCounter(database=room.database).step()
    assert await room.rows("SELECT 1 FROM uncounted_tree") == []
    await assert_windows_agree(room, org, [ALL_TIME, *windows], zones)
    await assert_rebuilding_agrees(room)


async def test_a_tree_that_a_question_entered_counts_at_once_and_waits_for_nobody(
    room: LedgerRoom,
):
    org = f"org-{next(ORGS)}"
    feed = Feed()
    await know(room, feed, org)
    at = room.clock.at
    batch = [feed.channel(started("r1", started_at=at), org=org)]
    batch.append(feed.channel(usage("q1", "r1", occurred_at=at), org=org))
    async with room.uncommitted("CHANNEL", batch):
        # The batch holds the slots that this tree counts in.
        asked = ask(run_id="r2", root_run_id="r2", started_by_user_id="user-1")
        await asyncio.wait_for(room.authorize(asked, org=org), 10)
        assert [row.run_count for row in (await room.spend(org)).by_agent] == [1]
    assert [row.run_count for row in (await room.spend(org)).by_agent] == [2]
    assert await TreeCounter(database=room.database).step() == 1
    assert await TreeCounter(database=room.database).step() == 0
    spent = await room.spend(org)
    assert [(row.run_count, row.user_id) for row in spent.by_person] == [(2, "user-1")]
    await assert_rebuilding_agrees(room)


async def test_trees_that_move_while_their_delegates_report_are_counted_once(room: LedgerRoom):
    org = f"org-{next(ORGS)}"
    feed = Feed()
    await know(room, feed, org)
    starts, reports = [], []
    for number in range(60):
        root = f"t{number % 6}"
        member = f"m{number}"
        starts.append(started(member, root_run_id=root, parent_run_id=root, agent_id="helper"))
        reports.append(usage(f"q{number}", member, key_id=f"key-{number % 3}"))
        # Each a little earlier than the one before: the tree moves every time.
        at = NOON - minutes(20 * number)
        starts.append(started(root, started_at=at, agent_id=f"agent-{number % 4}"))
    sides = [[feed.channel(data, org=org) for data in side] for side in (starts, reports)]

    async def again(handle):
        """As a consumer would: Postgres ends one of two that need one another's runs."""
        while True:
            try:
                return await handle()
            except DeadlockDetectedError:
                continue

    async def tell(side):
        for position in range(0, len(side), 5):
            await again(lambda at=position: room.hear(side[at : at + 5]))

    async def count():
        for number in range(20):
            asked = ask(f"a{number}", run_id=f"x{number}", root_run_id=f"x{number}")
            await room.authorize(asked, org=org)
            await TreeCounter(database=room.database).step()

    await asyncio.gather(*map(tell, sides), count())
    await assert_windows_agree(room, org, [ALL_TIME, (NOON - minutes(600), NOON - minutes(77))])
    await TreeCounter(database=room.database).step()
    await assert_rebuilding_agrees(room)


async def test_what_was_entered_before_there_were_slots_is_in_them(room: LedgerRoom):
    """What the migration fills in, on books that have something of everything."""
    org = f"org-{next(ORGS)}"
    feed = Feed()
    await know(room, feed, org)
    said = [
        started("r1", started_at=NOON - minutes(3_000)),
        started("r2", root_run_id="r1", parent_run_id="r1", agent_id="helper"),
        started("r3", started_by_user_id=None, started_at=datetime(2005, 1, 1, tzinfo=UTC)),
        usage("q1", "r1"),
        usage("q2", "r2", key_id="key-1"),
        usage("q3", "r3", model="no-such-model", provider=None),
        usage("q4", "r4"),
        finished("r2", missing_delegates=2),
    ]
    await room.hear([feed.channel(data, org=org) for data in said])
    await TreeCounter(database=room.database).step()
    before = await slots_of(room, org)
    assert {row[2] for row in before} == {"all", "agent", "person", "provider", "key"}
    text = MIGRATION.read_text()
    fill = text[text.index("INSERT INTO spend_slot") :]
    owner = await open_connection(room.owner_url, "ledger", {})
    try:
        await owner.execute("DELETE FROM spend_slot")
        await owner.execute(fill[: fill.index(";")])
    finally:
        await owner.close()
    assert await slots_of(room, org) == before
    await assert_rebuilding_agrees(room)


async def test_a_provider_that_nothing_is_left_of_is_no_row(room: LedgerRoom):
    """A request that another run turns out to own leaves nothing behind where it was."""
    org = f"org-{next(ORGS)}"
    feed = Feed()
    await know(room, feed, org)
    said = [
        started("r1"),
        started("r2", started_at=NOON - minutes(90)),
        usage("q1", "r1", tokens=Tokens(input=10, output=1)),
        # More of the same request: the best report says another provider and key.
        usage("q1", "r1", provider="openai", key_id="key-1", tokens=Tokens(input=99, output=99)),
    ]
    for data in said:
        await room.hear([feed.channel(data, org=org)])
    spent = await room.spend(org)
    assert [(row.provider, row.run_count) for row in spent.by_provider] == [("openai", 1)]
    assert [(row.key_id, row.run_count) for row in spent.by_key] == [("key-1", 1)]
    await assert_windows_agree(room, org, [ALL_TIME])
