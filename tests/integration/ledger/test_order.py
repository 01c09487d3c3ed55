"""Every order, repetition and cut of the same events leaves the same books."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.channel import IngestionReported, Tokens
from contracts.types import RunStatus, Surface
from services.ledger.domain.merging import report_digest
from services.ledger.domain.pricing import price_usage
from services.ledger.errors import CorrectionChangesNothing
from services.ledger.handlers.saying import TotalsSayer
from shared.clock import FixedClock
from tests.factories import (
    Feed,
    agent,
    deleted,
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
from tests.integration.ledger.reconciling import (
    assert_books_are_sums_of_entries,
    assert_deleted_runs_are_gone,
    assert_rebuilding_agrees,
)
from tests.integration.ledger.windows import assert_windows_agree
from tests.ledger_room import BOOK, LedgerRoom

pytestmark = pytest.mark.integration
ORGS = itertools.count(1)
BEFORE_MIDNIGHT = datetime(2026, 10, 31, 23, 58, tzinfo=UTC)
"""Some of a story's requests are of the last minutes of a month, and arrive in the next."""
MODELS = ("claude-opus-4-6", "claude-haiku-4-5", "no-such-model")


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
    """A forest of runs with requests that are reported once or several times, some wrongly."""
    run_count = draw(st.integers(1, 5))
    runs = []
    for number in range(run_count):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        runs.append((f"r{number}", parent, draw(st.sampled_from(("coder", "helper")))))
    reports = draw(
        st.lists(
            st.tuples(
                st.integers(0, 5),
                st.integers(0, run_count - 1),
                st.sampled_from(MODELS),
                st.integers(-1, 3_000),
                st.integers(0, 900),
                st.booleans(),
                st.integers(0, 3),
                st.none() | st.integers(0, run_count - 1),
            ),
            max_size=12,
        )
    )
    ends = draw(
        st.lists(
            st.tuples(
                st.integers(0, run_count - 1),
                st.sampled_from((RunStatus.COMPLETED, RunStatus.FAILED)),
                st.integers(5, 7),
                st.integers(0, 1),
            ),
            max_size=4,
        )
    )
    ingested = draw(
        st.lists(
            st.tuples(
                # Request ids of runs among them: one request is one amount, whoever says it.
                st.sampled_from(("q0", "q1", "i0", "i1", "i2")),
                st.sampled_from(("ingestion-a", "ingestion-b")),
                st.sampled_from(MODELS),
                st.integers(-1, 3_000),
                st.booleans(),
                st.integers(0, 3),
            ),
            max_size=6,
        )
    )
    lives = draw(
        st.lists(
            st.tuples(
                st.sampled_from(("parked", "resumed", "beats")),
                st.integers(0, run_count - 1),
                st.integers(-1, 8),
            ),
            max_size=6,
        )
    )
    voices = draw(st.sets(st.integers(0, run_count - 1), max_size=1))
    gone = draw(st.lists(st.tuples(st.integers(0, run_count - 1), st.integers(-1, 8)), max_size=3))
    return runs, reports, ends, ingested, lives, voices, gone


def events_of(feed: Feed, story, org: str):
    runs, reports, ends, ingested, lives, voices, gone = story
    roots: dict[str, str] = {}
    events = []
    for number, (run_id, parent, agent_id) in enumerate(runs):
        roots[run_id] = run_id if parent is None else roots[runs[parent][0]]
        events.append(
            feed.channel(
                started(
                    run_id,
                    agent_id=agent_id,
                    root_run_id=roots[run_id],
                    parent_run_id=None if parent is None else runs[parent][0],
                    started_at=BEFORE_MIDNIGHT - minutes(1),
                    surface=Surface.VOICE if number in voices else Surface.CLI,
                ),
                org=org,
            )
        )
    said = []
    for request, run, model, input_tokens, output, interrupted, at, billed in reports:
        report = usage(
            f"q{request}",
            f"r{run}",
            model=model,
            tokens=Tokens(input=input_tokens, output=output),
            interrupted=interrupted,
            occurred_at=BEFORE_MIDNIGHT + minutes(at),
            billed_run_id=None if billed is None else f"r{billed}",
        )
        said.append(report)
        events.append(feed.channel(report, org=org))
    for request, ingestion_id, model, input_tokens, interrupted, at in ingested:
        report = ingestion(
            request,
            ingestion_id,
            model=model,
            tokens=Tokens(input=input_tokens, output=1),
            interrupted=interrupted,
            occurred_at=BEFORE_MIDNIGHT + minutes(at),
        )
        said.append(report)
        events.append(feed.channel(report, org=org))
    for run, status, at, missing in ends:
        end = finished(
            f"r{run}",
            status=status,
            ended_at=BEFORE_MIDNIGHT + minutes(at),
            missing_delegates=missing,
        )
        events.append(feed.channel(end, org=org))
    say = {"parked": parked, "resumed": resumed, "beats": heartbeat}
    for kind, run, at in lives:
        life = say[kind](f"r{run}", BEFORE_MIDNIGHT + minutes(at))
        events.append(feed.channel(life, org=org))
    for run, at in gone:
        events.append(feed.channel(deleted(f"r{run}", BEFORE_MIDNIGHT + minutes(at)), org=org))
    return events, said, roots_after(runs, {f"r{run}" for run, _ in gone})


