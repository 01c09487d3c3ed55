"""Whatever dies while events flow, the bill is what was said, to the nano-dollar."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack

import pytest

from tests.servers import Servers
from tests.simulation.world import World, nanousd

pytestmark = pytest.mark.integration
PAUSE_S = 0.7
"""Between two kills; long enough for some to hit a process at work and some one that starts."""


async def survive(servers: Servers, *, seed: int, kills: int) -> None:
    async with AsyncExitStack() as stack:
        world = World(servers, random.Random(seed))
        await world.start(stack)
        stop = asyncio.Event()
        workers = [
            asyncio.ensure_future(world.one_channel_works(channel_id, stop))
            for channel_id in ("c1", "c2")
        ]
        try:
            for number in range(kills):
                await asyncio.sleep(PAUSE_S * world.chance.random())
                if number == kills // 3:
                    await servers.kill_nats()
                elif number == 2 * kills // 3:
                    await servers.kill_postgres()
                else:
                    await world.kill_something()
            stop.set()
            await world.all_ready()
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
        seen = await world.settled()
        assert seen["dead"] == 0
        assert world.said, "nothing was said: the test shows nothing"
        spend = await world.spend()
        assert nanousd(spend["cost_usd"]) == world.expected_nanousd()
        for breakdown in ("by_agent", "by_provider", "by_key", "by_day"):
            lines = [nanousd(line["cost_usd"]) for line in spend[breakdown]]
            assert sum(lines) == world.expected_nanousd(), breakdown


async def test_kills_of_every_process_and_restarts_of_both_servers_lose_and_double_nothing(
    servers: Servers,
):
    await survive(servers, seed=20261130, kills=15)


@pytest.mark.long
async def test_the_same_at_length(servers: Servers):
    seed = int(os.environ.get("RIENDA_SEED", "1"))
    for round_ in range(6):
        await survive(servers, seed=seed * 1_000 + round_, kills=60)
