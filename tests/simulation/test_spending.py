"""However many ask and whatever dies, a strict cap is not passed, and nothing stays held."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack

import pytest

from tests.servers import Servers
from tests.simulation.spending import SpendingWorld
from tests.waiting import eventually

pytestmark = pytest.mark.integration
CHANNELS = ("c1", "c2")
PAUSE_S = 0.6
STEPS_LONG = 150


async def spend_and_survive(servers: Servers, *, seed: int, askers: int, steps: int) -> None:
    async with AsyncExitStack() as stack:
        world = SpendingWorld(servers, random.Random(seed))
        await world.begin(stack)
        stop, quiet = asyncio.Event(), asyncio.Event()
        looking = asyncio.create_task(world.checker.run(quiet))
        async with world.open_channel("c1") as one, world.open_channel("c2") as other:
            channels = (one, other)
            working = [
                asyncio.create_task(world.ask_for_ever(number, channels[number % 2], stop))
                for number in range(askers)
            ]
            try:
                for step in range(steps):
                    await asyncio.sleep(PAUSE_S)
                    assert not looking.done(), looking.exception()
                    if step % 10 == 4:
                        await servers.kill_nats()
                    elif step % 4 == 3:
                        await world.switch_modes()
                    elif step % 2:
                        await world.kill_a_ledger()
                    else:
                        await world.change_cap()
                await world.all_ready()
                await world.change_org(monthly_budget_usd="1000.00")
            finally:
                stop.set()
            await asyncio.gather(*working)
        await eventually(world.send_what_was_kept, wait_s=180)
        # Everything that was said is handled before the clock is put right: then what nobody
        # reported expires, and nothing else is left.
        world.step_clock(0)
        await eventually(world.left_over, lambda left: not any(left.values()), wait_s=90)
        quiet.set()
        await looking
        figures = await world.checker.look()
        assert all(figure.held == 0 for figure in figures)
        states = await world.states()
        assert states.get("settled", 0) > 0
        assert states.get("expired", 0) > 0
        assert world.outcomes["refused"] > 0, "the caps were never reached: the test shows nothing"
        assert world.checker.looks > steps
        assert world.checker.held_most > 0


async def test_thirty_askers_pass_no_strict_cap_while_processes_die(servers: Servers):
    await spend_and_survive(servers, seed=20261130, askers=30, steps=6)


@pytest.mark.long
async def test_two_hundred_askers_pass_no_strict_cap_for_minutes(servers: Servers):
    seed = int(os.environ.get("RIENDA_SEED", "1"))
    await spend_and_survive(servers, seed=seed, askers=200, steps=STEPS_LONG)
