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
ROUNDS_LONG = 8
KILLS_LONG = 90
PAUSE_S = 0.7
"""Between two kills; long enough for some to hit a process at work and some one that starts."""


async def survive(servers: Servers, *, seed: int, kills: int, harsh: bool = False) -> None:
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
                if number % 30 == 5:
                    await servers.kill_nats()
                elif number % 30 == 10:
                    await servers.kill_postgres()
                else:
                    await world.kill_something()
                if harsh and number % 10 == 7:
                    workers.append(asyncio.ensure_future(hardship(world)))
            stop.set()
            await world.all_ready()
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
        seen = await world.settled()
        assert seen["dead_unmeant"] == 0
        assert world.said, "nothing was said: the test shows nothing"
        spend = await world.spend()
        wanted = world.expected_nanousd("acme")
        assert nanousd(spend["cost_usd"]) == wanted
        for breakdown in ("by_agent", "by_provider", "by_key", "by_day"):
            lines = [nanousd(line["cost_usd"]) for line in spend[breakdown]]
            assert sum(lines) == wanted, breakdown


async def hardship(world: World) -> None:
    """A flood, poison, or a step of the clock, while everything else goes on."""
    kind = world.chance.choice(("flood", "poison", "clock"))
    if kind == "flood":
        await world.flood()
    elif kind == "poison":
        await world.publish_poison()
    else:
        world.step_clock(world.chance.choice((-3_600, -60, 60, 3_600)))


async def test_kills_of_every_process_and_restarts_of_both_servers_lose_and_double_nothing(
    servers: Servers,
):
    await survive(servers, seed=20261130, kills=15)


@pytest.mark.long
async def test_ten_minutes_of_kills_floods_poison_and_clock_steps(servers: Servers):
    """Rounds of a fixed number of kills; on two cores about ten minutes."""
    seed = int(os.environ.get("RIENDA_SEED", "1"))
    for round_ in range(ROUNDS_LONG):
        await survive(servers, seed=seed * 1_000 + round_, kills=KILLS_LONG, harsh=True)
