"""One request id is one decision: asked again, by others, elsewhere, or after its hold is gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from contracts.errors import AlreadyExists
from contracts.ledger import Authorization
from contracts.types import CapMode, UnpricedPolicy
from services.ledger.domain.holds import GRACE
from services.ledger.requests.facts import Asked
from tests.admission_checker import Checker
from tests.factories import Feed, agent, organization, started
from tests.integration.ledger.asking import USD, ask, handle_until, held, know, overruns, paid, void
from tests.ledger_room import LedgerRoom
from tests.waiting import eventually

pytestmark = pytest.mark.integration
OF_NO_RUN = {"run_id": None, "root_run_id": None, "agent_id": None, "root_agent_id": None}


@pytest.fixture
async def rooms(room: LedgerRoom):
    """Two answering processes, each with its own groups."""
    other = LedgerRoom(room.database._dsn)
    loops = [asyncio.ensure_future(one.authorizer.group.run()) for one in (room, other)]
    yield (room, other)
    for loop in loops:
        loop.cancel()
    await other.close()


@pytest.mark.parametrize("org_cap", [10 * USD, None])
@pytest.mark.parametrize("same", [True, False])
async def test_one_id_in_two_processes_is_decided_and_held_once(
    rooms, feed: Feed, checker: Checker, org_cap: int | None, same: bool
):
    """Without a cap that both share, nothing but the row of the decision stands between them."""
    await know(rooms[0], feed, org_cap=org_cap)
    tools = {name: agent(name, 10 * USD) for name in ("coder", "other")}
    await rooms[0].hear([feed.directory(each, name) for name, each in tools.items()])
    await rooms[0].hear([feed.channel(started("r2", agent_id="other"))])
    another = {"run_id": "r2", "root_run_id": "r2", "agent_id": "other", "root_agent_id": "other"}
    said = [
        Asked("acme", "c1", ask(f"a{n}", USD // 10, **({} if same or side == 0 else another)))
        for n in range(30)
        for side in range(2)
    ]
    answers = await asyncio.gather(
        *(rooms[n % 2].authorizer.group.submit(one) for n, one in enumerate(said))
    )
    for mine, theirs in zip(answers[::2], answers[1::2], strict=True):
        if same:
            assert mine == theirs
        else:
            assert Counter(type(each) for each in (mine, theirs)) == {
                Authorization: 1,
                AlreadyExists: 1,
            }
    assert (await held(rooms[0], state="open", limit=100)).total == 30
    states = await rooms[0].rows("SELECT sum(held_nanousd) FROM cap_state WHERE scope = 'agent'")
    assert int(states[0][0]) == 30 * USD // 10


async def test_of_two_that_decide_at_the_same_moment_one_holds(rooms, feed: Feed, checker: Checker):
    """Both have seen no decision, and no cap is locked by both: the row of the decision decides."""
    room, other = rooms
    await know(room, feed, org_cap=None)
    tools = {name: agent(name, 10 * USD) for name in ("coder", "other")}
    await room.hear([feed.directory(each, name) for name, each in tools.items()])
    await room.hear([feed.channel(started("r2", agent_id="other"))])
    another = {"run_id": "r2", "root_run_id": "r2", "agent_id": "other", "root_agent_id": "other"}
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    async def waiting_count() -> int:
        return (await room.rows(waiting))[0][0]

    async with room.database.connection() as connection:
        blocked = connection.transaction()
        await blocked.start()
        await connection.execute(
            "INSERT INTO admission (org, request_id, model, allowed, answer, digest, month, "
            "decided_at) VALUES ('acme', 'a1', 'm', false, '{}', '', '2026-11', now())"
        )
        asking = [
            asyncio.ensure_future(room.authorize(ask("a1", USD))),
            asyncio.ensure_future(other.authorize(ask("a1", USD, **another))),
        ]
        await eventually(waiting_count, lambda count: count == 2)
        await blocked.rollback()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert Counter(type(each) for each in answers) == {Authorization: 1, AlreadyExists: 1}
    assert (await held(room, state="open")).total == 1
    states = await room.rows("SELECT sum(held_nanousd) FROM cap_state WHERE scope = 'agent'")
    assert int(states[0][0]) == USD


async def test_another_channel_does_not_share_an_answer_by_saying_the_same(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    """Two careless channels both count their requests from 1: one hold would pay for two."""
    await know(room, feed)
    mine = await room.authorize(ask("1", USD, **OF_NO_RUN))
    assert mine.hold_id == "1"
    with pytest.raises(AlreadyExists) as caught:
        await room.authorize(ask("1", USD, **OF_NO_RUN), channel_id="c2")
    assert caught.value.reason == "request_id_used"
    assert await room.authorize(ask("1", USD, **OF_NO_RUN)) == mine


@pytest.mark.parametrize("end", ["voided", "expired"])
async def test_an_id_whose_hold_is_gone_covers_nothing_in_any_process(
    rooms, feed: Feed, checker: Checker, end: str
):
    room, other = rooms
    await know(room, feed)
    question = ask("a1", 9 * USD, request_timeout_s=30)
    first = await room.authorize(question)
    assert await other.authorize(question) == first, "the answer was lost, and asked for again"
    if end == "voided":
        await void(other, "a1")
    else:
        await handle_until(room, room.clock.at + timedelta(seconds=30) + GRACE)
        await room.keeper.keep()
        await other.keeper.keep()
    other.clock.at = room.clock.at
    for one in rooms:
        with pytest.raises(AlreadyExists) as caught:
            await one.authorize(question)
        assert caught.value.reason == "hold_closed"
    assert (await other.authorize(ask("a2", 10 * USD))).allowed, "all of it is free again"
    assert (await held(room, state=end)).total == 1


async def test_an_id_that_was_decided_by_what_is_recorded_holds_nothing_later(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    modes = {mode: organization(monthly_budget_nanousd=10 * USD, cap_mode=mode) for mode in CapMode}

    async def switch(mode: CapMode, revision: int) -> None:
        said = modes[mode].model_copy(update={"entity_revision": revision})
        await room.hear([feed.directory(said, "acme")])

    kept = await room.authorize(ask("a1", 4 * USD))
    await switch(CapMode.RECORDED, 3)
    plain = await room.authorize(ask("a2", 8 * USD))
    assert (plain.allowed, plain.hold_id) == (True, None)
    assert await room.authorize(ask("a1", 4 * USD)) == kept, "its hold is still there"
    await switch(CapMode.STRICT, 4)
    assert await room.authorize(ask("a2", 8 * USD)) == plain
    assert (await room.authorize(ask("a3", 7 * USD))).refusal.held_nanousd == 4 * USD
    await room.hear([feed.channel(paid("a1", "3")), feed.channel(paid("a2", "8"))])
    (row,) = (await overruns(room)).items
    assert (row.cause, row.amount_nanousd, row.request_id) == ("unheld_usage", USD, "a2")
    await switch(CapMode.RECORDED, 5)
    assert (await held(room, state="open")).total == 0


async def test_a_hold_that_was_let_go_while_its_report_was_on_the_way_is_billed_once(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    await room.authorize(ask("a1", 6 * USD))
    await void(room, "a1")
    await room.authorize(ask("a2", 6 * USD))
    await room.hear([feed.channel(paid("a1", "5"))])
    (row,) = (await overruns(room)).items
    assert (row.cause, row.amount_nanousd, row.request_id) == ("settled_late", USD, "a1")
    assert (await void(room, "a1")).state == "voided", "the same answer, however often"
    await room.hear([feed.channel(paid("a1", "5")), feed.channel(paid("a2", "1"))])
    assert (await overruns(room)).total == 1
    (cap,) = (await room.caps()).items
    assert (cap.spent_nanousd, cap.held_nanousd) == (6 * USD, 0)


@pytest.mark.parametrize("org_cap", [10 * USD, None])
async def test_what_has_no_price_is_marked_whatever_is_held_for_it(
    room: LedgerRoom, feed: Feed, org_cap: int | None
):
    await know(room, feed, org_cap=org_cap, unpriced_policy=UnpricedPolicy.ALLOW_AS_FLOOR)
    for request_id, cost in (("a1", None), ("a2", USD)):
        answer = await room.authorize(ask(request_id, cost, model="no-such-model"))
        assert answer.allowed
        assert (answer.unpriced, answer.partial) == (True, True), request_id
    priced = await room.authorize(ask("a3", USD))
    assert (priced.unpriced, priced.partial) == (False, False)


async def test_a_request_that_costs_nothing_has_no_hold_to_speak_of(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    answer = await room.authorize(ask("a1", 0))
    assert (answer.allowed, answer.hold_id, answer.held_nanousd) == (True, None, 0)
    assert await room.authorize(ask("a1", 0)) == answer
    assert (await held(room)).total == 0
    await room.hear([feed.channel(paid("a1", "12"))])
    (row,) = (await overruns(room)).items
    assert (row.cause, row.request_id) == ("unheld_usage", "a1")
    assert not (await room.authorize(ask("a2", 0))).allowed, "the next question sees it"


async def test_an_id_means_nothing_in_another_organization(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    other = organization(monthly_budget_nanousd=10 * USD, cap_mode=CapMode.STRICT)
    await room.know(feed, "beta")
    await room.hear(
        [feed.directory(other.model_copy(update={"entity_revision": 2}), "beta", org="beta")]
    )
    mine = await room.authorize(ask("a1", 6 * USD))
    theirs = await room.authorize(ask("a1", 9 * USD), org="beta")
    assert (mine.held_nanousd, theirs.held_nanousd) == (6 * USD, 9 * USD)
    await void(room, "a1")
    await room.hear([feed.channel(paid("a1", "2"), org="beta")])
    rows = await room.rows("SELECT org, state, actual_nanousd FROM hold ORDER BY org")
    assert [tuple(row) for row in rows] == [
        ("acme", "voided", None),
        ("beta", "settled", 2 * USD),
    ]
