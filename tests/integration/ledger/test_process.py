"""The ledger as processes of its own, over a real bus."""

from __future__ import annotations

import pytest

from contracts.envelope import message_id
from contracts.errors import NotFound
from contracts.ledger import (
    Authorization,
    Authorize,
    GetRun,
    GetSpend,
    RunRow,
    Spend,
)
from contracts.types import ChannelRight
from shared.bus import Bus
from shared.outbox import Message
from shared.questions import Asker
from tests.factories import NOON, Feed, channel, finished, minutes, organization, started, usage
from tests.waiting import eventually

pytestmark = pytest.mark.integration


def message_of(delivery) -> Message:
    return Message(
        delivery.subject,
        message_id(delivery.subject, "x", str(delivery.sequence), delivery.body),
        delivery.body,
    )


@pytest.fixture
async def gateway_bus(servers, fresh_streams):
    bus = Bus(servers.bus_address("gateway"))
    await bus.start()
    yield bus
    await bus.stop()


async def test_events_become_a_bill_that_can_be_asked_for(
    servers, room_database, rienda_process, gateway_bus
):
    database = await room_database("ledger")
    for part in ("ingest", "answer", "relay"):
        await rienda_process("ledger", part, database)
    feed = Feed()
    deliveries = [
        feed.channel(started("r1")),
        feed.channel(usage("q1", "r1")),
        feed.channel(finished("r1")),
        feed.directory(organization(), "acme"),
        feed.directory(channel("c1", ChannelRight.BACKFILL), "c1"),
    ]
    await gateway_bus.publish_all([message_of(delivery) for delivery in deliveries])
    asker = Asker(gateway_bus, name="gateway")

    async def run() -> RunRow | None:
        try:
            return await asker.ask("ledger", "get_run", GetRun(run_id="r1"), RunRow, org="acme")
        except NotFound:
            return None

    row = await eventually(run, lambda row: row is not None and row.totals.request_count == 1)
    assert row.totals.cost_nanousd == 7_500_000
    window = GetSpend(started_from=NOON - minutes(5), started_to=NOON + minutes(5))
    spend = await asker.ask("ledger", "get_spend", window, Spend, org="acme")
    assert spend.cost_nanousd == 7_500_000

    async def waiting() -> int:
        async with await_connection(database) as connection:
            return await connection.fetchval(
                "SELECT count(*) FROM ledger.outbox WHERE published_at IS NULL"
            )

    await eventually(waiting, lambda count: count == 0)
    answer = await asker.ask(
        "ledger",
        "authorize",
        Authorize(
            request_id="q2",
            run_id=None,
            root_run_id=None,
            agent_id="coder",
            root_agent_id="coder",
            user_id=None,
            started_by_user_id=None,
            model="claude-opus-4-6",
        ),
        Authorization,
        org="acme",
    )
    assert answer.allowed


class await_connection:
    def __init__(self, database) -> None:
        self._database = database

    async def __aenter__(self):
        import asyncpg

        self._connection = await asyncpg.connect(self._database.url("ledger"), ssl=False)
        return self._connection

    async def __aexit__(self, *_):
        await self._connection.close()
