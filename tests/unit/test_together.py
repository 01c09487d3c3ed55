"""Shared lookups: one for all who wait, never one that began before its question."""

from __future__ import annotations

import asyncio

import pytest

from shared.together import LOOKUPS_MAX, Together
from tests.waiting import eventually


class Table:
    """Values that can be changed, and lookups that end when they are let."""

    def __init__(self) -> None:
        self.values = {"a": 1, "b": 2}
        self.asked: list[set[str]] = []
        self.gate = asyncio.Event()

    async def find(self, keys):
        self.asked.append(set(keys))
        # Read when it is sent, as a statement does; told later.
        found = {key: self.values[key] for key in keys if key in self.values}
        await self.gate.wait()
        return found


async def test_who_asks_alone_is_answered_at_once():
    table = Table()
    table.gate.set()
    together = Together(table.find)
    assert await together.find("a") == 1
    assert await together.find("x") is None
    assert table.asked == [{"a"}, {"x"}]


async def test_who_comes_while_others_look_shares_the_next_lookup_and_sees_what_changed_meanwhile():
    table = Table()
    together = Together(table.find)
    early = [asyncio.ensure_future(together.find("a")) for _ in range(LOOKUPS_MAX)]
    await eventually(lambda: _is(len(table.asked) == LOOKUPS_MAX))
    del table.values["a"]
    late = [asyncio.ensure_future(together.find(key)) for key in ("a", "b", "a", "a")]
    await asyncio.sleep(0)
    assert len(table.asked) == LOOKUPS_MAX
    table.gate.set()
    assert await asyncio.gather(*early) == [1] * LOOKUPS_MAX
    assert await asyncio.gather(*late) == [None, 2, None, None]
    assert table.asked[LOOKUPS_MAX:] == [{"a", "b"}]


async def test_a_failed_lookup_fails_who_shared_it_and_the_next_goes_on():
    table = Table()
    fails = True

    async def find(keys):
        found = await table.find(keys)
        if fails:
            raise ConnectionError("tested")
        return found

    together = Together(find)
    asked = [asyncio.ensure_future(together.find("a")) for _ in range(LOOKUPS_MAX + 3)]
    await asyncio.sleep(0)
    table.gate.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ConnectionError] * (LOOKUPS_MAX + 3)
    fails = False
    assert await together.find("a") == 1


async def test_who_gave_up_takes_nothing_from_the_others():
    table = Table()
    together = Together(table.find)
    first = [asyncio.ensure_future(together.find("a")) for _ in range(LOOKUPS_MAX)]
    gone = asyncio.ensure_future(together.find("b"))
    stays = asyncio.ensure_future(together.find("b"))
    await asyncio.sleep(0)
    for task in (first[0], gone):
        task.cancel()
    table.gate.set()
    assert await stays == 2
    assert await first[1] == 1
    with pytest.raises(asyncio.CancelledError):
        await gone


@pytest.mark.parametrize("askers", [1, 7, 200])
async def test_everybody_hears_the_value_of_its_own_key(askers: int):
    async def find(keys):
        await asyncio.sleep(0)
        return {key: key * 2 for key in keys}

    together = Together(find)
    found = await asyncio.gather(*(together.find(number % 50) for number in range(askers)))
    assert found == [number % 50 * 2 for number in range(askers)]


async def test_no_more_lookups_than_the_bound_are_under_way_however_they_come():
    under_way, most = 0, 0

    async def find(keys):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        under_way -= 1
        return {key: key for key in keys}

    together = Together(find)

    async def keep_asking(key):
        for turn in range(50):
            assert await together.find(key) == key
            for _ in range((key + turn) % 4):
                await asyncio.sleep(0)

    await asyncio.gather(*(keep_asking(key) for key in range(7)))
    assert most == LOOKUPS_MAX


async def test_a_lookup_that_is_cancelled_leaves_nobody_waiting():
    table = Table()
    together = Together(table.find)
    asked = [asyncio.ensure_future(together.find("a")) for _ in range(LOOKUPS_MAX)]
    shared = [asyncio.ensure_future(together.find("b")) for _ in range(3)]
    await asyncio.sleep(0)
    asked[0].cancel()
    await eventually(lambda: _is(len(table.asked) == LOOKUPS_MAX + 1))
    for task in together._serving:
        task.cancel()
    table.gate.set()
    assert await asked[1] == 1
    for one in shared:
        with pytest.raises(asyncio.CancelledError):
            await one
    assert await together.find("b") == 2


async def _is(condition):
    return condition