def parents_of(runs) -> dict[str, str | None]:
    return {run_id: None if parent is None else runs[parent][0] for run_id, parent, _ in runs}


def roots_after(runs, gone: set[str]) -> dict[str, str]:
    """Each run's root, once these are deleted: what they had delegated are roots."""
    roots: dict[str, str] = {}
    for run_id, parent, _ in runs:
        is_root = parent is None or runs[parent][0] in gone
        roots[run_id] = run_id if is_root else roots[runs[parent][0]]
    return roots


def expected_bill(said):
    """The rule of design.md 4 written a second time, over the whole set of reports."""
    claims = defaultdict(list)
    for report in said:
        claims[report.request_id].append(report)
    bill = defaultdict(int)
    for reports in claims.values():
        contexts = defaultdict(list)
        for report in reports:
            contexts[(*bearer_of(report), report.model)].append(report)
        owner = min(contexts, key=lambda key: (min(r.occurred_at for r in contexts[key]), key))
        priced = [(price_usage(BOOK, report), report) for report in contexts[owner]]

        def rank(item):
            price, report = item
            return (
                price.reason != "bad_usage",
                not report.interrupted,
                report.tokens.output,
                report.tokens.input,
                report_digest(report),
            )

        best = max(priced, key=rank)
        bill[billed_to(best[1])] += best[0].cost_nanousd
    return bill


def bearer_of(report):
    """The run or the ingestion that claims a request; ingestion first among equals."""
    if isinstance(report, IngestionReported):
        return ("", report.ingestion_id)
    return (report.run_id, "")


def billed_to(report):
    """A run's id; None for what belongs to no run."""
    if isinstance(report, IngestionReported):
        return None
    return report.billed_run_id or report.run_id


async def state_of(room: LedgerRoom, org: str):
    """Everything that people read, and the sums behind it."""
    runs = await room.runs(org, include_delegations=True)
    shown = {run.run_id: run.model_dump(exclude={"last_sign_at"}) for run in runs.items}
    spend = await room.spend(org)
    months = await room.rows(
        "SELECT scope, scope_id, month, cost_nanousd, unpriced_count, late_nanousd "
        "FROM month_spend WHERE org = $1 AND (cost_nanousd <> 0 OR unpriced_count <> 0 "
        "OR late_nanousd <> 0) ORDER BY 1, 2, 3",
        org,
    )
    return shown, spend, [tuple(row) for row in months]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(story=stories(), seed=st.integers(0, 2**32))
