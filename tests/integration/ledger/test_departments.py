"""Departments' months: whose runs count, since when, and what a department's cap refuses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from contracts.directory import BillingZone, DepartmentRemoved
from services.ledger import migrations as ledger_migrations
from services.ledger.handlers.recounting import Recounter
from tests.factories import (
    NOON,
    Feed,
    agent,
    belongs,
    deleted,
    department,
    minutes,
    organization,
    started,
    usage,
)
from tests.integration.ledger.test_authorize import ask
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
VERSIONS = Path(ledger_migrations.__file__).parent / "versions"
ONE_REQUEST = 7_500_000
LONG_BEFORE = NOON - timedelta(days=10)


async def spent(room: LedgerRoom, **asked) -> dict[str, int]:
    page = await room.departments(**asked)
    return {item.department_id: item.spent_nanousd for item in page.items}


async def know(room: LedgerRoom, feed: Feed, *departments) -> None:
    await room.know(feed)
    await room.hear([feed.directory(each, each.department_id) for each in departments])


async def run_of(room: LedgerRoom, feed: Feed, run_id: str, user_id: str | None, **fields) -> None:
    start = started(run_id, started_by_user_id=user_id, **fields)
    await room.hear([feed.channel(start), feed.channel(usage(f"{run_id}.q", run_id))])


async def test_a_run_counts_in_full_in_each_department_of_who_started_it(
    room: LedgerRoom, feed: Feed
):
    await know(
        room,
        feed,
        department("finance", belongs("ana"), belongs("bea")),
        department("sales", belongs("ana"), cap=100 * ONE_REQUEST),
        department("support"),
    )
    await run_of(room, feed, "r1", "ana")
    await run_of(room, feed, "r2", "bea")
    await run_of(room, feed, "r3", None)
    await run_of(room, feed, "r4", "nobody-we-know")
    page = await room.departments()
    shown = [
        (row.department_id, row.spent_nanousd, row.run_count, row.member_count, row.is_partial)
        for row in page.items
    ]
    assert shown == [
        ("finance", 2 * ONE_REQUEST, 2, 2, False),
        ("sales", ONE_REQUEST, 1, 1, False),
        ("support", 0, 0, 0, False),
    ]
    assert (page.month, page.total) == ("2026-11", 3)
    assert page.since == datetime(2026, 11, 1, tzinfo=UTC)
    assert [row.department_id for row in (await room.departments(skip=1, limit=1)).items] == [
        "sales"
    ]
    caps = {cap.id: cap for cap in (await room.caps()).items}
    assert (caps["sales"].spent_nanousd, caps["sales"].is_partial) == (ONE_REQUEST, False)
    spend = await room.spend()
    assert {line.user_id: (line.cost_nanousd, line.run_count) for line in spend.by_person} == {
        "ana": (ONE_REQUEST, 1),
        "bea": (ONE_REQUEST, 1),
        "nobody-we-know": (ONE_REQUEST, 1),
        None: (ONE_REQUEST, 1),
    }


async def test_a_floor_is_one_where_an_unpriced_entry_is_in_it(room: LedgerRoom, feed: Feed):
    await know(
        room, feed, department("sales", belongs("ana")), department("finance", belongs("bea"))
    )
    await run_of(room, feed, "r1", "bea")
    await run_of(room, feed, "r2", "ana")
    await room.hear([feed.channel(usage("q9", "r2", model="no-such-model"))])
    page = await room.departments()
    assert {row.department_id: row.is_partial for row in page.items} == {
        "sales": True,
        "finance": False,
    }
    people = {line.user_id: line for line in (await room.spend()).by_person}
    assert (people["ana"].is_partial, people["ana"].partial_run_count) == (True, 1)
    assert not people["bea"].is_partial


async def test_what_a_delegate_spends_counts_where_the_root_was_started(
    room: LedgerRoom, feed: Feed
):
    await know(
        room, feed, department("sales", belongs("ana")), department("finance", belongs("bea"))
    )
    child = started("c1", root_run_id="r1", parent_run_id="r1", started_by_user_id="bea")
    await room.hear([feed.channel(usage("q1", "c1"))])
    assert await spent(room) == {"sales": 0, "finance": 0}
    await room.hear([feed.channel(child)])
    assert await spent(room) == {"sales": 0, "finance": 0}
    await room.hear([feed.channel(started("r1", started_by_user_id="ana"))])
    assert await spent(room) == {"sales": ONE_REQUEST, "finance": 0}


async def test_it_counts_by_the_membership_at_the_roots_start(room: LedgerRoom, feed: Feed):
    ends = NOON + minutes(5)
    await know(room, feed, department("sales", belongs("ana", NOON, ends)))
    for number, at in enumerate((NOON - minutes(1), NOON, NOON + minutes(4), ends)):
        await run_of(room, feed, f"r{number}", "ana", started_at=at)
    assert await spent(room) == {"sales": 2 * ONE_REQUEST}


async def test_a_membership_that_is_told_late_or_taken_back_moves_what_was_spent(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed, department("sales"))
    for number in range(5):
        await run_of(room, feed, f"r{number}", "ana", started_at=NOON + minutes(number))
    assert await spent(room) == {"sales": 0}
    for revision, members, runs in (
        (2, (belongs("ana", NOON + minutes(3)),), 2),
        (3, (belongs("ana", LONG_BEFORE),), 5),
        (4, (belongs("ana", LONG_BEFORE, NOON + minutes(1)),), 1),
        (5, (belongs("bea", LONG_BEFORE),), 0),
    ):
        state = department("sales", *members, revision=revision)
        await room.hear([feed.directory(state, "sales")])
        assert await spent(room) == {"sales": runs * ONE_REQUEST}, revision
    entries = await room.rows("SELECT count(*) FROM entry")
    assert entries[0][0] == 5, "what is entered stays as it is"


async def test_a_removed_department_keeps_what_began_before_and_binds_no_more(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed, department("sales", belongs("ana"), cap=1))
    await run_of(room, feed, "r1", "ana", started_at=NOON)
    await run_of(room, feed, "r2", "ana", started_at=NOON + minutes(5))
    assert not (await room.authorize(ask("a1", started_by_user_id="ana"))).allowed
    gone = DepartmentRemoved(entity_revision=2, department_id="sales", removed_at=NOON + minutes(2))
    await room.hear([feed.directory(gone, "sales")])
    (row,) = (await room.departments()).items
    assert (row.spent_nanousd, row.run_count, row.removed) == (ONE_REQUEST, 1, True)
    assert (await room.departments(month="2026-10")).items == ()
    assert (await room.authorize(ask("a2", started_by_user_id="ana"))).allowed


async def test_a_late_word_is_worked_off_in_small_steps_and_goes_on_where_it_was(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed, department("sales"))
    for number in range(5):
        await run_of(room, feed, f"r{number}", "ana")
    await run_of(room, feed, "early", "ana", started_at=NOON - minutes(1))
    state = department("sales", belongs("ana", NOON), revision=2)
    await room.consumers["DIRECTORY"].handle([feed.directory(state, "sales")])
    seen = []
    recounter = Recounter(database=room.database, clock=room.clock, trees_max=2)
    while await recounter.step():
        seen.append((await spent(room))["sales"] // ONE_REQUEST)
    assert seen == [2, 4, 5]
    assert await room.rows("SELECT * FROM recount") == []


async def test_a_change_of_name_or_cap_counts_nothing_again(room: LedgerRoom, feed: Feed):
    await know(room, feed, department("sales", belongs("ana")))
    await room.rows("DELETE FROM recount")
    state = department("sales", belongs("ana"), revision=2, cap=7, name="Sales & more")
    await room.consumers["DIRECTORY"].handle([feed.directory(state, "sales")])
    assert await room.rows("SELECT * FROM recount") == []


async def test_a_word_of_departments_waits_for_what_is_counted_without_it(
    room: LedgerRoom, feed: Feed
):
    """Otherwise trees would be counted again before this one can be seen, and never after."""
    await know(room, feed, department("sales"))
    word = feed.directory(department("sales", belongs("ana"), revision=2), "sales")
    batch = [feed.channel(started("r1", started_by_user_id="ana")), feed.channel(usage("q1", "r1"))]
    async with room.uncommitted("CHANNEL", batch):
        change = asyncio.create_task(room.consumers["DIRECTORY"].handle([word]))
        await room.waits_or_ends(change)
        await room.recount()
    await change
    await room.recount()
    assert await spent(room) == {"sales": ONE_REQUEST}


@pytest.mark.parametrize("round_", range(4))
async def test_starts_and_words_of_departments_at_once_miss_nothing(
    room: LedgerRoom, feed: Feed, round_: int
):
    """Reports are counted by several processes while who belongs changes back and forth."""
    await know(room, feed, department("sales"))
    runs = [
        [
            feed.channel(started(f"r{n}", started_by_user_id="ana")),
            feed.channel(usage(f"q{n}", f"r{n}")),
        ]
        for n in range(30)
    ]
    words = [
        feed.directory(
            department("sales", *((belongs("ana"),) if n % 2 else ()), revision=n + 2), "sales"
        )
        for n in range(10 - round_ % 2)
    ]

    async def report(part: int) -> None:
        for batch in runs[part::3]:
            await handled(room, "CHANNEL", batch)

    async def change() -> None:
        for word in words:
            await handled(room, "DIRECTORY", [word])

    async def recount() -> None:
        recounter = Recounter(database=room.database, clock=room.clock, trees_max=3)
        for _ in range(20):
            await recounter.step()

    await asyncio.gather(report(0), report(1), report(2), change(), recount(), recount())
    await room.recount()
    belongs_now = (len(words) - 1) % 2 == 1
    assert await spent(room) == {"sales": 30 * ONE_REQUEST if belongs_now else 0}


async def handled(room: LedgerRoom, stream: str, batch) -> None:
    """As the consumer does: what Postgres ended is tried again."""
    from shared.db import is_transient

    while True:
        try:
            await room.consumers[stream].handle(batch)
        except Exception as error:
            if not is_transient(error):
                raise
        else:
            return


async def test_the_departments_cap_stands_between_agent_and_organization(
    room: LedgerRoom, feed: Feed
):
    await know(
        room,
        feed,
        department("finance", belongs("ana"), cap=50 * ONE_REQUEST),
        department("sales", belongs("ana"), cap=ONE_REQUEST),
        department("support", belongs("ana")),
    )
    await room.hear([feed.directory(agent("coder", 100 * ONE_REQUEST), "coder")])
    asked = ask("a1", started_by_user_id="ana")
    answer = await room.authorize(asked)
    assert answer.allowed
    assert [(cap.scope, cap.id) for cap in answer.remaining] == [
        ("agent", "coder"),
        ("department", "finance"),
        ("department", "sales"),
        ("organization", "acme"),
    ]
    await run_of(room, feed, "r1", "ana", started_at=NOON)
    answer = await room.authorize(ask("a2", started_by_user_id="ana"))
    assert not answer.allowed
    refusal = answer.refusal
    assert (refusal.code, refusal.scope, refusal.id) == ("budget_exceeded", "department", "sales")
    assert (refusal.limit_nanousd, refusal.spent_nanousd) == (ONE_REQUEST, ONE_REQUEST)
    assert answer.sentence.startswith("Sales department monthly budget exhausted: ")
    others = await room.authorize(
        ask("a3", run_id="r9", root_run_id="r9", started_by_user_id="bea")
    )
    assert [cap.scope for cap in others.remaining] == ["agent", "organization"]
    nobody = await room.authorize(ask("a4", run_id="r8", root_run_id="r8", started_by_user_id=None))
    assert nobody.allowed


async def test_the_start_of_the_root_decides_whose_cap_binds(room: LedgerRoom, feed: Feed):
    """What a question says holds until the start has come; then membership at the start."""
    ended = belongs("ana", LONG_BEFORE, NOON + minutes(2))
    await know(room, feed, department("sales", ended, cap=ONE_REQUEST))

    async def bound(number: int, run_id: str, **context) -> list[str]:
        answer = await room.authorize(ask(f"a{number}", run_id=run_id, **context))
        return [cap.id for cap in answer.remaining if cap.scope == "department"]

    # Half an hour after noon: ana belongs no more, and nobody knows of r1 yet.
    assert await bound(1, "r1", root_run_id="r1", started_by_user_id="ana") == []
    await room.hear([feed.channel(started("r1", started_by_user_id="ana"))])
    assert await bound(2, "r1", root_run_id="r1", started_by_user_id="ana") == ["sales"]
    # A delegated run's own starter does not matter, nor what its question says.
    child = started("c1", root_run_id="r1", parent_run_id="r1", started_by_user_id="bea")
    await room.hear([feed.channel(child)])
    assert await bound(3, "c1", root_run_id="r1", started_by_user_id="bea") == ["sales"]
    late = started("r2", started_by_user_id="ana", started_at=NOON + minutes(3))
    await room.hear([feed.channel(late)])
    assert await bound(4, "r2", root_run_id="r2", started_by_user_id="ana") == []


@pytest.mark.parametrize(
    ("timezone", "since", "inside"),
    [
        ("Pacific/Kiritimati", datetime(2026, 10, 31, 10, tzinfo=UTC), True),
        ("Pacific/Pago_Pago", datetime(2026, 11, 1, 11, tzinfo=UTC), False),
    ],
)
async def test_the_month_is_that_of_the_billing_time_zone(
    room: LedgerRoom, feed: Feed, timezone: str, since: datetime, inside: bool
):
    zones = (BillingZone(from_month="0001-01", timezone=timezone),)
    room.clock.at = datetime(2026, 11, 1, 12, tzinfo=UTC)
    state = organization(entity_revision=2, billing_timezone=timezone, billing_zones=zones)
    await know(room, feed, department("sales", belongs("ana")))
    await room.hear([feed.directory(state, "acme")])
    at = datetime(2026, 10, 31, 11, tzinfo=UTC)
    await room.hear(
        [
            feed.channel(started("r1", started_by_user_id="ana", started_at=at)),
            feed.channel(usage("q1", "r1", occurred_at=at)),
        ]
    )
    page = await room.departments(month="2026-11")
    assert page.since == since
    assert [(row.spent_nanousd > 0, row.run_count) for row in page.items] == [(inside, int(inside))]
    before = (await room.departments(month="2026-10")).items
    assert [row.run_count for row in before] == [int(not inside)]


async def test_what_was_entered_before_departments_were_charged_is_counted(
    room: LedgerRoom, feed: Feed
):
    """A ledger that is migrated asks for a recount of everybody; shown on books without any."""
    await know(room, feed, department("sales", belongs("ana")), department("old", belongs("bea")))
    for number, user_id in enumerate(("ana", "ana", "bea", None)):
        await run_of(room, feed, f"r{number}", user_id)
    before = await spent(room)
    assert before == {"sales": 2 * ONE_REQUEST, "old": ONE_REQUEST}
    await room.rows("UPDATE run SET counted_departments = '{}'")
    await room.rows("UPDATE month_spend SET cost_nanousd = 0 WHERE scope = 'department'")
    migration = (VERSIONS / "ledger_0005.sql").read_text()
    asked = migration[migration.index("INSERT INTO recount") :]
    await room.rows(asked[: asked.index(";")])
    await room.recount()
    assert await spent(room) == before


async def test_deleted_trees_count_among_a_departments_runs_as_their_money_does(
    room: LedgerRoom, feed: Feed
):
    """And what was delegated from them is a run of its own, of its own starter."""
    await know(room, feed, department("sales", belongs("ana")), department("it", belongs("bea")))
    await run_of(room, feed, "r1", "ana")
    await run_of(room, feed, "r2", "ana")
    await run_of(room, feed, "r3", "ana", root_run_id="r2", parent_run_id="r2")
    await run_of(room, feed, "r4", "bea", root_run_id="r2", parent_run_id="r2")
    before = {row.department_id: row for row in (await room.departments()).items}
    assert (before["sales"].run_count, before["sales"].spent_nanousd) == (2, 4 * ONE_REQUEST)
    await room.hear([feed.channel(deleted("r1")), feed.channel(deleted("r2"))])
    shown = {
        row.department_id: (row.run_count, row.spent_nanousd)
        for row in (await room.departments()).items
    }
    assert shown == {"sales": (3, 3 * ONE_REQUEST), "it": (1, ONE_REQUEST)}
    people = {
        line.user_id: (line.run_count, line.cost_nanousd) for line in (await room.spend()).by_person
    }
    assert people == {"ana": shown["sales"], "bea": shown["it"]}
    assert (await room.runs()).total == 2, "two of them nobody sees"
