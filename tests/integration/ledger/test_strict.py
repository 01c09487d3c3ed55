"""Strict mode: what a request may cost is held before it is sent, and nothing is overspent."""

from __future__ import annotations

import pytest

from contracts.channel import ProviderCost
from contracts.types import CapMode, UnpricedPolicy
from services.ledger.domain.holds import GRANT_TOKENS_MAX, GRANT_TOKENS_MIN
from tests.admission_checker import Checker
from tests.factories import (
    Feed,
    agent,
    belongs,
    department,
    finished,
    ingestion,
    organization,
    started,
)
from tests.integration.ledger.asking import USD, ask, held, know, overruns, paid
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration


async def test_what_is_held_counts_and_is_shown_beside_what_is_spent(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    await room.hear([feed.directory(agent("coder", 4 * USD), "coder")])
    answer = await room.authorize(ask("a1", 3 * USD))
    assert (answer.allowed, answer.hold_id, answer.held_nanousd) == (True, "a1", 3 * USD)
    assert [(cap.scope, cap.held_nanousd, cap.remaining_nanousd) for cap in answer.remaining] == [
        ("agent", 3 * USD, USD),
        ("organization", 3 * USD, 7 * USD),
    ]
    refused = (await room.authorize(ask("a2", 2 * USD))).refusal
    assert refused is not None
    assert (refused.scope, refused.spent_nanousd, refused.held_nanousd, refused.asked_nanousd) == (
        "agent",
        0,
        3 * USD,
        2 * USD,
    )
    assert (await room.authorize(ask("a3", USD))).allowed
    caps = {row.scope: row for row in (await room.caps()).items}
    assert (caps["organization"].spent_nanousd, caps["organization"].held_nanousd) == (0, 4 * USD)
    assert caps["organization"].remaining_nanousd == 6 * USD
    page = await held(room)
    assert [(row.request_id, row.state) for row in page.items] == [("a1", "open"), ("a3", "open")]


async def test_a_report_settles_its_hold_with_its_entry(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    await room.authorize(ask("a1", 9 * USD))
    assert not (await room.authorize(ask("a2", 2 * USD))).allowed
    await room.hear([feed.channel(paid("a1", "0.5"))])
    assert (await room.authorize(ask("a3", 9 * USD))).allowed
    (row,) = (await held(room, state="settled")).items
    assert (row.request_id, row.actual_nanousd) == ("a1", USD // 2)
    assert (await overruns(room)).total == 0
    # The same report again, without an inbox row in between, lets nothing go a second time.
    await room.hear([feed.channel(paid("a1", "0.5"))])
    assert not (await room.authorize(ask("a4", USD))).allowed


async def test_an_actual_ten_times_the_estimate_is_an_overrun_that_the_next_question_sees(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    await room.authorize(ask("a1", 2 * USD))
    await room.authorize(ask("a2", 7 * USD))
    await room.hear([feed.channel(paid("a1", "20"))])
    refused = await room.authorize(ask("a3", 1))
    assert refused.refusal is not None
    assert refused.refusal.spent_nanousd == 20 * USD
    (row,) = (await overruns(room)).items
    assert (row.cause, row.request_id, row.scope) == ("actual_above_hold", "a1", "organization")
    assert row.amount_nanousd == 17 * USD
    assert (row.spent_nanousd, row.held_nanousd) == (20 * USD, 7 * USD)
    said = await room.rows("SELECT * FROM outbox WHERE subject LIKE '%overrun_noted%'")
    assert len(said) == 1
    await room.hear([feed.channel(paid("a2", "7"))])
    assert (await overruns(room)).total == 1


@pytest.mark.parametrize("what", ["ingestion", "unasked", "recorded"])
async def test_what_nothing_was_held_for_is_an_overrun_where_it_exceeds(
    room: LedgerRoom, feed: Feed, checker: Checker, what: str
):
    await know(room, feed)
    await room.authorize(ask("a1", 9 * USD))
    cost = ProviderCost(amount="4", currency="USD")
    report = paid("b1", "4") if what != "ingestion" else ingestion("b1", provider_cost=cost)
    if what == "recorded":
        recorded = organization(entity_revision=3, monthly_budget_nanousd=10 * USD)
        await room.hear([feed.directory(recorded, "acme")])
        assert (await room.authorize(ask("b1"))).hold_id is None
        strict = organization(
            entity_revision=4, monthly_budget_nanousd=10 * USD, cap_mode=CapMode.STRICT
        )
        await room.hear([feed.directory(strict, "acme")])
    await room.hear([feed.channel(report)])
    (row,) = (await overruns(room)).items
    assert (row.cause, row.amount_nanousd, row.request_id) == ("unheld_usage", 3 * USD, "b1")


async def test_a_lowered_cap_and_a_switch_of_modes_are_overruns_of_their_own(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    await room.authorize(ask("a1", 6 * USD))
    lowered = organization(
        entity_revision=3, monthly_budget_nanousd=4 * USD, cap_revision=2, cap_mode=CapMode.STRICT
    )
    await room.hear([feed.directory(lowered, "acme")])
    await checker.look()
    recorded = organization(
        entity_revision=4, monthly_budget_nanousd=4 * USD, cap_revision=2, cap_mode=CapMode.RECORDED
    )
    await room.hear([feed.directory(recorded, "acme"), feed.channel(paid("b1", "5"))])
    assert (await overruns(room)).total == 1
    strict = lowered.model_copy(update={"entity_revision": 5})
    await room.hear([feed.directory(strict, "acme")])
    page = await overruns(room)
    assert {row.cause: row.amount_nanousd for row in page.items} == {
        "cap_lowered": 2 * USD,
        "mode_switched": 5 * USD,
    }
    # What was held in one mode is settled in the other.
    await room.hear([feed.channel(paid("a1", "1"))])
    assert (await held(room, state="open")).total == 0


async def test_runs_and_departments_hold_as_well(room: LedgerRoom, feed: Feed, checker: Checker):
    await know(room, feed, org_cap=None)
    await room.hear(
        [
            feed.directory(department("sales", belongs("user-1"), cap=5 * USD), "sales"),
            feed.channel(started("r2", budget_nanousd=3 * USD)),
        ]
    )
    ours = {"run_id": "r2", "root_run_id": "r2"}
    assert (await room.authorize(ask("a1", 2 * USD, **ours))).allowed
    assert (await room.authorize(ask("a2", 2 * USD, **ours))).refusal.scope == "run"
    assert (await room.authorize(ask("a3", 3 * USD))).allowed
    assert (await room.authorize(ask("a4", 1))).refusal.scope == "department"
    await room.hear([feed.channel(paid("a1", "9", "r2"))])
    page = await overruns(room)
    assert {(row.scope, row.amount_nanousd) for row in page.items} == {
        ("run", 6 * USD),
        ("department", 7 * USD),
    }


async def test_an_asker_without_a_limit_is_granted_one(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    answer = await room.authorize(ask("a1", None, input_tokens_max=1_000))
    assert answer.allowed
    assert answer.output_tokens_max == GRANT_TOKENS_MAX
    assert answer.held_nanousd == 1_000 * 10_000 + GRANT_TOKENS_MAX * 25_000
    (row,) = (await held(room)).items
    assert row.output_tokens_max == GRANT_TOKENS_MAX
    tight = agent("coder", 200_000_000)
    await room.hear([feed.directory(tight, "coder")])
    less = await room.authorize(ask("a2", None, input_tokens_max=1_000))
    assert GRANT_TOKENS_MIN < less.output_tokens_max < GRANT_TOKENS_MAX
    nothing = await room.authorize(ask("a3", None, input_tokens_max=19_000))
    assert nothing.refusal.code == "budget_exceeded"
    unbounded = await room.authorize(ask("a4", None))
    assert unbounded.refusal.code == "missing_context"


async def test_input_is_taken_for_the_dearest_that_it_may_be(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    counts = {"cost": None, "input_tokens_max": 1_000, "output_tokens_max": 100}
    anyhow = await room.authorize(ask("a1", **counts))
    plain = await room.authorize(ask("a2", **counts, cache_write="none"))
    assert (anyhow.held_nanousd, plain.held_nanousd) == (12_500_000, 7_500_000)
    assert anyhow.output_tokens_max == 100


async def test_free_and_unpriced_models(room: LedgerRoom, feed: Feed):
    await know(room, feed, org_cap=USD)
    free = {"provider": "openrouter", "model": "deepseek/deepseek-r1:free", "cost": None}
    unknown = {"model": "no-such-model", "cost": None}
    assert (await room.authorize(ask("a1", **free))).hold_id is None
    marked = await room.authorize(ask("a2", **unknown))
    assert (marked.allowed, marked.unpriced, marked.partial) == (True, True, True)
    assert marked.hold_id is None
    await room.authorize(ask("a3", USD))
    assert (await room.authorize(ask("a4", **free))).allowed
    assert not (await room.authorize(ask("a5", **unknown))).allowed
    refusing = organization(
        entity_revision=3,
        monthly_budget_nanousd=100 * USD,
        cap_mode=CapMode.STRICT,
        unpriced_policy=UnpricedPolicy.REFUSE,
    )
    await room.hear([feed.directory(refusing, "acme")])
    assert (await room.authorize(ask("a6", **unknown))).refusal.code == "unpriced_model"


async def test_a_runs_cap_that_is_learned_when_more_is_spent_is_an_overrun_at_once(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    await room.hear([feed.channel(paid("b1", "3", "r7"))])
    assert (await overruns(room)).total == 0
    names = {"run_id": "r7", "root_run_id": "r7", "run_budget_nanousd": 2 * USD}
    refused = await room.authorize(ask("a1", USD, **names))
    assert refused.refusal is not None
    assert (refused.refusal.scope, refused.refusal.spent_nanousd) == ("run", 3 * USD)
    (row,) = (await overruns(room)).items
    assert (row.scope, row.scope_id, row.cause) == ("run", "r7", "cap_lowered")
    assert (row.amount_nanousd, row.limit_nanousd, row.request_id) == (USD, 2 * USD, None)
    await checker.look()
    assert len(await room.rows("SELECT 1 FROM outbox WHERE subject LIKE '%overrun_noted%'")) == 1
    await room.authorize(ask("a2", USD, **names))
    await room.hear([feed.channel(paid("b2", "0.5", "r7"))])
    causes = {row.cause: row.amount_nanousd for row in (await overruns(room)).items}
    assert causes == {"cap_lowered": USD, "unheld_usage": USD // 2}


async def test_what_a_question_moves_to_an_agents_month_is_an_overrun_at_once(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    await room.hear(
        [feed.directory(agent("coder", 2 * USD), "coder"), feed.channel(paid("b1", "3", "r7"))]
    )
    assert (await overruns(room)).total == 0
    await room.authorize(ask("a1", USD, run_id="r7", root_run_id="r7"))
    (row,) = (await overruns(room)).items
    assert (row.scope, row.scope_id, row.cause) == ("agent", "coder", "reattributed")
    assert row.amount_nanousd == USD
    await checker.look()


async def test_a_run_that_ended_above_its_cap_is_an_overrun_of_the_switch_to_strict_mode(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await room.know(feed)
    await room.hear(
        [
            feed.channel(started("r5", budget_nanousd=USD)),
            feed.channel(paid("b1", "3", "r5")),
            feed.channel(finished("r5")),
        ]
    )
    strict = organization(
        entity_revision=2, monthly_budget_nanousd=10 * USD, cap_mode=CapMode.STRICT
    )
    await room.hear([feed.directory(strict, "acme")])
    (row,) = (await overruns(room)).items
    assert (row.scope, row.scope_id, row.cause) == ("run", "r5", "mode_switched")
    assert row.amount_nanousd == 2 * USD
