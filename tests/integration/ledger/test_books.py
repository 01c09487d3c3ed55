"""Runs, usage and sums on a real PostgreSQL."""

from __future__ import annotations

import pytest

from contracts.channel import Tokens
from tests.factories import Feed, finished, started, usage
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration


async def test_a_run_bears_what_its_requests_cost(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear(
        [
            feed.channel(started("r1")),
            feed.channel(usage("q1", "r1", tokens=Tokens(input=1_000_000))),
            feed.channel(usage("q2", "r1", tokens=Tokens(output=1_000_000))),
            feed.channel(finished("r1")),
        ]
    )
    run = await room.run("r1")
    assert run.status == "completed"
    assert run.totals.request_count == 2
    assert run.totals.cost_nanousd == (5 + 25) * 10**9
    spend = await room.spend()
    assert spend.cost_nanousd == run.totals.cost_nanousd
    assert [line.cost_nanousd for line in spend.by_provider] == [spend.cost_nanousd]
    page = await room.entries("r1")
    assert sum(entry.cost_nanousd for entry in page.items) == run.totals.cost_nanousd
    assert await room.rows("SELECT * FROM dead_letter") == []
