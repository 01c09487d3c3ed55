"""Holds where runs, caps and months move under them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from contracts.directory import AgentBudget
from contracts.types import CapMode, UsageKind
from services.ledger.domain.holds import GRACE
from tests.admission_checker import Checker
from tests.factories import (
    Feed,
    agent,
    belongs,
    deleted,
    department,
    finished,
    heartbeat,
    minutes,
    organization,
    started,
)
from tests.integration.ledger.asking import USD, ask, handle_until, held, know, overruns, paid
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
IN_TREE = {"run_id": "child", "root_run_id": "r1", "agent_id": "helper"}


def strict(revision: int, cap: int | None):
    return organization(
        entity_revision=revision,
        cap_revision=revision,
        monthly_budget_nanousd=cap,
        cap_mode=CapMode.STRICT,
    )


@pytest.mark.parametrize("kind", [UsageKind.COMPACTION, UsageKind.REVIEWER, UsageKind.JUDGE])
async def test_what_is_asked_beside_the_conversation_holds_as_well(
    room: LedgerRoom, feed: Feed, checker: Checker, kind: UsageKind
):
    await know(room, feed)
    assert (await room.authorize(ask("a1", 6 * USD, kind=kind))).held_nanousd == 6 * USD
    assert (await room.authorize(ask("a2", 6 * USD))).refusal.held_nanousd == 6 * USD
    await room.hear([feed.channel(paid("a1", "2", kind=kind))])
    assert (await room.authorize(ask("a3", 8 * USD))).allowed


@pytest.mark.parametrize(("speaks", "is_open"), [("child", True), ("r1", False)])
async def test_a_hold_waits_for_who_asked_and_not_for_who_delegated(
    room: LedgerRoom, feed: Feed, checker: Checker, speaks: str, is_open: bool
):
    """A root may live for hours after a delegate of it died: its money has to come back."""
    await know(room, feed)
    child = started("child", parent_run_id="r1", root_run_id="r1", delegation_id="d1")
    await room.hear([feed.channel(child)])
    begun = room.clock.at
    await room.authorize(ask("a1", 9 * USD, request_timeout_s=30, **IN_TREE))
    alive_at = room.clock.at = begun + minutes(3)
    await room.hear([feed.channel(heartbeat(speaks, at=alive_at), at=alive_at, stored_at=alive_at)])
    await handle_until(room, alive_at + GRACE / 2)
    await room.keeper.keep()
    assert (await held(room, state="open")).total == int(is_open)


async def test_what_a_delegate_speaks_prolongs_the_hold_of_who_waits_for_it(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    child = started("child", parent_run_id="r1", root_run_id="r1", delegation_id="d1")
    await room.hear([feed.channel(child)])
    begun = room.clock.at
    await room.authorize(ask("a1", USD, request_timeout_s=30))
    alive_at = room.clock.at = begun + minutes(3)
    beat = heartbeat("child", at=alive_at)
    await room.hear([feed.channel(beat, at=alive_at, stored_at=alive_at)])
    await handle_until(room, alive_at + GRACE / 2)
    await room.keeper.keep()
    assert (await held(room, state="open")).total == 1


@pytest.mark.parametrize("is_reported", [True, False])
async def test_a_run_that_is_deleted_with_a_hold_open_leaks_nothing(
    room: LedgerRoom, feed: Feed, checker: Checker, is_reported: bool
):
    await know(room, feed)
    await room.authorize(ask("a1", 9 * USD, request_timeout_s=30))
    at = room.clock.at
    await room.hear([feed.channel(deleted("r1", at), at=at, stored_at=at)])
    assert (await room.authorize(ask("a2", 1))).refusal.code == "run_deleted"
    alive_at = room.clock.at = at + minutes(3)
    said = paid("a1", "4") if is_reported else heartbeat("r1", at=alive_at)
    await room.hear([feed.channel(said, at=alive_at, stored_at=alive_at)])
    await handle_until(room, alive_at + GRACE / 2)
    await room.keeper.keep()
    states = {row.request_id: row.state for row in (await held(room)).items}
    assert states == {"a1": "settled" if is_reported else "expired"}
    (cap,) = (await room.caps()).items
    assert (cap.spent_nanousd, cap.held_nanousd) == (4 * USD if is_reported else 0, 0)


@pytest.mark.parametrize("has_ended", [True, False])
async def test_a_run_that_has_ended_waits_for_no_report(
    room: LedgerRoom, feed: Feed, checker: Checker, has_ended: bool
):
    await know(room, feed)
    begun = room.clock.at
    await room.authorize(ask("a1", 9 * USD, request_timeout_s=30))
    ended_at = room.clock.at = begun + minutes(3)
    last = finished("r1", ended_at=ended_at) if has_ended else heartbeat("r1", at=ended_at)
    await room.hear([feed.channel(last, at=ended_at, stored_at=ended_at)])
    await handle_until(room, ended_at + GRACE / 2)
    await room.keeper.keep()
    assert (await held(room, state="open")).total == int(not has_ended)


async def test_a_request_over_the_edge_of_a_month_is_held_and_billed_in_the_first(
    room: LedgerRoom, feed: Feed
):
    november, december = Checker(room.database._dsn), Checker(room.database._dsn, "2026-12")
    await know(room, feed)
    room.clock.at = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
    await room.authorize(ask("a1", 9 * USD))
    room.clock.at = datetime(2026, 12, 1, 0, 0, 1, tzinfo=UTC)
    assert (await room.authorize(ask("a2", 10 * USD))).allowed, "December has all its room"
    for checker in (november, december):
        await checker.look()
    over = paid("a1", "9", occurred_at=room.clock.at)
    await room.hear([feed.channel(over, at=room.clock.at, stored_at=room.clock.at)])
    (row,) = (await held(room, state="settled")).items
    assert (row.caps[0].month, row.actual_nanousd) == ("2026-11", 9 * USD)
    assert [(each.spent, each.held) for each in await november.look()] == [(9 * USD, 0)]
    # Heard in December, it is borne by December's cap as well (design.md 3, *Time*).
    assert [(each.spent, each.held) for each in await december.look()] == [(9 * USD, 10 * USD)]
    (row,) = (await overruns(room)).items
    assert (row.month, row.amount_nanousd) == ("2026-12", 9 * USD)
    assert (row.cause, row.request_id) == ("settled_late", "a1")
    (cap,) = (await room.caps()).items
    assert (cap.month, cap.spent_nanousd, cap.late_nanousd) == ("2026-12", 0, 9 * USD)


async def test_a_cap_that_is_taken_away_and_set_again_counts_what_is_held_under_it(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    await room.authorize(ask("a1", 6 * USD))
    await room.hear([feed.directory(strict(3, None), "acme")])
    free = await room.authorize(ask("a2", 50 * USD))
    assert (free.allowed, free.hold_id, free.remaining) == (True, None, ())
    await room.hear([feed.directory(strict(4, 8 * USD), "acme")])
    assert (await room.authorize(ask("a3", 3 * USD))).refusal.held_nanousd == 6 * USD
    assert (await room.authorize(ask("a4", 2 * USD))).allowed
    await room.hear([feed.channel(paid("a1", "6")), feed.channel(paid("a4", "2"))])
    assert (await overruns(room)).total == 0
    await room.hear([feed.channel(paid("a2", "5"))])
    (row,) = (await overruns(room)).items
    assert (row.cause, row.amount_nanousd, row.request_id) == ("unheld_usage", 5 * USD, "a2")


async def test_a_cap_that_was_set_while_a_request_was_under_way_names_that_request(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    """It held under the caps of its time only: under the new one its money comes unheld."""
    await know(room, feed)
    await room.authorize(ask("a1", 5 * USD))
    await room.hear([feed.directory(agent("coder", 2 * USD), "coder")])
    assert (await room.authorize(ask("a2", 2 * USD))).allowed
    await room.hear([feed.channel(paid("a1", "5"))])
    (row,) = (await overruns(room)).items
    assert (row.scope, row.cause, row.amount_nanousd) == ("agent", "unheld_usage", 5 * USD)
    assert row.request_id == "a1"


async def test_a_start_that_contradicts_its_question_moves_what_was_held_for_it(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed, org_cap=20 * USD)
    await room.hear([feed.directory(agent(each, 4 * USD), each) for each in ("coder", "other")])
    names = {"run_id": "r7", "root_run_id": "r7"}
    assert (await room.authorize(ask("a1", 4 * USD, **names))).allowed
    assert (await room.authorize(ask("a2", 1))).refusal.id == "coder"
    await room.hear([feed.channel(started("r7", agent_id="other"))])
    assert (await room.authorize(ask("a3", 3 * USD, **names))).allowed, "another agent's cap"
    await room.hear([feed.channel(paid("a1", "4", "r7"))])
    (row,) = (await overruns(room)).items
    assert (row.scope_id, row.amount_nanousd, row.held_nanousd) == ("other", 3 * USD, 3 * USD)
    assert (row.cause, row.request_id) == ("reattributed", "a1")
    assert (await room.authorize(ask("a4", 4 * USD))).allowed, "nothing is left under the first"
    assert (await held(room, state="open")).total == 2


async def test_a_run_that_turns_out_to_be_another_channels_settles_no_hold_of_this_one(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    await room.know(feed, "acme2", channels=("c1", "c2"))
    await room.hear([feed.channel(started("r8"), channel_id="c2")])
    with pytest.raises(Exception, match="belongs to another channel"):
        await room.authorize(ask("a1", 9 * USD, run_id="r8", root_run_id="r8"))
    assert (await held(room)).total == 0
    assert (await room.authorize(ask("a2", 10 * USD))).allowed


async def test_a_tree_holds_under_its_own_cap_whoever_in_it_asks(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    root = started("root", budget_nanousd=5 * USD)
    child = {"parent_run_id": "root", "root_run_id": "root", "delegation_id": "d1"}
    await room.hear(
        [
            feed.channel(root),
            feed.channel(started("one", budget_nanousd=2 * USD, **child)),
            feed.channel(started("two", **child)),
        ]
    )
    names = {run: {"run_id": run, "root_run_id": "root"} for run in ("root", "one", "two")}
    refused = (await room.authorize(ask("a1", 3 * USD, **names["one"]))).refusal
    assert (refused.scope, refused.id) == ("run", "one")
    assert (await room.authorize(ask("a2", 2 * USD, **names["one"]))).allowed
    assert (await room.authorize(ask("a3", 2 * USD, **names["two"]))).allowed
    refused = (await room.authorize(ask("a4", 2 * USD, **names["root"]))).refusal
    assert (refused.scope, refused.id, refused.held_nanousd) == ("run", "root", 4 * USD)
    await room.hear([feed.channel(paid("a2", "4", "one"))])
    page = await overruns(room)
    assert {(row.scope_id, row.amount_nanousd) for row in page.items} == {
        ("one", 2 * USD),
        ("root", USD),
    }


async def test_what_came_too_often_shows_what_remains_and_not_what_it_would_have_held(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed)
    limited = agent("coder", budget=AgentBudget(requests_per_minute=1))
    await room.hear([feed.directory(limited, "coder")])
    await room.authorize(ask("a1", USD))
    refused = await room.authorize(ask("a2", 2 * USD))
    assert refused.refusal.code == "rate_limited"
    assert [(left.held_nanousd, left.remaining_nanousd) for left in refused.remaining] == [
        (USD, 9 * USD)
    ]
    assert (refused.hold_id, refused.held_nanousd, refused.output_tokens_max) == (None, None, None)


async def test_a_switch_to_strict_mode_looks_at_every_cap(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await room.know(feed)
    await room.hear(
        [
            feed.directory(agent("coder", 2 * USD), "coder"),
            feed.directory(department("sales", belongs("user-1"), cap=USD), "sales"),
            feed.channel(started("r1")),
            feed.channel(paid("b1", "5")),
            feed.directory(strict(2, 10 * USD), "acme"),
        ]
    )
    page = await overruns(room)
    assert {(row.scope, row.cause, row.amount_nanousd) for row in page.items} == {
        ("agent", "mode_switched", 3 * USD),
        ("department", "mode_switched", 4 * USD),
    }


@pytest.mark.parametrize("mode", list(CapMode))
async def test_work_of_the_platform_is_bound_by_the_organization_and_by_no_agent(
    room: LedgerRoom, feed: Feed, checker: Checker, mode: CapMode
):
    await know(room, feed)
    said = strict(3, 10 * USD).model_copy(update={"cap_mode": mode})
    titles = started("t1", system_role="titles")
    await room.hear(
        [
            feed.directory(said, "acme"),
            feed.directory(agent("coder", 2 * USD), "coder"),
            feed.channel(titles),
            feed.channel(paid("b1", "2")),
        ]
    )
    assert (await room.authorize(ask("a1", USD))).refusal.scope == "agent"
    answer = await room.authorize(ask("a2", 8 * USD, run_id="t1", root_run_id="t1"))
    assert answer.allowed
    assert [left.scope for left in answer.remaining] == ["organization"]


@pytest.mark.parametrize("mode", list(CapMode))
@pytest.mark.parametrize("model", ["claude-opus-4-6", "no-such-model"])
async def test_what_must_fit_and_is_not_bounded_fits_nowhere(
    room: LedgerRoom, feed: Feed, mode: CapMode, model: str
):
    await know(room, feed)
    said = strict(3, 10 * USD).model_copy(update={"cap_mode": mode})
    await room.hear([feed.directory(said, "acme")])
    unbounded = ask("a1", None, must_fit=True, model=model, provider=None)
    refused = await room.authorize(unbounded)
    assert not refused.allowed
    assert refused.refusal.code in ("budget_exceeded", "missing_context")
    assert (await room.authorize(ask("a2", USD, must_fit=True, model=model))).allowed


async def test_the_cap_of_the_tree_binds_whatever_root_a_question_names(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    child = started("child", parent_run_id="root", root_run_id="root", delegation_id="d1")
    await room.hear(
        [feed.channel(started("root", budget_nanousd=2 * USD)), feed.channel(child)],
    )
    names = {"run_id": "grandchild", "root_run_id": "child"}
    refused = (await room.authorize(ask("a1", 3 * USD, **names))).refusal
    assert (refused.scope, refused.id) == ("run", "root")
    assert (await room.authorize(ask("a2", 2 * USD, **names))).allowed
    refused = (await room.authorize(ask("a3", 1, run_id="root", root_run_id="root"))).refusal
    assert (refused.id, refused.held_nanousd) == ("root", 2 * USD)
