"""Group commit: what waits in a process is decided together, in one transaction.

A commit costs a disk flush; 256 questions that share one cost a fraction each (dependencies.md 9).
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

ITEMS_MAX = 256
"""Most questions of one transaction (design.md 4, *Group commit*)."""
GROUPS_MAX = 2
"""Groups under way: one is decided while the other one waits for a lock or a flush (ADR 0040)."""
PATIENCE_S = 0.003
"""How long a group is under way before a second one is begun beside it. Most end sooner, and those
who ask meanwhile share the next one: a statement for two costs little more than one for one."""

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class Group(Generic[Asked, Answered]):
    """Collects calls of `submit` and hands them to `decide` in order of arrival."""

    def __init__(self, decide: Callable[[Sequence[Asked]], Awaitable[Sequence[Answered]]]) -> None:
        """`decide` answers all of them, in order, after its commit."""
        self._decide = decide
        self._waiting: list[tuple[Asked, asyncio.Future[Answered]]] = []
        self._wake = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        self._begun_at = 0.0

    async def submit(self, asked: Asked) -> Answered:
        """Have one decided; raises what the decision of its group raised."""
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        self._wake.set()
        return await future

    async def run(self) -> None:
        """Decide groups until cancelled; nobody waits any more then."""
        try:
            await self._run()
        finally:
            for _, future in self._waiting:
                future.cancel()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as deciding:
            while True:
                await self._wake.wait()
                await self._wait_for_turn()
                group, self._waiting = self._waiting[:ITEMS_MAX], self._waiting[ITEMS_MAX:]
                if not self._waiting:
                    self._wake.clear()
                # Who stopped waiting is not decided for: nobody would hear the answer.
                group = [(asked, future) for asked, future in group if not future.done()]
                if group:
                    self._begun_at = asyncio.get_running_loop().time()
                    task = deciding.create_task(self._decide_group(group))
                    self._under_way.add(task)
                    task.add_done_callback(self._under_way.discard)

    async def _wait_for_turn(self) -> None:
        """Wait while as many groups are under way as may be, or one that was only just begun."""
        while self._under_way:
            left_s = None
            if len(self._under_way) < GROUPS_MAX:
                left_s = self._begun_at + PATIENCE_S - asyncio.get_running_loop().time()
                if left_s <= 0:
                    return
            await asyncio.wait(self._under_way, timeout=left_s, return_when=FIRST_COMPLETED)
            self._under_way.difference_update([task for task in self._under_way if task.done()])

    async def _decide_group(self, group: Sequence[tuple[Asked, asyncio.Future[Answered]]]) -> None:
        try:
            answers = await self._decide([asked for asked, _ in group])
        except Exception as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        except BaseException:
            for _, future in group:
                future.cancel()
            raise
        for (_, future), answer in zip(group, answers, strict=True):
            if not future.done():
                future.set_result(answer)
