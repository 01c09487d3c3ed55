"""The inbox tells fresh from repeated from changed, in one batch and across transactions."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from shared.inbox import InboxKey, body_digest, prune, sort_out
from tests.factories import NOON

pytestmark = pytest.mark.integration


def key(event_id: str, body: bytes = b"a", *, producer: str = "channel:c1") -> InboxKey:
    return InboxKey("acme", producer, "channel/c1", event_id, body_digest(body))


async def test_the_first_of_equal_keys_is_fresh(database):
    async with database.transaction() as connection:
        found = await sort_out(connection, [key("1"), key("2"), key("1")], NOON)
    assert (found.fresh, found.repeated, found.changed) == ((0, 1), (2,), ())


async def test_a_repetition_is_seen_after_the_commit(database):
    async with database.transaction() as connection:
        await sort_out(connection, [key("1")], NOON)
    async with database.transaction() as connection:
        found = await sort_out(connection, [key("1"), key("1", b"other"), key("2")], NOON)
    assert (found.fresh, found.repeated, found.changed) == ((2,), (0,), (1,))


async def test_a_rolled_back_effect_is_fresh_again(database):
    class Crash(Exception):
        pass

    async def crash():
        async with database.transaction() as connection:
            await sort_out(connection, [key("1")], NOON)
            raise Crash

    with pytest.raises(Crash):
        await crash()
    async with database.transaction() as connection:
        assert (await sort_out(connection, [key("1")], NOON)).fresh == (0,)


async def test_two_channels_that_both_say_1_do_not_shadow_one_another(database):
    async with database.transaction() as connection:
        found = await sort_out(connection, [key("1"), key("1", b"b", producer="channel:c2")], NOON)
    assert found.fresh == (0, 1)


async def test_of_many_that_enter_the_same_keys_at_once_each_key_has_one_winner(database):
    keys = [key(str(number)) for number in range(50)]

    async def enter(shift: int) -> int:
        async with database.transaction() as connection:
            rotated = keys[shift:] + keys[:shift]
            return len((await sort_out(connection, rotated, NOON)).fresh)

    won = await asyncio.gather(*(enter(shift) for shift in range(0, 50, 5)))
    assert sum(won) == len(keys)


async def test_pruning_forgets_what_outlived_its_stream(database):
    async with database.transaction() as connection:
        await sort_out(connection, [key("1")], NOON)
        await sort_out(connection, [key("2")], NOON + timedelta(days=20))
        age = timedelta(days=7)
        assert await prune(connection, stream_age=age, now=NOON + timedelta(days=14)) == 0
        assert await prune(connection, stream_age=age, now=NOON + timedelta(days=15)) == 1
        assert (await sort_out(connection, [key("2")], NOON)).repeated == (0,)