async def test_all_orders_agree_with_one_another_and_with_the_rule(room, story, seed):
    chance = random.Random(seed)
    states = []
    for shuffled in (False, True, True):
        org = f"org-{next(ORGS)}"
        feed = Feed()
        await room.hear([feed.directory(organization(), org, org=org)])
        await room.hear([feed.directory(agent("coder"), "coder", org=org)])
        events, said, roots = events_of(feed, story, org)
        if shuffled:
            events = events + chance.choices(events, k=len(events) // 2)
            chance.shuffle(events)
        batch = chance.choice((1, 2, 3, 50))
        middle = chance.randrange(len(events)) if shuffled else 0
        await room.hear(events[:middle], batch=batch)
        await fail_the_silent(room)
        await room.hear(events[middle:], batch=batch)
        await fail_the_silent(room)
        gone = {f"r{run}" for run, _ in story[-1]}
        await assert_the_newest_word_is_true(room, org, gone)
        shown, spend, months = await state_of(room, org)
        states.append((shown, _without_org(spend), _months(months, org)))

        bill = expected_bill(said)
        total = sum(bill.values())
        assert spend.cost_nanousd == total
        for breakdown in (spend.by_provider, spend.by_key, spend.by_day):
            assert sum(line.cost_nanousd for line in breakdown) == total
        assert spend.ingestion.cost_nanousd == bill.get(None, 0)
        for breakdown in (spend.by_agent, spend.by_person):
            of_runs = sum(line.cost_nanousd for line in breakdown)
            assert of_runs + spend.ingestion.cost_nanousd == total
        await _assert_floors_say_what_is_unpriced(room, spend, org)
        of_months = [row for row in months if row[0] == "organization"]
        assert sum(row[3] for row in of_months) == total
        late = sum(row[3] for row in of_months if row[2] == "2026-10")
        assert sum(row[5] for row in of_months) == late, "what came late is borne once"
        await _assert_each_run_bears_its_own(room, org, shown, bill, roots)
        await assert_deleted_runs_are_gone(room, org, parents_of(story[0]), gone)
    assert states[0] == states[1] == states[2]
    await _assert_replay_changes_nothing(room, events, org)
    await assert_books_are_sums_of_entries(room, org)
    await _correct_some(room, chance, org)
    await assert_books_are_sums_of_entries(room, org)
    # What is heard after a correction moves sums as if nobody had corrected.
    grown = [
        report.model_copy(update={"tokens": Tokens(input=4_000, output=999)}) for report in said
    ]
    await room.hear([Feed().channel(report, org=org) for report in grown], batch=3)
    await assert_books_are_sums_of_entries(room, org)
    await _assert_replay_changes_nothing(room, events, org)
    begins, ends = ((BEFORE_MIDNIGHT + minutes(chance.uniform(-4, 9))) for _ in range(2))
    await assert_windows_agree(room, org, [(begins, None), (min(begins, ends), max(begins, ends))])
    await assert_rebuilding_agrees(room)


async def _assert_each_run_bears_its_own(room, org, shown, bill, roots):
    entered = await room.rows(
        "SELECT billed_run_id, sum(cost_nanousd)::bigint AS cost FROM entry WHERE org = $1 "
        "GROUP BY 1",
        org,
    )
    assert {row["billed_run_id"]: row["cost"] for row in entered if row["cost"]} == {
        run_id: cost for run_id, cost in bill.items() if cost
    }
    for run_id, row in shown.items():
        assert row["own"]["cost_nanousd"] == bill.get(run_id, 0)
        if roots[run_id] == run_id:
            members = [member for member, root in roots.items() if root == run_id]
            tree = sum(bill.get(member, 0) for member in members)
            assert row["totals"]["cost_nanousd"] == tree


async def _correct_some(room, chance, org):
    """People correct entries, some of them more than once."""
    entered = await room.rows("SELECT id FROM entry WHERE org = $1 ORDER BY sequence", org)
    for number in range(min(len(entered), 4)):
        entry_id = str(chance.choice(entered)["id"])
        try:
            await room.correct(entry_id, chance.choice((0, 5, 10**9)), f"c{number}", org=org)
        except CorrectionChangesNothing:
            continue


async def _assert_floors_say_what_is_unpriced(room, spend, org):
    """The mark of ingestion is that of its entries, whatever request ids runs share with it."""
    (entered,) = await room.rows(
        "SELECT coalesce(sum(unpriced_count), 0) AS floors, coalesce(sum(request_count), 0) AS n, "
        "bool_and(run_id IS NULL) AS apart FROM entry WHERE org = $1 AND ingestion_id IS NOT NULL",
        org,
    )
    assert spend.ingestion.is_partial == (entered["floors"] > 0)
    assert spend.ingestion.request_count == entered["n"]
    assert entered["apart"] is not False


async def _assert_replay_changes_nothing(room, events, org):
    """A whole stream again, after the inbox has forgotten it (design.md 2, *Streams*)."""
    before = await state_of(room, org)
    entered = await room.rows("SELECT count(*) FROM entry WHERE org = $1", org)
    await room.rows("DELETE FROM inbox WHERE org = $1", org)
    said = await room.said(org)
    await room.hear(events, batch=7)
    assert await room.said(org) == said
    assert await state_of(room, org) == before
    assert await room.rows("SELECT count(*) FROM entry WHERE org = $1", org) == entered


async def fail_the_silent(room):
    """As if everything had been handled ten minutes from now: whoever runs is silent."""
    await room.reaper.sweep(room.clock.at + minutes(10), minutes(2))


async def assert_the_newest_word_is_true(room, org, gone=frozenset()):
    """`run_changed` is said once after the last change, and says what people read."""
    soon = TotalsSayer(database=room.database, clock=FixedClock(room.clock.at + minutes(1)))
    while await soon.say_due():
        pass
    said = defaultdict(list)
    for one in await room.said(org):
        said[one.run_id].append(one)
    shown = (await room.runs(org, include_delegations=True)).items
    for run in shown:
        revisions = [one.run_revision for one in said[run.run_id]]
        assert revisions == list(range(1, len(revisions) + 1))
        if not revisions:
            continue
        newest = said[run.run_id][-1]
        assert (newest.status, newest.error) == (run.status, run.error)
        assert (newest.totals, newest.partial) == (run.totals, run.is_partial)
        assert (newest.root_run_id, newest.parent_run_id) == (run.root_run_id, run.parent_run_id)
        assert not newest.deleted
    assert all(said[run_id][-1].deleted for run_id in gone)
    silent = [run for run in shown if not said[run.run_id]]
    assert all(run.provisional and not run.totals.request_count for run in silent)


def _without_org(spend):
    return spend.model_dump(exclude={"started_from"})


def _months(months, org):
    return [("" if scope_id == org else scope_id, *rest) for _, scope_id, *rest in months]
