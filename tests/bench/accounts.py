"""What the accounts cost: the same ledger on a bus of accounts, and on one plain account.

And what one organization feels of another's flood, beside its own quiet.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from tests.bench.asking import ledger_asking_round
from tests.bench.ingesting import ledger_ingest_round
from tests.integration.bus.flooding import answerer, flooder, go_on, running, watcher
from tests.integration.bus.house import House
from tests.servers import Servers

Figure = tuple[str, str, float, float]
FLOODS = {"64 at a time": 64, "without waiting": 0}
FLOOD_ROUNDS = 500
FLOOD_S = 8.0
"""Longer than the cut takes, shorter than the first pause: one flood, from its first message."""


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
        # In turns, so that neither always runs on what the other has left behind.
        order = (servers, plain) if round_ % 2 else (plain, servers)
        found = {one: await _round(one, events, asks, seed=round_ + 100) for one in order}
        if round_:
            for name in names:
                figures[name].append((found[servers][name], found[plain][name]))
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
    """Milliseconds of an event and a question, median: beside a flood, and in quiet.

    The bootstrap process watches, as in a deployment; the slow second before a cut is included.
    """
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
            async with running([await answerer(house), await watcher(house)]):
                quiet = await go_on(user, start=0, rounds=FLOOD_ROUNDS)
                async with running([await flooder(house, at_once=at_once)]):
                    loud: list[float] = []
                    while sum(loud) < FLOOD_S:
                        start = FLOOD_ROUNDS + len(loud)
                        loud += await go_on(user, start=start, rounds=FLOOD_ROUNDS)
        finally:
            await house.stop()
    return 1_000 * statistics.median(loud), 1_000 * statistics.median(quiet)
