"""Every order of starts, usage and words of departments leaves the same departments' months."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.channel import Tokens
from contracts.directory import DepartmentRemoved
from tests.factories import (
    Feed,
    agent,
    belongs,
    department,
    minutes,
    organization,
    started,
    usage,
)
from tests.integration.ledger.reconciling import assert_rebuilding_agrees
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ORGS = itertools.count(1)
AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
PEOPLE = ("ana", "bea", None)
DEPARTMENTS = ("sales", "finance", "support")
INPUT_NANOUSD = 5_000
"""One input token of the model."""


@pytest.fixture(scope="module")
async def room(servers):
    database = await servers.new_database("ledger")
    room = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    room.clock.at = AT + minutes(60)
    yield room
    await room.close()
    await servers.drop_database(database)


MOMENTS = st.integers(0, 6).map(lambda minute: AT + minutes(minute))


@st.composite
def memberships(draw):
    """One state of a department: intervals that may leave gaps, and perhaps a cap."""
    people = []
    for user_id in ("ana", "bea"):
        edges = sorted(draw(st.sets(MOMENTS, max_size=4)))
        for begin, end in itertools.zip_longest(edges[::2], edges[1::2]):
            people.append((user_id, begin, end))
    return people, draw(st.sampled_from((None, 1_000_000, 9_000_000)))


def removals(states: int):
    """When, and whether it is the last word: one that a later state overtook counts for nothing."""
    return st.tuples(MOMENTS, st.just(True) if states == 1 else st.booleans())


@st.composite
def stories(draw):
    """A forest of runs with usage, and departments that change, some of them removed."""
    count = draw(st.integers(1, 5))
    runs = []
    for number in range(count):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        runs.append((parent, draw(st.sampled_from(PEOPLE)), draw(MOMENTS)))
    spent = draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(1, 900)), min_size=1, max_size=6)
    )
    states = {name: draw(st.lists(memberships(), min_size=1, max_size=3)) for name in DEPARTMENTS}
    removed = {name: draw(st.none() | removals(len(states[name]))) for name in DEPARTMENTS}
    return runs, spent, states, removed


def events_of(feed: Feed, story, org: str):
    runs, spent, states, removed = story
    roots: list[int] = []
    events = []
    for number, (parent, person, at) in enumerate(runs):
        roots.append(number if parent is None else roots[parent])
        start = started(
            f"r{number}",
            root_run_id=f"r{roots[-1]}",
            parent_run_id=None if parent is None else f"r{parent}",
            started_by_user_id=person,
            started_at=at,
        )
        events.append(feed.channel(start, org=org))
    for number, (run, tokens) in enumerate(spent):
        said = usage(
            f"q{number}", f"r{run}", tokens=Tokens(input=tokens), occurred_at=AT + minutes(8)
        )
        events.append(feed.channel(said, org=org))
    for name, revisions in states.items():
        for revision, (people, cap) in enumerate(revisions, start=1):
            members = (belongs(user_id, begin, end) for user_id, begin, end in people)
            state = department(name, *members, revision=revision, cap=cap)
            events.append(feed.directory(state, name, org=org))
        if removed[name] is not None:
            at, last = removed[name]
            revision = len(revisions) + 1 if last else 1
            gone = DepartmentRemoved(entity_revision=revision, department_id=name, removed_at=at)
            events.append(feed.directory(gone, name, org=org))
    return events, roots


def expected_months(story, roots):
    """The rule a second time: whole intervals, over the last state of each department."""
    runs, spent, states, removed = story
    months = defaultdict(int)
    for run, tokens in spent:
        _, person, begun = runs[roots[run]]
        for name, revisions in states.items():
            people, _ = revisions[-1]
            if removed[name] is not None and removed[name][1] and begun >= removed[name][0]:
                continue
            if any(
                user_id == person and since <= begun and (until is None or begun < until)
                for user_id, since, until in people
            ):
                months[name] += tokens * INPUT_NANOUSD
    return dict(months)


async def state_of(room: LedgerRoom, org: str):
    months = await room.rows(
        "SELECT scope, CASE WHEN scope = 'organization' THEN '' ELSE scope_id END, month, "
        "cost_nanousd, unpriced_count, late_nanousd FROM month_spend WHERE org = $1 "
        "AND (cost_nanousd <> 0 OR unpriced_count <> 0 OR late_nanousd <> 0) ORDER BY 1, 2, 3",
        org,
    )
    runs = await room.rows(
        "SELECT run_id, counted_departments FROM run WHERE org = $1 ORDER BY 1", org
    )
    page = await room.departments(org)
    spend = await room.spend(org, AT - minutes(60))
    people = {line.user_id: line.cost_nanousd for line in spend.by_person}
    assert sum(people.values()) == sum(line.cost_nanousd for line in spend.by_agent)
    return [tuple(row) for row in months], [tuple(row) for row in runs], page.items, people


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(story=stories(), seed=st.integers(0, 2**32))
async def test_all_orders_leave_the_months_that_the_last_words_make(room, story, seed):
    chance = random.Random(seed)
    states = []
    for shuffled in (False, True, True):
        org = f"org-{next(ORGS)}"
        feed = Feed()
        await room.hear([feed.directory(organization(), org, org=org)])
        await room.hear([feed.directory(agent("coder"), "coder", org=org)])
        events, roots = events_of(feed, story, org)
        if shuffled:
            events = events + chance.choices(events, k=len(events) // 2)
            chance.shuffle(events)
        while events:
            cut = chance.randint(1, len(events))
            # Trees are counted again in between, or all at the end.
            await room.hear(events[:cut], batch=chance.choice((1, 2, 3, 50)))
            events = events[cut:]
        state = await state_of(room, org)
        states.append(state)
        months, _, items, _ = state
        counted = {row[1]: int(row[3]) for row in months if row[0] == "department"}
        expected = expected_months(story, roots)
        assert counted == expected
        shown = {item.department_id: item.spent_nanousd for item in items if item.spent_nanousd}
        assert shown == expected
        await assert_said_once_where_it_is_near(room, org, story, expected)
    assert states[0] == states[1] == states[2]
    await assert_replay_changes_nothing(room, org, story)
    await assert_rebuilding_agrees(room)


async def assert_said_once_where_it_is_near(room, org, story, expected):
    """What is near by the last words was warned of; what was near for a while may have been."""
    _, _, states, removed = story
    said = await room.rows(
        "SELECT scope_id, cap_revision FROM cap_notice WHERE org = $1 AND scope = 'department'", org
    )
    events = await room.rows(
        "SELECT message_id FROM outbox WHERE subject = $1",
        f"rienda.event.{org}.ledger.cap_warned.v1",
    )
    assert len(events) == len(said) == len({event["message_id"] for event in events})
    for name, revisions in states.items():
        _, cap = revisions[-1]
        is_gone = removed[name] is not None and removed[name][1]
        near = cap is not None and expected.get(name, 0) * 100 >= cap * 80
        if near and not is_gone:
            assert (name, len(revisions)) in [tuple(row) for row in said]


async def assert_replay_changes_nothing(room, org, story):
    """A whole stream again, after the inbox has forgotten it (design.md 2, *Streams*)."""
    before = await state_of(room, org)
    said = await room.rows("SELECT count(*) FROM cap_notice WHERE org = $1", org)
    await room.rows("DELETE FROM inbox WHERE org = $1", org)
    events, _ = events_of(Feed(), story, org)
    await room.hear(events, batch=7)
    assert await state_of(room, org) == before
    assert await room.rows("SELECT count(*) FROM cap_notice WHERE org = $1", org) == said
