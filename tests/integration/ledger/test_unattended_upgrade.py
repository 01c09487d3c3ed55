"""An upgrade counts by person, routine and goal what was entered before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.types import Surface
from shared.db import open_connection
from tests.factories import Feed, minutes, started
from tests.integration.ledger.asking import USD, paid
from tests.integration.ledger.reconciling import assert_rebuilding_agrees
from tests.integration.ledger.test_goals import OCTOBER
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
VERSIONS = Path(__file__).resolve().parents[3] / "services" / "ledger" / "migrations" / "versions"
BEFORE = """
    ALTER TABLE run DROP COLUMN counted_person, DROP COLUMN counted_routine,
        DROP COLUMN counted_goal;
    ALTER TABLE organization DROP COLUMN proactive_limit_nanousd;
    DROP TABLE routine;
    DROP TABLE goal;
    DELETE FROM month_spend WHERE scope IN ('person', 'routine', 'goal');
    INSERT INTO directory_copy (id, finished_at) VALUES (1, now()) ON CONFLICT DO NOTHING;
"""
"""Back to the schema of the release before, with its rows."""


async def sums_of(room: LedgerRoom) -> list[tuple]:
    rows = await room.rows("SELECT * FROM month_spend ORDER BY org, scope, scope_id, month")
    return [tuple(row) for row in rows]


async def test_what_was_entered_before_is_counted_as_if_it_came_after(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    at = OCTOBER + minutes(60)
    room.clock.at = at
    said = [
        started("r1", surface=Surface.PROACTIVE, user_id="ana", routine_id="daily", goal_id="g"),
        started("kid", root_run_id="r1", parent_run_id="r1", goal_id="other"),
        started("r2", surface=Surface.PROACTIVE, user_id=None, goal_id="g"),
        started("r3", routine_id="daily"),
        started("plain"),
        *(paid(f"q-{run}", "0.20", run, occurred_at=at) for run in ("r1", "kid", "r3", "plain")),
        # Of October, arrived in November.
        *(paid(f"l-{run}", "0.03", run, occurred_at=OCTOBER) for run in ("r1", "kid", "r2")),
    ]
    said = [
        each.model_copy(update={"started_at": OCTOBER}) if hasattr(each, "surface") else each
        for each in said
    ]
    await room.hear([feed.channel(data, at=at, stored_at=at) for data in said])
    before = await sums_of(room)
    assert {row[1] for row in before} == {"organization", "agent", "person", "routine", "goal"}
    assert ("acme", "goal", "g", "", 49 * USD // 100, 0, 0) in before
    connection = await open_connection(room.owner_url, "ledger", {})
    try:
        await connection.execute(BEFORE)
        await connection.execute((VERSIONS / "ledger_0012.sql").read_text())
    finally:
        await connection.close()
    assert await sums_of(room) == before
    assert await room.rows("SELECT 1 FROM directory_copy") == [], "limits are asked for again"
    await assert_rebuilding_agrees(room)
