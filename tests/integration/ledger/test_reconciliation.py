"""Every figure reconciles: bill = entries = by agent = by provider = by key = by day = by person.

Random forests of runs with everything that moves money, in random order with repetitions, beside
an accountant who works the same figures out from the whole story (issue "Ledger rules", point 7).
"""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.channel import ProviderCost, Tokens
from contracts.directory import BillingZone
from contracts.types import RunStatus, Surface, UsageKind
from services.ledger.errors import CorrectionChangesNothing
from tests.factories import (
    Feed,
    agent,
    belongs,
    deleted,
    department,
    finished,
    heartbeat,
    ingestion,
    minutes,
    organization,
    parked,
    resumed,
    started,
    usage,
)
from tests.integration.ledger.accountant import Accountant, Amount, Story
from tests.integration.ledger.reconciling import assert_rebuilding_agrees
from tests.integration.ledger.windows import assert_windows_agree
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ORGS = itertools.count(1)
ALWAYS = "0001-01"
EDGES = (
    ((ALWAYS, "UTC"), datetime(2026, 10, 31, 23, 58, tzinfo=UTC)),
    ((ALWAYS, "Pacific/Kiritimati"), datetime(2026, 10, 31, 9, 58, tzinfo=UTC)),
    ((ALWAYS, "Pacific/Niue"), datetime(2026, 11, 1, 10, 58, tzinfo=UTC)),
    # Clocks go back two hours after midnight.
    ((ALWAYS, "America/New_York"), datetime(2026, 11, 1, 3, 58, tzinfo=UTC)),
    # From UTC to UTC+14 as the month begins: its first minutes are the tenth hour of the last day.
    (("2026-11", "Pacific/Kiritimati"), datetime(2026, 10, 31, 9, 58, tzinfo=UTC)),
)
"""Newest billing zones, and two minutes before a month and a day end in them."""
AGENTS = ("coder", "helper", "scout")
PEOPLE = ("ana", "bea", None)
DEPARTMENTS = ("sales", "support")
SURFACES = (Surface.CLI, Surface.SCHEDULE, Surface.VOICE, Surface.PROACTIVE)
ROUTINES = (None, None, "daily", "weekly")
PRICES = (
    None,
    ProviderCost(amount="0.0123456789", currency="USD"),
    ProviderCost(amount="3.5", currency="NOK"),
    ProviderCost(amount="-1", currency="USD"),
    ProviderCost(amount="7", currency="CHF"),
)
MODELS = (
    ("anthropic", "claude-opus-4-6"),
    ("openai", "gpt-5"),
    ("anthropic", "no-such-model"),
    (None, "gpt-5"),
)
KINDS = tuple(kind for kind in UsageKind if kind is not UsageKind.INGESTION)


@pytest.fixture(scope="module")
async def room(servers):
    database = await servers.new_database("ledger")
    room = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    yield room
    await room.close()
    await servers.drop_database(database)


@st.composite
def stories(draw) -> Story:
    newest, at = draw(st.sampled_from(EDGES))
    older = () if newest[0] == ALWAYS else ((ALWAYS, "UTC"),)
    story = Story(at=at, zones=(*older, newest))
    moments = st.integers(-3, 6).map(lambda minute: at + minutes(minute))
    count = draw(st.integers(2, 6))
    for number in range(count):
        # Three of four have a parent, so that trees have some depth.
        is_root = number == 0 or draw(st.integers(0, 3)) == 0
        parent = None if is_root else draw(st.integers(0, number - 1))
        run_id = f"r{number}"
        start = started(
            run_id,
            root_run_id=run_id if parent is None else story.starts[f"r{parent}"].root_run_id,
            parent_run_id=None if parent is None else f"r{parent}",
            agent_id=draw(st.sampled_from(AGENTS)),
            started_by_user_id=draw(st.sampled_from(PEOPLE)),
            system_role=draw(st.sampled_from((None, None, "review"))),
            user_id=draw(st.sampled_from(PEOPLE)),
            surface=draw(st.sampled_from(SURFACES)),
            routine_id=draw(st.sampled_from(ROUTINES)),
            goal_id=draw(st.sampled_from((None, "green"))),
            started_at=draw(moments),
        )
        story.starts[run_id] = start
    runs = st.integers(0, count - 1).map(lambda number: f"r{number}")
    story.reports = draw(st.lists(reports(runs, moments), min_size=4, max_size=16))
    story.ends = draw(st.lists(ends(runs, moments), max_size=4))
    story.deleted = draw(st.sets(runs, max_size=3))
    for name in draw(st.sets(st.sampled_from(DEPARTMENTS))):
        people = draw(
            st.lists(st.tuples(st.sampled_from(("ana", "bea")), moments, st.integers(0, 4)))
        )
        spans = {}
        for person, since, length in people:
            # One interval a person: overlapping ones are no state of a directory.
            spans[person] = (since, since + minutes(length) if length else None)
        story.memberships[name] = [(person, *span) for person, span in spans.items()]
    return story


