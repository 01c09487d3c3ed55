"""What is guessed of a question decides nothing: where the record says otherwise, it holds."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from contracts.directory import AgentBudget, BillingZone
from contracts.errors import AlreadyExists, Rejected
from contracts.ledger import Authorization
from contracts.types import CapMode
from services.ledger.requests.authorize import Authorizer
from services.ledger.requests.facts import Asked
from tests.factories import Feed, agent, belongs, department, organization, started
from tests.integration.ledger.asking import ask, paid
from tests.ledger_room import BOOK, LedgerRoom

pytestmark = pytest.mark.integration
USD = 10**9


@pytest.fixture(params=[CapMode.RECORDED, CapMode.STRICT])
async def told(request: pytest.FixtureRequest, room: LedgerRoom, feed: Feed) -> LedgerRoom:
    """Agents rich and poor, departments rich and poor; the poor have spent what they may."""
    await room.know(feed)
    state = organization(entity_revision=2, cap_mode=request.param, monthly_budget_nanousd=None)
    await room.hear(
        [
            feed.directory(state, "acme"),
            feed.directory(agent("rich", 100 * USD), "rich"),
            feed.directory(agent("poor", USD), "poor"),
            feed.directory(department("few", belongs("pia"), cap=2 * USD), "few"),
            feed.directory(department("many", belongs("ria"), cap=100 * USD), "many"),
        ]
    )
    await room.hear(
        [
            feed.channel(started("old", agent_id="poor", started_by_user_id="pia")),
            feed.channel(paid("old.q", "2", "old", model="any")),
        ]
    )
    # From here on it knows the organization, and guesses.
    assert (await asked(room, "warm", run_id="w", agent="rich", user="ria")).allowed
    return room


def question(request_id: str, *, run_id: str, agent: str, user: str | None, root: str = ""):
    return ask(
        request_id,
        cost=1_000,
        run_id=run_id,
        root_run_id=root or run_id,
        agent_id=agent,
        root_agent_id=agent,
        user_id=user,
        started_by_user_id=user,
    )


async def asked(room: LedgerRoom, request_id: str, **says) -> Authorization:
    """Asked of the one who guesses; one who guesses nothing yet says the same."""
    answer = await room.authorize(question(request_id, **says))
    cold = Authorizer(database=room.database, book=BOOK, clock=room.clock)
    (again,) = await cold._decide([Asked("acme", "c1", question(f"{request_id}.cold", **says))])
    assert isinstance(again, Authorization)
    assert (again.allowed, again.refusal and again.refusal.code) == (
        answer.allowed,
        answer.refusal and answer.refusal.code,
    )
    assert [(cap.scope, cap.id, cap.limit_nanousd) for cap in again.remaining] == [
        (cap.scope, cap.id, cap.limit_nanousd) for cap in answer.remaining
    ]
    return answer


def bound_by(answer: Authorization) -> list[tuple[str, str | None]]:
    if answer.refusal is not None:
        return [(answer.refusal.scope, answer.refusal.id)]
    return [(cap.scope, cap.id) for cap in answer.remaining]


async def test_the_agent_of_the_start_binds(told: LedgerRoom, feed: Feed) -> None:
    await told.hear([feed.channel(started("a", agent_id="poor", started_by_user_id=None))])
    await told.hear([feed.channel(started("b", agent_id="rich", started_by_user_id=None))])
    refused = await asked(told, "a1", run_id="a", agent="rich", user=None)
    assert bound_by(refused) == [("agent", "poor")]
    allowed = await asked(told, "b1", run_id="b", agent="poor", user=None)
    assert bound_by(allowed) == [("agent", "rich")]


async def test_the_starter_of_the_start_binds(told: LedgerRoom, feed: Feed) -> None:
    await told.hear([feed.channel(started("a", agent_id="rich", started_by_user_id="pia"))])
    await told.hear([feed.channel(started("b", agent_id="rich", started_by_user_id="ria"))])
    await told.hear([feed.channel(started("c", agent_id="rich", started_by_user_id=None))])
    refused = await asked(told, "a1", run_id="a", agent="rich", user="ria")
    assert bound_by(refused) == [("department", "few")]
    allowed = await asked(told, "b1", run_id="b", agent="rich", user="pia")
    assert bound_by(allowed) == [("agent", "rich"), ("department", "many")]
    nobody = await asked(told, "c1", run_id="c", agent="rich", user="pia")
    assert bound_by(nobody) == [("agent", "rich")]


async def test_the_root_of_the_start_binds(told: LedgerRoom, feed: Feed) -> None:
    """The question names another tree: it is the record's, with its agent and its starter."""
    child = {"parent_run_id": "a", "root_run_id": "a", "agent_id": "rich"}
    await told.hear(
        [
            feed.channel(started("a", agent_id="poor", started_by_user_id="pia")),
            feed.channel(started("b", agent_id="rich", started_by_user_id="ria")),
            feed.channel(started("a.1", **child, started_by_user_id="ria")),
        ]
    )
    refused = await asked(told, "a1", run_id="a.1", root="b", agent="rich", user="ria")
    assert bound_by(refused) == [("agent", "poor")]
    alone = await asked(told, "a2", run_id="a.1", agent="rich", user="ria")
    assert bound_by(alone) == [("agent", "poor")]


