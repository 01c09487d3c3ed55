"""The figures of a window worked out a second time: from its trees and their lines, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from services.ledger.domain.months import UTC_ALWAYS, Zone, zone_starts
from services.ledger.store import spend
from services.ledger.store.reading import day_of
from tests.ledger_room import LedgerRoom

if TYPE_CHECKING:
    from shared.db import Connection

Window = tuple[datetime, datetime | None]
MONTH = "2026-11"
_WINDOW = """
    root.org = $1 AND root.run_id = root.root_run_id
    AND root.shown_start >= $2 AND ($3::timestamptz IS NULL OR root.shown_start <= $3)
"""
_PARTIAL = "root.tree_unpriced_count > 0 OR root.tree_missing_delegate_count > 0"


async def by_tree(connection: Connection, org: str, window: Window, column: str) -> list[Any]:
    """Trees by a column of their roots: cost, trees, trees that are floors."""
    return await connection.fetch(
        f"""
        SELECT root.{column} AS value, sum(root.tree_cost_nanousd) AS cost_nanousd,
            count(*) AS run_count, count(*) FILTER (WHERE {_PARTIAL}) AS floor_count
        FROM run root WHERE {_WINDOW} GROUP BY 1 ORDER BY cost_nanousd DESC, value
        """,
        org,
        *window,
    )


async def by_line(connection: Connection, org: str, window: Window, column: str) -> list[Any]:
    """Lines of trees by their own provider or key: cost, runs with a request, what is missing."""
    return await connection.fetch(
        f"""
        SELECT nullif(l.{column}, '') AS value, sum(l.cost_nanousd) AS cost_nanousd,
            count(DISTINCT l.run_id) FILTER (WHERE l.request_count > 0 OR l.unpriced_count > 0)
                AS run_count,
            sum(l.unpriced_count + l.missing_delegate_count) AS floor_count
        FROM run root
        JOIN run r ON r.org = root.org AND r.root_run_id = root.run_id
        JOIN run_line l ON l.org = r.org AND l.run_id = r.run_id
        WHERE {_WINDOW}
        GROUP BY l.{column}
        HAVING bool_or(l.request_count <> 0 OR l.unpriced_count <> 0 OR l.cost_nanousd <> 0
            OR l.missing_delegate_count <> 0)
        ORDER BY cost_nanousd DESC, value
        """,
        org,
        *window,
    )


async def by_day(
    connection: Connection, org: str, window: Window, zones: Sequence[Zone]
) -> list[tuple[Any, ...]]:
    """Trees by the day that they began on."""
    values: list[Any] = [org, *window]
    rows = await connection.fetch(
        f"""
        SELECT {day_of("root.shown_start", zone_starts(zones), values)} AS day,
            sum(root.tree_cost_nanousd), count(*), bool_or({_PARTIAL})
        FROM run root WHERE {_WINDOW} GROUP BY day ORDER BY day
        """,
        *values,
    )
    return [tuple(row) for row in rows]


async def assert_windows_agree(
    room: LedgerRoom, org: str, windows: Iterable[Window], zones: Sequence[Zone] = UTC_ALWAYS
) -> None:
    """What is put together from slots is what the trees amount to, row by row and in order."""
    async with room.database.reading() as connection:
        for window in windows:
            figures = await spend.load_figures(connection, org, *window, MONTH)
            found = {
                name: [
                    (row["value"], row["cost_nanousd"], row["run_count"], row["floor_count"])
                    for row in rows
                ]
                for name, rows in figures.items()
            }
            expected = {
                "agent": await by_tree(connection, org, window, "agent_id"),
                "person": await by_tree(connection, org, window, "started_by_user_id"),
                "provider": await by_line(connection, org, window, "provider"),
                "key": await by_line(connection, org, window, "key_id"),
            }
            assert found == {name: [tuple(row) for row in rows] for name, rows in expected.items()}
            days = await spend.list_days(connection, org, *window, zone_starts(zones))
            assert [tuple(row) for row in days] == await by_day(connection, org, window, zones)
