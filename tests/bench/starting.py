"""How long `rienda up` takes when its data are there already, until everything is ready."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from tests.e2e.running import RIENDA, Rienda

STARTS = 3
Figure = tuple[str, str, float, float, str]


async def bench_second_start() -> list[Figure]:
    """Seconds, median, beside the first start and beside what the command costs that does nothing.

    Everything is a process of its own: interpreters that start are most of it.
    """
    return await asyncio.to_thread(_measure)


def _measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="rienda-bench-") as folder:
        # Where the tests run as root, the servers run as somebody who has to reach it.
        Path(folder).chmod(0o755)
        rienda = Rienda(Path(folder) / "data")
        assert RIENDA.exists(), RIENDA
        try:
            first = _seconds(rienda)
            later = []
            for _ in range(STARTS):
                rienda.end()
                later.append(_seconds(rienda))
        finally:
            rienda.end()
    return [("rienda up to ready, second start", "s", statistics.median(later), first, "the first")]


def _seconds(rienda: Rienda) -> float:
    started = time.perf_counter()
    ended = rienda.up()
    assert ended.code == 0, ended.err
    return time.perf_counter() - started
