"""What is committed is said, once, whatever dies; what is rolled back is not."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from nats.js import JetStreamContext

from contracts.errors import Retryable
from services.host.bootstrap.nats_config import BOOTSTRAP_USER
from shared import outbox
from shared.outbox import BATCH_ROWS_MAX, Message, Relay
from tests.waiting import eventually

pytestmark = pytest.mark.integration
SUBJECT = "rienda.event.acme.ledger.run_changed.v1"


def message(number: int) -> Message:
    body = f"body {number}".encode()
    return Message(SUBJECT, hashlib.sha256(body).hexdigest(), body)


@pytest.fixture
async def stream(servers, fresh_streams):
    client = await servers.log_in(BOOTSTRAP_USER)
    yield JetStreamContext(client)
    await client.close()


@pytest.fixture
def count(servers):
    async def count_messages() -> int:
        # A connection of its own: a test may have restarted the server.
        client = await servers.log_in(BOOTSTRAP_USER)
        try:
            return (await JetStreamContext(client).stream_info("LEDGER")).state.messages
        finally:
            await client.close()

    return count_messages


async def save(database, numbers) -> None:
    async with database.transaction() as connection:
        await outbox.save(connection, [message(number) for number in numbers])


async def waiting(database) -> int:
    async with database.transaction() as connection:
        return await connection.fetchval("SELECT count(*) FROM outbox WHERE published_at IS NULL")


async def test_committed_rows_are_published_and_rolled_back_ones_are_not(
    database, ledger_bus, count
):
    await save(database, range(3))

    async def crash():
        async with database.transaction() as connection:
            await outbox.save(connection, [message(99)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await crash()
    relay = Relay(database, ledger_bus)
    assert await relay.relay_batch() == 3
    assert await relay.relay_batch() == 0
    assert await count() == 3


async def test_several_relays_share_the_rows(database, ledger_bus, count):
    await save(database, range(3 * BATCH_ROWS_MAX))
    relays = [Relay(database, ledger_bus) for _ in range(4)]
    relayed = await asyncio.gather(*(relay.relay_batch() for relay in relays))
    assert sum(relayed) == 3 * BATCH_ROWS_MAX
    assert await count() == 3 * BATCH_ROWS_MAX


async def test_a_relay_that_dies_before_its_commit_says_nothing_twice(database, ledger_bus, count):
    await save(database, range(5))

    class DyingRelay(Relay):
        async def _publish(self, connection, rows):
            await super()._publish(connection, rows)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await DyingRelay(database, ledger_bus).relay_batch()
    assert await waiting(database) == 5
    await Relay(database, ledger_bus).relay_batch()
    assert await waiting(database) == 0
    assert await count() == 5


async def test_rows_stay_while_nats_is_away_and_go_when_it_is_back(
    servers, database, ledger_bus, count
):
    relay = asyncio.create_task(Relay(database, ledger_bus).run())
    try:
        await servers.kill_nats()
        await save(database, range(20))
        await eventually(lambda: waiting(database), lambda count: count == 0)
    finally:
        relay.cancel()
    assert await count() == 20


async def test_kept_rows_are_published_again_when_a_stream_lost_its_tail(
    servers, database, ledger_bus, count
):
    """A power cut is stood in for by making the stream again: its sequences begin anew."""
    relay = Relay(database, ledger_bus)
    await save(database, range(4))
    await relay.relay_batch()
    await servers.fresh_streams()
    assert await count() == 0
    await save(database, [4])
    await relay.relay_batch()
    await relay.relay_batch()
    assert await count() == 5


async def test_a_full_stream_refuses_and_the_row_waits(database, ledger_bus, stream, count):
    info = await stream.stream_info("LEDGER")
    info.config.max_msgs = 1
    await stream.update_stream(info.config)
    await save(database, range(2))
    with pytest.raises(Retryable):
        await Relay(database, ledger_bus).relay_batch()
    assert await waiting(database) == 2
    info.config.max_msgs = -1
    await stream.update_stream(info.config)
    await Relay(database, ledger_bus).relay_batch()
    assert await waiting(database) == 0
    assert await count() == 2
