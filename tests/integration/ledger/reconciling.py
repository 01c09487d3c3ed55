"""Every rollup of an organization compared with the entries that it sums."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from services.ledger.store import rebuilding
from shared.db import open_connection
from tests.ledger_room import LedgerRoom


async def assert_rebuilding_agrees(room: LedgerRoom) -> None:
    """Made again from entries and facts, every sum and state of every organization is the same."""
    connection = await open_connection(room.owner_url, "ledger", {})
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await rebuilding.build(connection)
            for comparison in rebuilding.COMPARISONS:
                found = await rebuilding.compare(connection, comparison)
                assert found == [], found
            await rebuilding.drop(connection)
    finally:
        await connection.close()


async def assert_books_are_sums_of_entries(room: LedgerRoom, org: str) -> None:
    """Every rollup is what the entries say, corrections and ingestion among them."""

    async def summed(statement: str) -> dict[str, tuple[int, ...]]:
        rows = await room.rows(statement, org)
        sums = {key: tuple(map(int, values)) for key, *values in map(tuple, rows)}
        return {key: values for key, values in sums.items() if any(values)}

    by_run = "SELECT billed_run_id, sum(cost_nanousd), sum(request_count), sum(unpriced_count) "
    assert await summed(
        f"{by_run} FROM entry WHERE org = $1 AND run_id IS NOT NULL GROUP BY 1"
    ) == (
        await summed(
            "SELECT run_id, own_cost_nanousd, own_request_count, own_unpriced_count FROM run "
            "WHERE org = $1"
        )
    )
    assert await summed(
        "SELECT root_run_id, sum(own_cost_nanousd), sum(own_unpriced_count) FROM run "
        "WHERE org = $1 GROUP BY 1"
    ) == await summed(
        "SELECT run_id, tree_cost_nanousd, tree_unpriced_count FROM run WHERE org = $1"
    )
    assert await summed(
        "SELECT month, sum(cost), sum(floors) FROM ("
        "SELECT month, cost_nanousd AS cost, unpriced_count AS floors FROM entry WHERE org = $1 "
        "UNION ALL SELECT month, 0, missing_delegate_count FROM run_line WHERE org = $1"
        ") AS all_of_it GROUP BY 1"
    ) == await summed(
        "SELECT month, cost_nanousd, unpriced_count FROM month_spend "
        "WHERE org = $1 AND scope = 'organization'"
    )
    assert await summed(
        "SELECT late_month, sum(cost_nanousd) FROM entry WHERE org = $1 AND late_month <> '' "
        "GROUP BY 1"
    ) == await summed(
        "SELECT month, late_nanousd FROM month_spend WHERE org = $1 AND scope = 'organization'"
    )
    assert await summed(
        "SELECT agent || l.month, sum(l.cost_nanousd), "
        "sum(l.unpriced_count + l.missing_delegate_count) FROM run_line l "
        "JOIN run r ON r.org = l.org AND r.run_id = l.run_id, unnest(r.counted_agents) AS agent "
        "WHERE l.org = $1 GROUP BY 1"
    ) == await summed(
        "SELECT scope_id || month, cost_nanousd, unpriced_count FROM month_spend "
        "WHERE org = $1 AND scope = 'agent'"
    )
    floors = await room.rows("SELECT 1 FROM month_spend WHERE org = $1 AND unpriced_count < 0", org)
    assert floors == []
    spend = await room.spend(org)
    total = int(
        (await room.rows("SELECT sum(cost_nanousd) FROM entry WHERE org = $1", org))[0][0] or 0
    )
    assert spend.cost_nanousd == total
    for breakdown in (spend.by_provider, spend.by_key, spend.by_day):
        assert sum(line.cost_nanousd for line in breakdown) == total
    by_agent = sum(line.cost_nanousd for line in spend.by_agent)
    assert by_agent + spend.ingestion.cost_nanousd == total


async def assert_deleted_runs_are_gone(
    room: LedgerRoom, org: str, parents: Mapping[str, str | None], gone: Collection[str]
) -> None:
    """No page shows them, what they delegated has no parent, and the bill still adds up."""
    rows = (await room.runs(org, include_delegations=True)).items
    assert {row.run_id for row in rows} == parents.keys() - set(gone)
    for row in rows:
        parent = parents[row.run_id]
        assert row.parent_run_id == (None if parent in gone else parent)
    for run_id in gone:
        assert (await room.runs(org, parent_run_id=run_id)).items == ()
    spend, top = await room.spend(org), await room.runs(org)
    listed = sum(row.totals.cost_nanousd for row in top.items)
    assert listed + spend.deleted.cost_nanousd + spend.ingestion.cost_nanousd == spend.cost_nanousd
    assert top.total + spend.deleted.run_count == spend.run_count
    partial = sum(row.is_partial for row in top.items)
    assert spend.deleted.is_partial == (spend.partial_run_count > partial)
