"""The committed samples are what their generator writes, and hold what their page says."""

from __future__ import annotations

import subprocess
import sys
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

from genai_prices import Usage as PricedUsage
from genai_prices import calc_price

from services.channels.transcripts.discovery import find_sessions
from services.channels.transcripts.importing import import_sessions, load_session
from services.channels.transcripts.saying import Attribution


def test_equal_what_the_generator_writes(samples: Path) -> None:
    ran = subprocess.run(
        [sys.executable, samples / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


async def test_hold_what_their_page_says(samples: Path, transport: Any) -> None:
    found = find_sessions([samples / "transcripts"])
    summary = await import_sessions(found, transport, attribution=Attribution())
    counts = (summary.files, summary.sessions, summary.runs, summary.delegated_runs)
    assert counts == (7, 5, 13, 1)
    assert (summary.requests, summary.compactions) == (27, 1)
    assert (summary.damaged.count, summary.missing_delegates.count) == (1, 1)
    assert summary.damaged.items[0].endswith("was cut off: it has no end (is no JSON)")
    statuses = sorted(data.status.value for data in transport.of("run_finished"))
    assert statuses == ["cancelled"] * 3 + ["completed"] * 10 + ["failed"]


def test_have_costs_of_half_a_nano_dollar_that_round_both_ways(samples: Path) -> None:
    halves = set()
    for files in find_sessions([samples / "transcripts"]).sessions:
        for request in load_session(files)[0].requests:
            usage = request.usage
            if usage.service_tier != "batch":
                continue
            price = calc_price(
                PricedUsage(
                    input_tokens=usage.input,
                    output_tokens=usage.output,
                    cache_read_tokens=usage.cache_read,
                    cache_write_tokens=usage.cache_write_5m,
                ),
                request.model,
                provider_id="anthropic",
                genai_request_timestamp=request.occurred_at,
                price_context={"processing": "batch"},
            ).total_price
            nano = price.scaleb(9)
            halves.add(nano.to_integral_value(ROUND_HALF_EVEN) - nano)
    assert halves == {Decimal("0.5"), Decimal("-0.5"), Decimal(0)}
