"""A report is authorized by a question that came before it, however late the report is handled."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.channel import Tokens
from contracts.ledger import Authorize
from services.ledger.domain.merging import report_digest
from tests.factories import MODEL, Feed, ingestion, minutes, started, usage
from tests.integration.ledger.reconciling import (
    assert_books_are_sums_of_entries,
    assert_rebuilding_agrees,
)
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ORGS = itertools.count(1)
MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC)
INPUT_NANOUSD = 5_000
"""One input token of the model."""
ONE_REQUEST = 7_500_000


@pytest.fixture(scope="module")
async def room(servers):
    """With its owner's sign-in, to make everything again."""
    database = await servers.new_database("ledger")
    room = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    yield room
    await room.close()
    await servers.drop_database(database)


def ask(request_id: str, run_id: str | None) -> Authorize:
    return Authorize(
        request_id=request_id,
        run_id=run_id,
        root_run_id=run_id,
        agent_id="coder",
        root_agent_id="coder",
        user_id=None,
        started_by_user_id=None,
        model=MODEL,
        provider="anthropic",
    )


async def months(room: LedgerRoom, org: str) -> dict[str, tuple[int, int]]:
    """Cost and late cost of each month that has any."""
    rows = await room.rows(
        "SELECT month, cost_nanousd, late_nanousd FROM month_spend WHERE org = $1 "
        "AND scope = 'organization' AND (cost_nanousd <> 0 OR late_nanousd <> 0)",
        org,
    )
    return {row["month"]: (int(row["cost_nanousd"]), int(row["late_nanousd"])) for row in rows}


async def entered(room: LedgerRoom, org: str) -> list[tuple]:
    rows = await room.rows(
        "SELECT request_id, billed_run_id, month, cost_nanousd, billed_at FROM entry "
        "WHERE org = $1 ORDER BY sequence",
        org,
    )
    return [tuple(row) for row in rows]


async def new_org(room: LedgerRoom, feed: Feed, *run_ids: str) -> str:
    org = f"org-{next(ORGS)}"
    room.clock.at = MIDNIGHT - minutes(30)
    await room.know(feed, org)
    begun = MIDNIGHT - minutes(40)
    await room.hear([feed.channel(started(each, started_at=begun), org=org) for each in run_ids])
    return org


@pytest.mark.parametrize("kind", ["usage", "ingestion"])
async def test_a_question_after_the_report_authorizes_nothing_when_it_is_heard_again(
    room: LedgerRoom, feed: Feed, kind: str
):
    """Stored at five past midnight, asked about at ten past: billed when it occurred."""
    org = await new_org(room, feed, "r1")
    occurred_at, stored_at = MIDNIGHT - minutes(5), MIDNIGHT + minutes(5)
    of_run = kind == "usage"
    report = (
        usage("q1", "r1", occurred_at=occurred_at)
        if of_run
        else ingestion("q1", occurred_at=occurred_at)
    )
    said = [feed.channel(report, org=org, stored_at=stored_at)]
    room.clock.at = stored_at
    await room.hear(said)
    first = await months(room, org), await entered(room, org)
    room.clock.at = MIDNIGHT + minutes(10)
    assert (await room.authorize(ask("q1", "r1" if of_run else None), org=org)).allowed
    room.clock.at = MIDNIGHT + minutes(20)
    await room.hear(said)
    assert (await months(room, org), await entered(room, org)) == first
    assert first[0] == {"2026-11": (ONE_REQUEST, 0), "2026-12": (0, ONE_REQUEST)}
    await assert_rebuilding_agrees(room)


async def test_a_report_that_is_handled_after_a_later_question_is_what_it_was(
    room: LedgerRoom, feed: Feed
):
    """The ledger is behind: the question is answered first, though the report was stored first."""
    org = await new_org(room, feed, "r1")
    occurred_at, stored_at = MIDNIGHT - minutes(5), MIDNIGHT - minutes(4)
    room.clock.at = MIDNIGHT + minutes(10)
    assert (await room.authorize(ask("q1", "r1"), org=org)).allowed
    report = usage("q1", "r1", occurred_at=occurred_at)
    await room.hear([feed.channel(report, org=org, stored_at=stored_at)])
    assert await months(room, org) == {"2026-11": (ONE_REQUEST, 0)}


async def test_a_question_in_the_instant_of_the_report_comes_before_it(
    room: LedgerRoom, feed: Feed
):
    """A channel reports after the answer: clocks may not tell the two apart."""
    org = await new_org(room, feed, "r1")
    room.clock.at = MIDNIGHT - minutes(1)
    assert (await room.authorize(ask("q1", "r1"), org=org)).allowed
    report = usage("q1", "r1", occurred_at=MIDNIGHT + minutes(1))
    await room.hear([feed.channel(report, org=org, stored_at=room.clock.at)])
    assert await months(room, org) == {"2026-11": (ONE_REQUEST, 0)}


