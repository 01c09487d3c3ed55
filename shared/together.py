"""Lookups of many callers that share what they can: one statement for all who wait.

The one thing not to break: an answer is never older than the question. Who comes while a lookup is
under way waits for the next one, because what it reads may have changed since it was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from typing import Final, Generic, TypeVar

LOOKUPS_MAX: Final = 2
"""Lookups under way; whoever comes meanwhile shares the next one."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Together(Generic[K, V]):
    """Finds values by key with `find`, at once where nobody else is asking."""

    def __init__(self, find: Callable[[Collection[K]], Awaitable[Mapping[K, V]]]) -> None:
        """`find` answers what is known among the keys."""
        self._find = find
        self._under_way = 0
        self._waiting: dict[K, list[asyncio.Future[V | None]]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    async def find(self, key: K) -> V | None:
        """The value of a key as it is now; raises what the lookup raised."""
        if self._under_way < LOOKUPS_MAX and not self._waiting:
            self._under_way += 1
            return (await self._look({key})).get(key)
        future: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        return await future

    async def _look(self, keys: Collection[K]) -> Mapping[K, V]:
        try:
            return await self._find(keys)
        finally:
            self._under_way -= 1
            if self._waiting:
                waiting, self._waiting = self._waiting, {}
                # Counted from here on, so that nobody takes its place before it begins.
                self._under_way += 1
                task = asyncio.create_task(self._serve(waiting))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)

    async def _serve(self, waiting: Mapping[K, list[asyncio.Future[V | None]]]) -> None:
        futures = [(key, future) for key, askers in waiting.items() for future in askers]
        try:
            found = await self._look(waiting.keys())
        except Exception as error:
            for _, future in futures:
                if not future.done():
                    future.set_exception(error)
        except asyncio.CancelledError:
            for _, future in futures:
                future.cancel()
            raise
        else:
            for key, future in futures:
                if not future.done():
                    future.set_result(found.get(key))
