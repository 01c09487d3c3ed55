"""`/spend` and the first page of `/runs` of a large organization, beside those of a small one.

The rows are put there by SQL, set by set, as if they had always been there; the sums of trees by
when they began by the statement of the migration that made them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg

from contracts.ledger import GetSpend
from contracts.subjects import Asked
from services.ledger import migrations
from shared.questions import Question
from tests.factories import Feed
from tests.ledger_room import LedgerRoom
from tests.servers import Servers

ENTRIES_PER_RUN = 10
READS = 40
SPEND_READS = 120
MONTH = timedelta(days=30)
FILL_S_MAX = 300
_MIGRATION = (Path(migrations.__file__).parent / "versions" / "ledger_0009.sql").read_text()
FILL_SLOTS = _MIGRATION[_MIGRATION.index("INSERT INTO spend_slot") :].partition(";")[0]
Figure = tuple[str, str, float, float, str]
_FILL = (
    """
    INSERT INTO ledger.run (org, run_id, channel_id, root_run_id, said_root_run_id, provisional,
        agent_id, started_by_user_id, surface, status, tools, missing_delegates, started_at,
        first_sign_at, last_sign_at, heard_at, own_first_sign_at, own_last_sign_at, own_heard_at,
        ended_at, start_digest, end_digest, revision,
        counted_agents, counted_departments, own_cost_nanousd, own_request_count, own_input,
        own_output, tree_cost_nanousd, tree_request_count, tree_input, tree_output)
    SELECT $1, 'r' || n, 'c1', 'r' || n, 'r' || n, false, 'agent-' || n % 40, 'user-' || n % 200,
        'web', (ARRAY['completed', 'failed', 'completed', 'cancelled'])[1 + n % 4], '{}', 0, t.at,
        t.at, t.at, t.at, t.at, t.at, t.at, t.at + interval '9 seconds', '', '', 2,
        ARRAY['agent-' || n % 40], '{}',
        n * 10000, $3::integer, 5000, 900, n * 10000, $3::integer, 5000, 900
    FROM generate_series(1, $2::integer) AS n,
        LATERAL (SELECT now() - n * interval '25 seconds' AS at) AS t
    """,
    """
    INSERT INTO ledger.run_line (org, run_id, month, provider, model, key_id, kind, late_month,
        cost_nanousd, request_count, input, output)
    SELECT $1, 'r' || n, to_char(now(), 'YYYY-MM'),
        (ARRAY['anthropic', 'openai', 'google'])[1 + (n + p) % 3], 'model-' || p, 'key-' || n % 5,
        'model', '', n * 5000, $3::integer / 2, 2500, 450
    FROM generate_series(1, $2::integer) AS n, generate_series(1, 2) AS p
    """,
    """
    INSERT INTO ledger.entry (id, org, request_id, run_id, billed_run_id, kind, model, provider,
        input, output, cache_read, cache_write_5m, cache_write_1h, reasoning, audio_input,
        audio_output, reported_tokens, cost_nanousd, request_count, unpriced_count, priced,
        price_source, price_set, interrupted, month, occurred_at, billed_at, recorded_at)
    SELECT gen_random_uuid(), $1, 'q' || n || '-' || e, 'r' || n, 'r' || n, 'model',
        'model-' || 1 + e % 2, 'anthropic', 500, 90, 0, 0, 0, 0, 0, 0,
        '{500,90,0,0,0,0,0,0}', n * 1000, 1, 0, true,
        'catalogue', 'bench', false, to_char(now(), 'YYYY-MM'), now(), now(), now()
    FROM generate_series(1, $2::integer) AS n, generate_series(1, $3::integer) AS e
    """,
)


async def bench_reading(servers: Servers, *, runs: int) -> list[Figure]:
    """Milliseconds, p95: of an organization with so many top-level runs, and of one with one."""
    database = await servers.new_database("ledger")
    admin = await asyncpg.connect(database.admin_url.partition("?")[0], ssl=False)
    room = LedgerRoom(database.url("ledger"))
    room.clock.at = datetime.now(UTC)
    try:
        await room.know(Feed(), "large", "small")
        for org, count in (("large", runs), ("small", 1)):
            for statement in _FILL:
                await admin.execute(statement, org, count, ENTRIES_PER_RUN, timeout=FILL_S_MAX)
        await admin.execute("SET search_path TO ledger; DELETE FROM spend_slot")
        await admin.execute(FILL_SLOTS, timeout=FILL_S_MAX)
        # What the server does by itself in the background of a database that grows.
        await admin.execute("VACUUM ANALYZE run, run_line, entry, spend_slot")
        figures = []
        for name, count, ask in (
            ("first page of /runs with its total", READS, lambda org, _: room.runs(org)),
            ("the same of one agent", READS, lambda org, n: room.runs(org, agent_id=f"agent-{n}")),
            ("/spend of 30 days", SPEND_READS, lambda org, n: _spend(room, org, (n, None))),
            ("/spend, ragged windows", SPEND_READS, lambda org, n: _spend(room, org, _ragged(n))),
        ):
            large = await _took(lambda n, ask=ask: ask("large", n), count)  # type: ignore[misc]
            small = await _took(lambda n, ask=ask: ask("small", n), count)  # type: ignore[misc]
            what = f"{name}, {runs:,} runs of {ENTRIES_PER_RUN} entries, p95"
            what += f" (p50 {large[len(large) // 2]:.1f} ms)"
            figures.append((what, "ms", _p95(large), _p95(small), "the same of one run"))
        return figures
    finally:
        await room.close()
        await admin.close()
        await servers.drop_database(database)


def _ragged(number: int) -> tuple[int, int]:
    """A window that begins and ends within slots, of a few hours up to a month."""
    chance = random.Random(number)
    begins = chance.randrange(1_000_000)
    return begins, begins + chance.randrange(10_000, int(MONTH.total_seconds()) - begins)


async def _spend(room: LedgerRoom, org: str, window: tuple[int, int | None]) -> object:
    """Of so many seconds after the beginning of the month that has passed."""
    month_ago = room.clock.now() - MONTH
    start, end = (None if at is None else month_ago + timedelta(seconds=at) for at in window)
    asked = GetSpend(started_from=start or month_ago, started_to=end)
    return await room.reader.answer_get_spend(Question(asked, Asked(org, "room", "gateway"), None))


async def _took(ask: Callable[[int], Awaitable[object]], count: int) -> list[float]:
    """Milliseconds of each, the quickest first."""
    took = []
    for number in range(count + 1):
        started = time.perf_counter()
        await ask(number)
        took.append(1_000 * (time.perf_counter() - started))
    # The first plans and connects.
    return sorted(took[1:])


def _p95(took: list[float]) -> float:
    return took[int(0.95 * len(took))]
