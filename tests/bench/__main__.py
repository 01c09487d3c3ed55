"""`make bench`: what the floor and the ledger cost, beside a bare baseline of the same run.

Method: real nats-server and PostgreSQL of the embedded default, load generator on the same machine,
varied models, tokens and runs; medians of rounds that alternate with their baseline, after one that
is not counted. What it does not show: several machines, a network, a database larger than memory,
neighbours. Run it alone. No test depends on a figure.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from tests.bench import naive
from tests.bench.accounts import bench_accounts, bench_floods
from tests.bench.asking import bench_authorize
from tests.bench.gateway import bench_callers, bench_empty_room, bench_streams
from tests.bench.holding import bench_holds
from tests.bench.ingesting import bench_ingest
from tests.bench.reading import bench_reading
from tests.bench.starting import bench_second_start
from tests.bench.steady import bench_http, bench_steady
from tests.servers import Servers


async def main(rounds: int, events: int, asks: int, runs: int) -> None:
    console = Console()
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"{rounds} rounds, load generator on the same machine"
    )
    table = Table("what", "measured", "baseline", "ratio", "baseline is")
    with tempfile.TemporaryDirectory(prefix="rienda-bench-") as folder:
        servers = Servers(Path(folder) / "data")
        await servers.start()
        try:
            ingest = await bench_ingest(servers, rounds=rounds, events=events)
            measured, bare = (statistics.median(column) for column in zip(*ingest, strict=True))
            _add(
                table,
                "usage events: stream to entered and acknowledged",
                "per s",
                measured,
                bare,
                "fetch, insert the bytes, acknowledge",
            )
            for name, unit, measured, bare in await bench_authorize(
                servers, rounds=rounds, asks=asks
            ):
                _add(table, name, unit, measured, bare, "a bare request and reply")
            for figure in (
                *await bench_steady(servers, asks=asks),
                *await bench_holds(servers, rounds=rounds, pairs=asks),
                *await bench_http(servers, asks=asks),
                *await bench_reading(servers, runs=runs),
                *await bench_second_start(),
                *await bench_callers(servers, rounds=rounds, asks=asks),
                *await bench_streams(servers, rounds=rounds, asks=asks // 10),
                *await bench_empty_room(servers),
            ):
                _add(table, *figure)
            _add(
                table,
                f"over a cap of {naive.LIMIT_USD} USD, {naive.ASKERS} askers at once",
                "USD",
                await naive.strict_over_usd(servers),
                await naive.naive_over_usd(servers),
                "check, send, add",
            )
            plain = Servers(Path(folder) / "plain", has_accounts=False)
            await plain.start()
            try:
                for name, unit, measured, bare in await bench_accounts(
                    servers, plain, rounds=rounds, events=events, asks=asks
                ):
                    _add(table, f"through accounts: {name}", unit, measured, bare, "one account")
            finally:
                await plain.stop()
        finally:
            await servers.stop()
    for name, unit, measured, bare in await bench_floods(rounds=rounds):
        _add(table, name, unit, measured, bare, "the same in quiet")
    console.print(table)


def _add(table: Table, name: str, unit: str, measured: float, bare: float, baseline: str) -> None:
    figures = (f"{measured:,.2f} {unit}", f"{bare:,.2f} {unit}", f"{measured / bare:.2f}")
    table.add_row(name, *figures, baseline)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--asks", type=int, default=3_000)
    parser.add_argument("--runs", type=int, default=100_000)
    asked = parser.parse_args()
    # The rooms' own loop (shared/app.py).
    uvloop.run(main(asked.rounds, asked.events, asked.asks, asked.runs))