@st.composite
def reports(draw, runs, moments):
    provider, model = draw(st.sampled_from(MODELS))
    said = {
        "provider": provider,
        "model": model,
        "key_id": draw(st.sampled_from((None, "key-1", "key-2"))),
        "tokens": Tokens(input=draw(st.integers(-1, 5_000)), output=draw(st.integers(0, 900))),
        "provider_cost": draw(st.sampled_from(PRICES)),
        "occurred_at": draw(moments),
    }
    request_id = f"q{draw(st.integers(0, 7))}"
    if draw(st.integers(0, 4)) == 0:
        return ingestion(request_id, draw(st.sampled_from(("i1", "i2"))), **said)
    return usage(
        request_id,
        draw(runs),
        kind=draw(st.sampled_from(KINDS)),
        billed_run_id=draw(st.none() | runs),
        interrupted=draw(st.booleans()),
        **said,
    )


@st.composite
def ends(draw, runs, moments):
    return finished(
        draw(runs),
        status=draw(st.sampled_from((RunStatus.COMPLETED, RunStatus.FAILED))),
        ended_at=draw(moments) + minutes(7),
        missing_delegates=draw(st.integers(0, 2)),
    )


def zoned(story: Story):
    return organization(
        billing_timezone=story.zones[-1][1],
        billing_zones=tuple(
            BillingZone(from_month=month, timezone=name) for month, name in story.zones
        ),
    )


