"""Four mistakes of a widely used gateway, delegates that may not go on, and rates."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from contracts.channel import Tokens
from contracts.directory import AgentArchived, AgentBudget, PinnedDelegate
from contracts.errors import AlreadyExists
from contracts.types import CapMode, UnpricedPolicy
from services.ledger.domain.holds import GRANT_TOKENS_MIN
from services.ledger.requests.facts import Asked
from tests.admission_checker import Checker
from tests.factories import NOON, Feed, agent, minutes, organization, usage
from tests.integration.ledger.asking import USD, ask, held, know, overruns, paid
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
CALL_NANOUSD = 15_000_000
"""1 000 tokens in, 400 out."""


async def test_ten_affordable_calls_without_a_limit_are_all_let_through_at_once(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    """The mistake: a call that names no limit holds all that is left, and nine are refused."""
    await know(room, feed, org_cap=10 * CALL_NANOUSD)
    asked = [ask(f"a{n}", None, input_tokens_max=1_000, cache_write="none") for n in range(10)]
    answers = await room.authorizer._decide([Asked("acme", "c1", one) for one in asked])
    assert [answer.allowed for answer in answers] == [True] * 10
    assert all(answer.output_tokens_max >= GRANT_TOKENS_MIN for answer in answers)
    used = [Tokens(input=1_000, output=min(400, each.output_tokens_max)) for each in answers]
    await room.hear(
        [
            feed.channel(usage(one.request_id, "r1", tokens=tokens))
            for one, tokens in zip(asked, used, strict=True)
        ]
    )
    assert (await overruns(room)).total == 0
    (cap,) = (await room.caps()).items
    assert (cap.spent_nanousd, cap.held_nanousd) == (
        sum(tokens.input * 5_000 + tokens.output * 25_000 for tokens in used),
        0,
    )


async def test_low_estimates_let_no_more_calls_through_than_the_budget_pays_for(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    """The mistake: fifty calls stated at a hundredth pass a budget that pays for ten."""
    await know(room, feed, org_cap=10 * USD)
    sent = 0
    for n in range(50):
        answer = await room.authorize(ask(f"a{n}", USD // 100))
        if answer.allowed:
            sent += 1
            await room.hear([feed.channel(paid(f"a{n}", "1"))])
    assert sent == 10


async def test_an_unpriced_model_is_refused_where_the_organization_says_so(
    room: LedgerRoom, feed: Feed
):
    """The mistake: what has no price costs nothing and is never refused."""
    await know(room, feed, unpriced_policy=UnpricedPolicy.REFUSE)
    unknown = {"model": "no-such-model", "cost": None, "input_tokens_max": 10}
    refused = await room.authorize(ask("a1", **unknown))
    assert refused.refusal.code == "unpriced_model"
    as_floor = organization(
        entity_revision=3, monthly_budget_nanousd=10 * USD, cap_mode=CapMode.STRICT
    )
    await room.hear([feed.directory(as_floor, "acme")])
    marked = await room.authorize(ask("a2", **unknown))
    assert (marked.allowed, marked.unpriced, marked.partial) == (True, True, True)
    stated = await room.authorize(ask("a3", USD, model="no-such-model"))
    assert stated.held_nanousd == USD, "what the asker states is held"


async def test_what_is_held_is_not_shown_as_spent(room: LedgerRoom, feed: Feed):
    """The mistake: a dashboard that shows reservations as money that is gone."""
    await know(room, feed)
    await room.authorize(ask("a1", 9 * USD))
    (cap,) = (await room.caps()).items
    assert (cap.spent_nanousd, cap.held_nanousd, cap.remaining_nanousd) == (0, 9 * USD, USD)
    spend = await room.spend()
    assert (spend.cost_nanousd, spend.month_to_date_nanousd) == (0, 0)
    refused = await room.authorize(ask("a2", 2 * USD))
    assert (refused.refusal.spent_nanousd, refused.refusal.held_nanousd) == (0, 9 * USD)
    assert "0.0000 USD of 10.00 USD are spent and 9.0000 USD are held" in refused.sentence


@pytest.mark.parametrize("mode", list(CapMode))
async def test_delegates_that_are_archived_or_missing_are_refused(
    room: LedgerRoom, feed: Feed, mode: CapMode
):
    await room.know(feed)
    chosen = organization(entity_revision=2, monthly_budget_nanousd=100 * USD, cap_mode=mode)
    await room.hear([feed.directory(chosen, "acme")])
    pins = (
        PinnedDelegate(agent_id="gone", version=1),
        PinnedDelegate(agent_id="old", version=2),
        PinnedDelegate(agent_id="never", version=1),
    )
    archived = AgentArchived(entity_revision=2, agent_id="gone", archived_at=NOON)
    await room.hear(
        [
            feed.directory(agent("coder", delegates=pins), "coder"),
            feed.directory(agent("gone"), "gone"),
            feed.directory(archived, "gone"),
            feed.directory(agent("old"), "old"),
        ]
    )

    async def refusal(agent_id: str) -> str | None:
        asked = ask(f"to-{agent_id}", agent_id=agent_id, run_id=f"in-{agent_id}")
        answer = await room.authorize(asked)
        assert answer.allowed or agent_id in answer.sentence
        return answer.refusal.code if answer.refusal else None

    assert [await refusal(each) for each in ("gone", "old", "never", "inline", "coder")] == [
        "delegate_archived",
        "delegate_version_missing",
        "delegate_version_missing",
        None,
        None,
    ]


@pytest.mark.parametrize("mode", list(CapMode))
async def test_an_agent_is_allowed_so_many_requests_in_any_minute(
    room: LedgerRoom, feed: Feed, mode: CapMode
):
    await know(room, feed)
    limited = agent("coder", budget=AgentBudget(requests_per_minute=3))
    same = organization(entity_revision=3, monthly_budget_nanousd=100 * USD, cap_mode=mode)
    await room.hear([feed.directory(limited, "coder"), feed.directory(same, "acme")])
    another = {"agent_id": "other", "root_agent_id": "other", "run_id": "b", "root_run_id": "b"}
    begun = room.clock.at
    for n in range(3):
        room.clock.at = begun + timedelta(seconds=10 * n)
        assert (await room.authorize(ask(f"a{n}"))).allowed
    refused = await room.authorize(ask("a3"))
    assert (refused.refusal.code, refused.refusal.requests_per_minute) == ("rate_limited", 3)
    assert refused.retry_after_s == 41
    assert (await room.authorize(ask("b1", **another))).allowed
    room.clock.at += timedelta(seconds=refused.retry_after_s - 1)
    assert not (await room.authorize(ask("a3"))).allowed
    room.clock.at += timedelta(seconds=1)
    assert (await room.authorize(ask("a3"))).allowed, "the same question may be asked again"
    with pytest.raises(AlreadyExists):
        await room.authorize(ask("a3", USD + 1))


async def test_a_request_that_money_refuses_counts_in_no_rate(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    limited = agent("coder", budget=AgentBudget(requests_per_minute=1))
    await room.hear([feed.directory(limited, "coder")])
    assert (await room.authorize(ask("a1", 11 * USD))).refusal.code == "budget_exceeded"
    assert (await room.authorize(ask("a2"))).allowed
    assert (await room.authorize(ask("a3"))).refusal.code == "rate_limited"
    assert (await held(room)).total == 1, "what comes too often holds nothing"


async def test_several_processes_count_one_rate(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    limited = agent("coder", budget=AgentBudget(requests_per_minute=25))
    await room.hear([feed.directory(limited, "coder")])
    others = [LedgerRoom(room.database._dsn) for _ in range(2)]
    rooms = [room, *others]
    loops = [asyncio.ensure_future(one.authorizer.group.run()) for one in rooms]
    try:
        answers = await asyncio.gather(
            *(
                rooms[n % 3].authorizer.group.submit(Asked("acme", "c1", ask(f"a{n}", 1)))
                for n in range(90)
            )
        )
    finally:
        for loop in loops:
            loop.cancel()
        for other in others:
            await other.close()
    assert sum(answer.allowed for answer in answers) == 25


async def test_a_cap_of_last_month_binds_nobody(room: LedgerRoom, feed: Feed, checker: Checker):
    await know(room, feed)
    await room.authorize(ask("a1", 9 * USD))
    room.clock.at = NOON + minutes(60 * 24 * 15)
    assert (await room.authorize(ask("a2", 9 * USD))).allowed
    # Billed in the month of its authorization, and charged to this month's cap as well.
    late = paid("a1", "9", occurred_at=room.clock.at)
    await room.hear([feed.channel(late, at=room.clock.at, stored_at=room.clock.at)])
    (row,) = (await overruns(room)).items
    assert (row.month, row.amount_nanousd) == ("2026-12", 8 * USD)
