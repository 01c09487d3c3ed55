"""`make bench` runs from its first row to its last: one that broke is found before it is needed.

Small numbers: what they measure here is worth nothing, and no figure decides anything.
"""

from __future__ import annotations

import pytest

from tests.bench.__main__ import main

pytestmark = [pytest.mark.integration, pytest.mark.long]


async def test_every_row_of_the_bench_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    await main(1, 3_000, 60, 200)
    shown = capsys.readouterr().out
    for row in (
        "usage events",
        "authorize",
        "over HTTP",
        "holds + settlements",
        "/runs",
        "/spend",
        "second start",
        "API key",
        "open streams",
        "floods",
    ):
        assert row.split(maxsplit=1)[0] in shown, row