async def test_the_month_is_that_of_the_question_and_of_the_zone_that_holds_now(
    told: LedgerRoom, feed: Feed
) -> None:
    says = {"agent": "poor", "user": None}
    told.clock.at = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
    assert bound_by(await asked(told, "m1", run_id="m1", **says)) == [("agent", "poor")]
    # An hour earlier by the clock of UTC, and a month later where the organization pays.
    told.clock.at = datetime(2026, 11, 30, 23, tzinfo=UTC)
    zones = (BillingZone(from_month="0001-01", timezone="Pacific/Kiritimati"),)
    mode = (await told.rows("SELECT cap_mode FROM organization"))[0]["cap_mode"]
    ahead = organization(
        entity_revision=3,
        cap_mode=mode,
        monthly_budget_nanousd=None,
        billing_timezone="Pacific/Kiritimati",
        billing_zones=zones,
    )
    await told.hear([feed.directory(ahead, "acme")])
    allowed = await asked(told, "m2", run_id="m2", **says)
    assert allowed.allowed
    assert all(cap.remaining_nanousd >= USD - 2_000 for cap in allowed.remaining)


async def test_the_month_changes_while_the_process_runs(told: LedgerRoom) -> None:
    says = {"agent": "poor", "user": None}
    told.clock.at = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
    assert not (await asked(told, "m1", run_id="m1", **says)).allowed
    told.clock.at = datetime(2026, 12, 1, tzinfo=UTC)
    assert (await asked(told, "m2", run_id="m2", **says)).allowed


async def test_an_organization_that_becomes_known_is_bound_from_its_first_question(
    told: LedgerRoom, feed: Feed
) -> None:
    first = question("o1", run_id="o", agent="poor", user=None)
    unknown = await told.authorize(first, org="beta")
    assert unknown.refusal is not None
    assert unknown.refusal.code == "organization_unknown"
    await told.know(feed, "beta")
    await told.hear(
        [
            feed.directory(agent("poor", USD), "poor", org="beta"),
            feed.channel(started("p", agent_id="poor"), org="beta"),
            feed.channel(paid("p.q", "1", "p", model="any"), org="beta"),
        ]
    )
    refused = await told.authorize(first, org="beta")
    assert bound_by(refused) == [("agent", "poor")]


async def test_the_record_that_changes_between_two_questions_is_seen_by_the_second(
    told: LedgerRoom, feed: Feed
) -> None:
    says = {"run_id": "a", "agent": "rich", "user": "ria"}
    assert (await asked(told, "a1", **says)).allowed
    await told.hear([feed.channel(started("a", agent_id="poor", started_by_user_id="ria"))])
    assert bound_by(await asked(told, "a2", **says)) == [("agent", "poor")]
    raised = agent("poor", 50 * USD, entity_revision=2, cap_revision=2)
    await told.hear([feed.directory(raised, "poor")])
    assert (await asked(told, "a3", **says)).allowed


async def test_questions_that_differ_in_whom_they_name_share_a_group(
    told: LedgerRoom, feed: Feed
) -> None:
    """Guesses of one group are many; each question is bound by its own record."""
    await told.hear([feed.channel(started("a", agent_id="poor", started_by_user_id=None))])
    group = [
        Asked("acme", "c1", question(f"g{n}", run_id=run_id, agent=agent_id, user=None))
        for n, (run_id, agent_id) in enumerate(
            [("a", "rich"), ("b", "rich"), ("c", "poor"), ("a", "poor"), ("b", "poor")]
        )
    ]
    answers = await told.authorizer._decide(group)
    assert [isinstance(one, Authorization) and one.allowed for one in answers] == [
        False,
        True,
        False,
        False,
        False,
    ]


async def test_one_request_asked_in_two_groups_at_once_is_decided_once(
    told: LedgerRoom, feed: Feed
) -> None:
    """Two groups are under way: both have it, one of them decides, and nothing is held twice."""
    budget = AgentBudget(monthly_nanousd=100 * USD, requests_per_minute=60)
    limited = agent("rich", entity_revision=2, cap_revision=2, budget=budget)
    await told.hear([feed.directory(limited, "rich")])
    before = await told.rows("SELECT count(*) FROM admission")
    same = [
        Asked("acme", "c1", question(f"s{n}", run_id=f"s{n}", agent="rich", user="ria"))
        for n in range(20)
    ]
    other = Asked("acme", "c1", question("s0", run_id="s0", agent="poor", user="ria"))
    first, second, third = await asyncio.gather(
        told.authorizer._decide(same),
        told.authorizer._decide([*reversed(same)]),
        told.authorizer._decide([other]),
    )
    again = [*reversed(second)]
    assert first[1:] == again[1:]
    assert type(first[0]) is type(again[0])
    assert type(first[0]) is not type(third[0])
    conflicts = [one for one in (*first, *second, *third) if isinstance(one, AlreadyExists)]
    # Either content of s0 may have been first; the other one is told so, wherever it was asked.
    assert len(conflicts) in (1, 2)
    assert not any(isinstance(one, Rejected) for one in (*first, *second))
    after = await told.rows("SELECT count(*) FROM admission")
    assert after[0][0] - before[0][0] == 20
    holds = await told.rows("SELECT request_id FROM hold WHERE request_id LIKE 's%'")
    assert len({row["request_id"] for row in holds}) == len(holds)