def deliveries_of(story: Story, feed: Feed, org: str, chance: random.Random):
    said = [*story.starts.values(), *story.ends, *story.reports]
    for run_id in story.starts:
        at = story.at + minutes(chance.randint(-2, 8))
        said += chance.choices([parked(run_id, at), resumed(run_id, at), heartbeat(run_id, at)])
    said += [deleted(run_id, story.at + minutes(chance.randint(-2, 8))) for run_id in story.deleted]
    events = [feed.channel(data, org=org) for data in said]
    for name, people in story.memberships.items():
        # An earlier state said something else; whichever arrives last, the newer one holds.
        older = department(name, belongs("ana"), revision=1)
        newer = department(name, *(belongs(*span) for span in people), revision=2)
        events += [feed.directory(state, name, org=org) for state in (older, newer)]
    events += chance.choices(events, k=len(events) // 3)
    chance.shuffle(events)
    return events


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(story=stories(), seed=st.integers(0, 2**32))
async def test_every_figure_is_what_the_accountant_says(room: LedgerRoom, story, seed):
    story.corrected.clear()
    chance = random.Random(seed)
    org = f"org-{next(ORGS)}"
    feed = Feed()
    room.clock.at = story.at + minutes(90)
    await room.hear([feed.directory(zoned(story), org, org=org)])
    await room.hear([feed.directory(agent(name), name, org=org) for name in AGENTS])
    events = deliveries_of(story, feed, org, chance)
    while events:
        cut = chance.randint(1, len(events))
        await room.hear(events[:cut], batch=chance.choice((1, 3, 50)))
        events = events[cut:]
        await correct_some(room, org, story, chance)
        if chance.random() < 0.3:
            await room.reaper.sweep(room.clock.at + minutes(10), minutes(2))
    accountant = Accountant(story)
    await assert_the_bill(room, org, accountant)
    await assert_months(room, org, accountant)
    await assert_runs(room, org, accountant)
    begins, ends = ((story.at + minutes(chance.uniform(-4, 9))) for _ in range(2))
    await assert_windows_agree(room, org, [(begins, None), (min(begins, ends), max(begins, ends))])
    await assert_rebuilding_agrees(room)


async def correct_some(room: LedgerRoom, org: str, story: Story, chance: random.Random) -> None:
    """Say of some entries with a price what they should have cost; others own requests later."""
    found = await room.rows(
        "SELECT id, request_id FROM entry WHERE org = $1 AND kind <> 'correction' "
        "AND reason IS NULL AND unpriced_count = 0 ORDER BY sequence",
        org,
    )
    for entry in chance.sample(found, min(len(found), chance.randint(0, 2))):
        correction_id = f"c{next(ORGS)}"
        try:
            made = await room.correct(
                str(entry["id"]), chance.choice((0, 5, 10**9)), correction_id, org=org
            )
        except CorrectionChangesNothing:
            continue
        story.corrected[entry["request_id"]] += made.difference_nanousd


async def assert_the_bill(room: LedgerRoom, org: str, accountant: Accountant) -> None:
    spend = await room.spend(org, accountant.story.at - timedelta(days=1))
    total = accountant.total()
    entered = await room.rows(
        "SELECT coalesce(sum(cost_nanousd), 0) AS cost FROM entry WHERE org = $1", org
    )
    assert (spend.cost_nanousd, int(entered[0]["cost"])) == (total.cost, total.cost)
    assert spend.is_partial == (total.floors > 0)

    def shown(rows, name: str) -> dict[str, tuple[int, bool]]:
        return {
            getattr(row, name) or ("nobody" if name == "user_id" else "none"): (
                row.cost_nanousd,
                row.is_partial,
            )
            for row in rows
            if row.cost_nanousd or row.is_partial
        }

    assert shown(spend.by_agent, "agent_id") == marked(accountant.by_agent())
    assert shown(spend.by_person, "user_id") == marked(accountant.by_person())
    assert shown(spend.by_provider, "provider") == marked(accountant.by_provider())
    assert shown(spend.by_key, "key_id") == marked(accountant.by_key())
    assert shown(spend.by_day, "day") == marked(accountant.by_day())
    apart = sum(line.amount.cost for line in accountant.lines if line.run_id is None)
    assert spend.ingestion.cost_nanousd == apart
    gone = accountant.of_deleted()
    assert (spend.deleted.cost_nanousd, spend.deleted.is_partial) == (gone.cost, gone.floors > 0)


def marked(amounts: dict[str, Amount]) -> dict[str, tuple[int, bool]]:
    """Money, and whether it is a floor, of whatever is not nothing."""
    return {
        name: (amount.cost, amount.floors > 0)
        for name, amount in amounts.items()
        if amount != Amount()
    }


async def assert_months(room: LedgerRoom, org: str, accountant: Accountant) -> None:
    rows = await room.rows(
        "SELECT scope, scope_id, month, cost_nanousd, unpriced_count FROM month_spend "
        "WHERE org = $1 AND (cost_nanousd <> 0 OR unpriced_count <> 0)",
        org,
    )
    kept = {
        (row["scope"], "" if row["scope"] == "organization" else row["scope_id"], row["month"]): (
            Amount(int(row["cost_nanousd"]), int(row["unpriced_count"]))
        )
        for row in rows
    }
    assert kept == accountant.months()


async def assert_runs(room: LedgerRoom, org: str, accountant: Accountant) -> None:
    rows = (await room.runs(org, include_delegations=True)).items
    assert {run.run_id for run in rows} == accountant.story.starts.keys() - accountant.story.deleted
    for run in rows:
        own = accountant.own(run.run_id)
        assert (run.own.cost_nanousd, run.own.unpriced_count + run.own.missing_delegate_count) == (
            own.cost,
            own.floors,
        )
        whole = accountant.tree(run.run_id) if run.parent_run_id is None else own
        assert (run.totals.cost_nanousd, run.is_partial) == (whole.cost, whole.floors > 0)