@pytest.mark.parametrize("turned", [False, True])
async def test_of_the_same_words_before_and_after_a_question_the_first_hold(
    room: LedgerRoom, feed: Feed, turned: bool
):
    """Said in November, asked about in December and said again: it was paid for in November."""
    org = await new_org(room, feed, "r1")
    report = usage("q1", "r1", occurred_at=MIDNIGHT - minutes(5))
    said = [
        feed.channel(report, org=org, stored_at=MIDNIGHT + minutes(stored)) for stored in (-4, 6)
    ]
    room.clock.at = MIDNIGHT + minutes(5)
    assert (await room.authorize(ask("q1", "r1"), org=org)).allowed
    room.clock.at = MIDNIGHT + minutes(7)
    await room.hear(said[::-1] if turned else said, batch=1)
    assert await months(room, org) == {"2026-11": (ONE_REQUEST, 0)}
    await assert_books_are_sums_of_entries(room, org)


class Said(NamedTuple):
    """A report and when its stream stored it; minutes after midnight."""

    request: int
    run: int
    input_tokens: int
    occurred: int
    stored: int


class Asked(NamedTuple):
    """The first question about a request; minutes after midnight."""

    run: int
    at: int


MINUTES = st.integers(-4, 8)


@st.composite
def stories(draw):
    """Requests of two runs around the end of a month, asked about before or after or never.

    Some reports say the same words as an earlier one and are stored at another time.
    """
    said = []
    for _ in range(draw(st.integers(1, 7))):
        if said and draw(st.booleans()):
            again = draw(st.sampled_from(said))
            said.append(again._replace(stored=draw(st.integers(again.occurred, 9))))
            continue
        occurred = draw(MINUTES)
        stored = draw(st.integers(occurred, 9))
        counts = draw(st.integers(0, 2)), draw(st.integers(0, 1)), draw(st.integers(1, 900))
        said.append(Said(*counts, occurred, stored))
    asked = draw(
        st.dictionaries(st.integers(0, 2), st.builds(Asked, st.integers(0, 1), MINUTES), max_size=3)
    )
    return said, asked


def report_of(said: Said):
    return usage(
        f"q{said.request}",
        f"r{said.run}",
        tokens=Tokens(input=said.input_tokens),
        occurred_at=MIDNIGHT + minutes(said.occurred),
    )


def month_at(minute: int) -> str:
    return "2026-11" if minute < 0 else "2026-12"


def expected_months(story) -> dict[str, tuple[int, int]]:
    """The rule a second time: the first copy of some words decides whether they were asked for."""
    said, asked = story
    claims = defaultdict(lambda: defaultdict(list))
    for each in said:
        claims[each.request][each.run].append(each)
    cost, late = defaultdict(int), defaultdict(int)
    for request, of_runs in claims.items():
        candidates = []
        for run, reports in of_runs.items():
            best = max(
                reports, key=lambda item: (item.input_tokens, report_digest(report_of(item)))
            )
            copies = sorted(each.stored for each in reports if each[:4] == best[:4])
            question = asked.get(request)
            own = question is not None and question.run == run and question.at <= copies[0]
            billed = question.at if own else best.occurred
            first = min(each.occurred for each in reports)
            candidates.append((not own, first, run, best, billed, copies[0]))
        *_, best, billed, stored = min(candidates)
        amount = best.input_tokens * INPUT_NANOUSD
        cost[month_at(billed)] += amount
        if month_at(billed) < month_at(stored):
            late[month_at(stored)] += amount
    return {month: (cost[month], late[month]) for month in cost.keys() | late.keys()}


def steps_of(story, chance: random.Random | None):
    """Reports in any order; a question is answered before what was stored after it is handled."""
    said, asked = list(story[0]), story[1]
    if chance is None:
        said.sort(key=lambda item: item.stored)
    else:
        said += chance.choices(said, k=len(said) // 2)
        chance.shuffle(said)
    steps = list(said)
    for request, question in asked.items():
        later = (
            place
            for place, step in enumerate(steps)
            if isinstance(step, Said) and step.request == request and step.stored >= question.at
        )
        latest = next(later, len(steps))
        place = latest if chance is None else chance.randint(0, latest)
        steps.insert(place, (request, question))
    return steps


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(story=stories(), seed=st.integers(0, 2**32))
async def test_all_orders_of_reports_and_questions_bill_the_same_months(room, story, seed):
    chance = random.Random(seed)
    expected = expected_months(story)
    for shuffled in (False, True, True):
        feed = Feed()
        org = await new_org(room, feed, "r0", "r1")
        heard, waiting = [], []

        async def handle(waiting, org=org):
            room.clock.at = MIDNIGHT + minutes(20)
            await room.hear(waiting, batch=chance.choice((1, 2, 50)))
            waiting.clear()

        for step in steps_of(story, chance if shuffled else None):
            if isinstance(step, Said):
                stored_at = MIDNIGHT + minutes(step.stored)
                waiting.append(feed.channel(report_of(step), org=org, stored_at=stored_at))
                heard.append(waiting[-1])
                continue
            await handle(waiting)
            request, question = step
            room.clock.at = MIDNIGHT + minutes(question.at)
            assert (await room.authorize(ask(f"q{request}", f"r{question.run}"), org=org)).allowed
        await handle(waiting)
        assert await months(room, org) == expected
        before = await entered(room, org)
        chance.shuffle(heard)
        await room.hear(heard, batch=3)
        assert await entered(room, org) == before
        assert await months(room, org) == expected
        await assert_books_are_sums_of_entries(room, org)
    await assert_rebuilding_agrees(room)
