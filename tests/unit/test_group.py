"""Group commit: what waits together is decided together, and each hears its own answer."""

from __future__ import annotations

import asyncio

import pytest

from shared.group import GROUPS_MAX, ITEMS_MAX, Group
from tests.waiting import eventually


@pytest.fixture
def running():
    tasks = []

    def run(group: Group) -> Group:
        tasks.append(asyncio.ensure_future(group.run()))
        return group

    yield run
    for task in tasks:
        task.cancel()


async def test_each_asker_hears_its_own_answer_in_groups_of_a_bounded_size(running):
    sizes = []

    async def double(items):
        sizes.append(len(items))
        await asyncio.sleep(0)
        return [item * 2 for item in items]

    group = running(Group(double))
    answers = await asyncio.gather(*(group.submit(number) for number in range(1_000)))
    assert answers == [number * 2 for number in range(1_000)]
    assert max(sizes) == ITEMS_MAX
    assert sum(sizes) == 1_000


async def test_a_failed_group_fails_its_askers_and_the_next_goes_on(running):
    async def picky(items):
        if "bad" in items:
            raise ValueError("tested")
        return items

    group = running(Group(picky))
    with pytest.raises(ValueError, match="tested"):
        await group.submit("bad")
    assert await group.submit("good") == "good"


async def test_who_stopped_waiting_is_not_decided_for(running):
    seen = []
    gate = asyncio.Event()

    async def record(items):
        seen.extend(items)
        await gate.wait()
        return items

    group = running(Group(record))
    under_way = []
    for number in range(GROUPS_MAX):
        under_way.append(asyncio.ensure_future(group.submit(number)))
        await eventually(lambda count=number + 1: _is(len(seen) == count))
    gone = asyncio.ensure_future(group.submit("gone"))
    await asyncio.sleep(0)
    gone.cancel()
    gate.set()
    assert await asyncio.gather(*under_way) == list(range(GROUPS_MAX))
    assert await group.submit("last") == "last"
    assert seen == [*range(GROUPS_MAX), "last"]


async def test_groups_are_decided_beside_each_other_up_to_a_bound(running):
    """Whoever asks while as many are under way waits, and shares the next one."""
    sizes = []
    gate = asyncio.Event()

    async def record(items):
        sizes.append(len(items))
        await gate.wait()
        return items

    group = running(Group(record))
    asked = []
    for number in range(GROUPS_MAX):
        asked.append(asyncio.ensure_future(group.submit(number)))
        await eventually(lambda count=number + 1: _is(len(sizes) == count))
    asked += [asyncio.ensure_future(group.submit(number)) for number in range(10, 15)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert sizes == [1] * GROUPS_MAX
    gate.set()
    await asyncio.gather(*asked)
    assert sizes == [1] * GROUPS_MAX + [5]


@pytest.mark.parametrize("patience_s", [0.0, float("inf")])
async def test_a_second_group_is_begun_once_the_first_takes_long(running, monkeypatch, patience_s):
    """Until then those who ask share the next one."""
    monkeypatch.setattr("shared.group.PATIENCE_S", patience_s)
    groups = []
    gate = asyncio.Event()

    async def record(items):
        groups.append(list(items))
        await gate.wait()
        return items

    group = running(Group(record))
    asked = [asyncio.ensure_future(group.submit("first"))]
    await eventually(lambda: _is(groups == [["first"]]))
    for name in ("second", "third"):
        asked.append(asyncio.ensure_future(group.submit(name)))
        for _ in range(10):
            await asyncio.sleep(0)
    is_patient = patience_s > 0
    assert groups == ([["first"]] if is_patient else [["first"], ["second"]])
    gate.set()
    assert await asyncio.gather(*asked) == ["first", "second", "third"]
    assert groups[1:] == ([["second", "third"]] if is_patient else [["second"], ["third"]])


async def test_when_it_ends_nobody_is_left_waiting():
    gate = asyncio.Event()
    sizes = []

    async def wait(items):
        sizes.append(len(items))
        await gate.wait()
        return items

    group = Group(wait)
    deciding = asyncio.ensure_future(group.run())
    asked = []
    for number in range(GROUPS_MAX):
        asked.append(asyncio.ensure_future(group.submit(number)))
        await eventually(lambda count=number + 1: _is(len(sizes) == count))
    asked += [asyncio.ensure_future(group.submit("waits")) for _ in range(3)]
    await asyncio.sleep(0)
    deciding.cancel()
    for one in asked:
        with pytest.raises(asyncio.CancelledError):
            await one
    assert deciding.done()


async def _is(condition):
    return condition
