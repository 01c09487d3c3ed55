"""Reports usage at a steady rate, from a process of its own: `python -m tests.bench.reporting`."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

from shared.bus import Bus, BusAddress
from tests.bench.ingesting import messages

EVENTS_PER_S = 2_000
STEP_S = 0.05
SEED = 4_242


async def main(address: str, count: int) -> None:
    bus = Bus(BusAddress(**json.loads(address)))
    await bus.start()
    made = messages(count, SEED)
    step = int(EVENTS_PER_S * STEP_S)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    started = time.perf_counter()
    for start in range(0, count, step):
        await asyncio.sleep(max(started + start / EVENTS_PER_S - time.perf_counter(), 0))
        await bus.publish_all(made[start : start + step])
    await bus.stop()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
