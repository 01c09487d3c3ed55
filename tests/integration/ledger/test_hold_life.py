"""A hold expires, is voided, or is settled; once, and by nobody else."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from contracts.errors import AlreadyExists, NotFound
from contracts.types import OnUnreachable
from services.ledger.domain.holds import GRACE
from services.ledger.requests.facts import Asked
from tests.admission_checker import Checker
from tests.factories import (
    Feed,
    agent,
    heartbeat,
    minutes,
    started,
)
from tests.integration.ledger.asking import USD, ask, handle_until, held, know, overruns, paid, void
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration


async def test_a_hold_expires_when_its_time_is_over_and_everything_before_is_handled(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    begun = room.clock.at
    await room.authorize(ask("a1", 9 * USD, request_timeout_s=30))
    over = begun + timedelta(seconds=30) + GRACE
    await handle_until(room, over - timedelta(seconds=1))
    await room.keeper.keep()
    assert (await held(room, state="open")).total == 1
    room.clock.at = over
    await room.keeper.keep()
    assert (await held(room, state="open")).total == 1, "reports may wait in the stream"
    await handle_until(room, over)
    await room.keeper.keep()
    assert (await held(room, state="expired")).total == 1
    assert len(await room.rows("SELECT 1 FROM outbox WHERE subject LIKE '%hold_expired%'")) == 1
    assert (await room.authorize(ask("a2", 9 * USD))).allowed
    with pytest.raises(AlreadyExists, match="new request id"):
        await room.authorize(ask("a1", 9 * USD, request_timeout_s=30))
    await room.hear([feed.channel(paid("a1", "4", occurred_at=begun))])
    (row,) = (await overruns(room)).items
    assert (row.cause, row.amount_nanousd) == ("settled_late", 3 * USD)


async def test_signs_of_life_of_its_run_prolong_a_hold(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    begun = room.clock.at
    await room.authorize(ask("a1", USD, request_timeout_s=30))
    alive_at = begun + minutes(3)
    beat = feed.channel(heartbeat("r1", at=alive_at), at=alive_at, stored_at=alive_at)
    room.clock.at = alive_at
    await room.hear([beat])
    await handle_until(room, alive_at + GRACE / 2)
    await room.keeper.keep()
    (row,) = (await held(room, state="open")).items
    assert row.expires_at == alive_at + GRACE
    await handle_until(room, alive_at + GRACE)
    await room.keeper.keep()
    assert (await held(room, state="open")).total == 0


async def test_only_who_asked_voids_and_only_what_was_not_reported(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    await room.authorize(ask("a1", 9 * USD))
    for request_id, channel_id in (("a1", "c2"), ("a9", "c1")):
        with pytest.raises(NotFound):
            await void(room, request_id, channel_id)
    assert (await void(room, "a1")).state == "voided"
    assert (await void(room, "a1")).state == "voided"
    assert (await room.authorize(ask("a2", 9 * USD))).allowed
    await room.hear([feed.channel(paid("a2", "1"))])
    with pytest.raises(AlreadyExists):
        await void(room, "a2")
    again = await room.authorize(ask("a2", 9 * USD))
    assert (again.allowed, again.already_settled) == (True, True)


async def test_what_another_run_reports_of_a_request_settles_nothing(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed)
    await room.authorize(ask("a1", 6 * USD))
    await room.hear([feed.channel(started("r9")), feed.channel(paid("a1", "1", "r9"))])
    assert (await held(room, state="open")).total == 1


async def test_a_request_that_was_reported_before_it_was_asked_for_is_paid(
    room: LedgerRoom, feed: Feed
):
    await know(room, feed)
    await room.hear([feed.channel(paid("a1", "1"))])
    answer = await room.authorize(ask("a1", 9 * USD))
    assert (answer.allowed, answer.already_settled, answer.hold_id) == (True, True, None)


async def test_nobodys_silence_is_a_yes_where_money_is_held(room: LedgerRoom, feed: Feed):
    await know(room, feed, on_unreachable=OnUnreachable.ALLOW)
    assert (await room.authorize(ask("a1"))).on_unreachable is OnUnreachable.REFUSE


async def test_a_stop_says_what_is_held(room: LedgerRoom, feed: Feed):
    await know(room, feed)
    assert not (await room.authorize(ask("a1", 11 * USD))).allowed
    assert await room.rows("SELECT 1 FROM cap_notice") == [], "the cap has all its room"
    await room.authorize(ask("a2", 9 * USD))
    assert not (await room.authorize(ask("a3", 2 * USD))).allowed
    (row,) = await room.rows("SELECT body FROM outbox WHERE subject LIKE '%cap_stopped%'")
    assert b'"held_nanousd":9000000000' in bytes(row["body"])


async def test_what_no_cap_binds_is_decided_once_by_two_processes(room: LedgerRoom, feed: Feed):
    """Nothing is locked for it: whoever is overtaken gives the answer of who was first."""
    await know(room, feed, org_cap=None)
    await room.hear([feed.directory(agent("coder", None), "coder")])
    other = LedgerRoom(room.database._dsn)
    other.clock.at = room.clock.at + minutes(1)
    loops = [asyncio.ensure_future(one.authorizer.group.run()) for one in (room, other)]
    decided_at = set()
    try:
        for n in range(60):
            asked = [Asked("acme", "c1", ask(f"a{n}-{k}", USD)) for k in range(4)]
            sooner, later = (room, other) if n % 2 else (other, room)
            first, second = await asyncio.gather(
                asyncio.gather(*map(sooner.authorizer.group.submit, asked)),
                asyncio.gather(*map(later.authorizer.group.submit, asked)),
            )
            assert first == second
            decided_at |= {answer.decided_at for answer in first}
    finally:
        for loop in loops:
            loop.cancel()
        await other.close()
    assert decided_at == {room.clock.at, other.clock.at}, "each was first somewhere"
    assert len(await room.rows("SELECT 1 FROM admission")) == 240
    assert (await held(room)).total == 0


async def test_two_hundred_at_once_on_two_processes_hold_no_cent_too_much(
    room: LedgerRoom, feed: Feed, checker: Checker
):
    await know(room, feed, org_cap=50 * USD)
    other = LedgerRoom(room.database._dsn)
    loops = [asyncio.ensure_future(one.authorizer.group.run()) for one in (room, other)]
    try:
        asked = [Asked("acme", "c1", ask(f"a{n}", USD + n)) for n in range(200)]
        stop = asyncio.Event()
        looking = asyncio.ensure_future(checker.run(stop))
        answers = await asyncio.gather(
            *((room, other)[n % 2].authorizer.group.submit(one) for n, one in enumerate(asked)),
            *(
                (room, other)[(n + 1) % 2].authorizer.group.submit(asked[n])
                for n in range(0, 200, 5)
            ),
        )
        stop.set()
        await looking
    finally:
        for loop in loops:
            loop.cancel()
        await other.close()
    allowed = {answer.request_id for answer in answers if answer.allowed}
    assert len(allowed) == 49, "49 fit, and 50 do not"
    for n in range(0, 200, 5):
        assert answers[200 + n // 5] == answers[n], "asked twice, answered alike"
    assert (await held(room, state="open")).total == 49
