"""The same load on a naive check-then-add and on strict caps: the dollars over.

Naive is what a counter beside the provider does: read what is spent, send if it is below the limit,
add what it cost. It is no straw man: each step is a committed statement of the same database.
"""

from __future__ import annotations

import asyncio
import random
from itertools import count

from contracts.channel import ProviderCost
from contracts.ledger import Authorize
from contracts.types import CapMode
from services.ledger.requests.facts import Asked
from tests.factories import Feed, organization, started, usage
from tests.ledger_room import LedgerRoom
from tests.servers import Servers

LIMIT_USD = 10
ASKERS = 200
REQUESTS = 3
"""Of each asker, one after another."""
NANOUSD = 10**9
CALL_S_MAX = 0.05


def _costs(seed: int) -> random.Random:
    return random.Random(seed)


async def naive_over_usd(servers: Servers, *, askers: int = ASKERS, seed: int = 1) -> float:
    """What a check-then-add overspends."""
    database = await servers.new_database("ledger")
    room = LedgerRoom(database.url("ledger"))
    await room.know(Feed())
    chance = _costs(seed)
    sums = "org = 'acme' AND scope = 'naive' AND scope_id = 'acme' AND month = '2026-11'"
    try:
        await room.rows("INSERT INTO month_spend VALUES ('acme', 'naive', 'acme', '2026-11')")

        async def ask() -> None:
            for _ in range(REQUESTS):
                cost = chance.randint(1, NANOUSD // 5)
                rows = await room.rows(f"SELECT cost_nanousd FROM month_spend WHERE {sums}")
                if rows[0][0] >= LIMIT_USD * NANOUSD:
                    return
                await asyncio.sleep(CALL_S_MAX * chance.random())
                added = f"UPDATE month_spend SET cost_nanousd = cost_nanousd + $1 WHERE {sums}"
                await room.rows(added, cost)

        await asyncio.gather(*(ask() for _ in range(askers)))
        rows = await room.rows(f"SELECT cost_nanousd FROM month_spend WHERE {sums}")
        return max(int(rows[0][0]) - LIMIT_USD * NANOUSD, 0) / NANOUSD
    finally:
        await room.close()
        await servers.drop_database(database)


async def strict_over_usd(servers: Servers, *, askers: int = ASKERS, seed: int = 1) -> float:
    """What the same askers overspend under a strict cap."""
    database = await servers.new_database("ledger")
    room = LedgerRoom(database.url("ledger"))
    feed, numbers, chance = Feed(), count(1), _costs(seed)
    await room.know(feed)
    strict = organization(
        entity_revision=2, monthly_budget_nanousd=LIMIT_USD * NANOUSD, cap_mode=CapMode.STRICT
    )
    await room.hear([feed.directory(strict, "acme"), feed.channel(started("r1"))])
    deciding = asyncio.create_task(room.authorizer.group.run())
    entering = asyncio.Lock()
    try:

        async def ask() -> None:
            for _ in range(REQUESTS):
                cost = chance.randint(1, NANOUSD // 5)
                request_id = f"q{next(numbers)}"
                question = Asked("acme", "c1", _question(request_id, cost))
                answer = await room.authorizer.group.submit(question)
                if isinstance(answer, Exception) or not answer.allowed:
                    return
                await asyncio.sleep(CALL_S_MAX * chance.random())
                said = ProviderCost(amount=f"{cost / NANOUSD:.9f}", currency="USD")
                async with entering:
                    await room.hear([feed.channel(usage(request_id, "r1", provider_cost=said))])

        await asyncio.gather(*(ask() for _ in range(askers)))
        spent = (await room.spend()).month_to_date_nanousd
        return max(spent - LIMIT_USD * NANOUSD, 0) / NANOUSD
    finally:
        deciding.cancel()
        await room.close()
        await servers.drop_database(database)


def _question(request_id: str, cost: int) -> Authorize:
    return Authorize(
        request_id=request_id,
        run_id="r1",
        root_run_id="r1",
        agent_id="coder",
        root_agent_id="coder",
        user_id="user-1",
        started_by_user_id="user-1",
        model="claude-opus-4-6",
        provider="anthropic",
        cost_nanousd_max=cost,
    )
