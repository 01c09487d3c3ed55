"""What the accounts cost: the same ledger on a bus of accounts, and on one plain account.

And what one organization feels of another's flood, beside its own quiet.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from tests.bench.asking import ledger_asking_round
from tests.bench.ingesting import ledger_ingest_round
from tests.integration.bus.flooding import answerer, flooder, go_on, running
from tests.integration.bus.house import House
from tests.servers import Servers

Figure = tuple[str, str, float, float]
FLOODS = {"64 at a time": 64, "without waiting": 0}
FLOOD_ROUNDS = 500


async def bench_accounts(
    servers: Servers, plain: Servers, *, rounds: int, events: int, asks: int
) -> list[Figure]:
    """Medians of rounds that alternate: through the accounts, and in one account."""
    names = {
        "usage events to entered and acknowledged": "per s",
        "authorize, one at a time, p50": "ms",
        "authorize, one at a time, p99": "ms",
        "authorize, 64 askers": "per s",
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for round_ in range(rounds + 1):
        pair = [await _round(one, events, asks, seed=round_ + 100) for one in (servers, plain)]
        if round_:
            for name in names:
                figures[name].append((pair[0][name], pair[1][name]))
    return [
        (name, unit, *(statistics.median(column) for column in zip(*figures[name], strict=True)))
        for name, unit in names.items()
    ]


async def _round(servers: Servers, events: int, asks: int, *, seed: int) -> dict[str, float]:
    rate = await ledger_ingest_round(servers, events, seed)
    asking = await ledger_asking_round(servers, asks)
    return {
        "usage events to entered and acknowledged": rate,
        "authorize, one at a time, p50": asking["p50"],
        "authorize, one at a time, p99": asking["p99"],
        "authorize, 64 askers": asking["rate"],
    }


async def bench_floods(*, rounds: int) -> list[Figure]:
    """Milliseconds of an event and a question, median: beside a flood, and in quiet."""
    found = []
    for name, at_once in FLOODS.items():
        pairs = [await _flood_round(at_once) for _ in range(rounds)]
        loud, quiet = (statistics.median(column) for column in zip(*pairs, strict=True))
        found.append((f"event and question while another floods {name}", "ms", loud, quiet))
    return found


async def _flood_round(at_once: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="rienda-bench-") as folder:
        house = House(Path(folder))
        await house.start()
        try:
            user = await house.log_in("other.c1")
            async with running([await answerer(house)]):
                quiet = await go_on(user, start=0, rounds=FLOOD_ROUNDS)
                async with running([await flooder(house, at_once=at_once)]):
                    loud = await go_on(user, start=FLOOD_ROUNDS, rounds=FLOOD_ROUNDS)
        finally:
            await house.stop()
    return 1_000 * statistics.median(loud), 1_000 * statistics.median(quiet)
