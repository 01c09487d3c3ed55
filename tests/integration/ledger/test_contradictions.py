"""A run that says now this, now that: every order of the same events leaves the same books."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.channel import Tokens
from tests.factories import (
    Feed,
    agent,
    deleted,
    finished,
    heartbeat,
    minutes,
    organization,
    parked,
    started,
    usage,
)
from tests.integration.ledger.reconciling import (
    assert_books_are_sums_of_entries,
    assert_rebuilding_agrees,
)
from tests.integration.ledger.test_order import (
    BEFORE_MIDNIGHT,
    ORGS,
    assert_the_newest_word_is_true,
    fail_the_silent,
    state_of,
)
from tests.integration.ledger.windows import assert_windows_agree
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
RUNS = 5


@pytest.fixture(scope="module")
async def room(servers):
    database = await servers.new_database("ledger")
    room = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    room.clock.at = BEFORE_MIDNIGHT + minutes(60)
    yield room
    await room.close()
    await servers.drop_database(database)


@st.composite
def stories(draw):
    """Starts that contradict one another, with money, signs of life, ends and deletions."""
    run = st.integers(0, RUNS - 1)
    starts = st.tuples(run, run, st.none() | run, st.integers(-1, 3), st.sampled_from("ab"))
    return (
        draw(st.lists(starts, min_size=2, max_size=8)),
        draw(st.lists(st.tuples(run, st.integers(0, 6), st.none() | run), max_size=6)),
        draw(
            st.lists(
                st.tuples(st.sampled_from((heartbeat, parked, deleted)), run, st.integers(-2, 8)),
                max_size=6,
            )
        ),
        draw(st.lists(st.tuples(run, st.integers(4, 7)), max_size=2)),
    )


def events_of(feed: Feed, story, org: str):
    starts, reports, lives, ends = story
    said = [
        started(
            f"r{run}",
            root_run_id=f"r{run if parent in (None, run) else root}",
            parent_run_id=None if parent in (None, run) or root == run else f"r{parent}",
            agent_id=agent_id,
            started_at=BEFORE_MIDNIGHT + minutes(at),
        )
        for run, root, parent, at, agent_id in starts
    ]
    said += [
        usage(
            f"q{number}",
            f"r{run}",
            tokens=Tokens(input=1_000 * (number + 1), output=1),
            occurred_at=BEFORE_MIDNIGHT + minutes(at),
            billed_run_id=None if billed is None else f"r{billed}",
        )
        for number, (run, at, billed) in enumerate(reports)
    ]
    said += [say(f"r{run}", BEFORE_MIDNIGHT + minutes(at)) for say, run, at in lives]
    said += [finished(f"r{run}", ended_at=BEFORE_MIDNIGHT + minutes(at)) for run, at in ends]
    return [feed.channel(event, org=org) for event in said]


async def books_of(room, org):
    """What people read, and all signs of life behind it."""
    shown, spend, months = await state_of(room, org)
    signs = await room.rows(
        "SELECT run_id, root_run_id, first_sign_at, last_sign_at, own_first_sign_at, "
        "own_last_sign_at FROM run WHERE org = $1 ORDER BY 1",
        org,
    )
    months = [("" if scope_id == org else scope_id, *rest) for _, scope_id, *rest in months]
    return shown, spend.model_dump(exclude={"started_from"}), months, [tuple(row) for row in signs]


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(story=stories(), seed=st.integers(0, 2**32))
async def test_all_orders_of_starts_that_contradict_one_another_agree(room, story, seed):
    chance = random.Random(seed)
    states = []
    for shuffled in (False, True, True):
        org = f"contradicted-{next(ORGS)}"
        feed = Feed()
        await room.hear([feed.directory(organization(), org, org=org)])
        await room.hear([feed.directory(agent("a"), "a", org=org)])
        events = events_of(feed, story, org)
        if shuffled:
            events = events + chance.choices(events, k=len(events) // 2)
            chance.shuffle(events)
        batch = chance.choice((1, 2, 3, 50))
        middle = chance.randrange(len(events)) if shuffled else 0
        await room.hear(events[:middle], batch=batch)
        await fail_the_silent(room)
        await room.hear(events[middle:], batch=batch)
        await fail_the_silent(room)
        gone = {f"r{run}" for say, run, _ in story[2] if say is deleted}
        await assert_the_newest_word_is_true(room, org, gone)
        states.append(await books_of(room, org))
    assert states[0] == states[1]
    assert states[0] == states[2]
    await room.rows("DELETE FROM inbox WHERE org = $1", org)
    await room.hear(events, batch=3)
    assert await books_of(room, org) == states[2]
    await assert_books_are_sums_of_entries(room, org)
    at = BEFORE_MIDNIGHT + minutes(chance.uniform(-3, 9))
    await assert_windows_agree(room, org, [(at, None), (at, at + minutes(2))])
    await assert_rebuilding_agrees(room)


async def test_a_root_is_not_seen_with_a_run_that_another_start_took_out_of_its_tree(room):
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        org = f"left-{next(ORGS)}"
        feed = Feed()
        await room.hear([feed.directory(organization(), org, org=org)])
        said = [
            started("kid", **under("x"), started_at=BEFORE_MIDNIGHT + minutes(2)),
            started("kid", **under("y"), started_at=BEFORE_MIDNIGHT + minutes(1)),
            heartbeat("x", BEFORE_MIDNIGHT + minutes(5)),
        ]
        await room.hear([feed.channel(said[place], org=org) for place in order], batch=1)
        runs = {run.run_id: run for run in (await room.runs(org)).items}
        assert runs["x"].started_at == BEFORE_MIDNIGHT + minutes(5)
        assert runs["y"].started_at == BEFORE_MIDNIGHT + minutes(1)
        assert runs["x"].last_sign_at == BEFORE_MIDNIGHT + minutes(5)
    await assert_rebuilding_agrees(room)


def under(root: str) -> dict[str, str]:
    return {"root_run_id": root, "parent_run_id": root}
