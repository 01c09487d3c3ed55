"""Letting a gateway hear what rooms say: straight to its handler, on its own database."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from contracts.catalog import EventType, event_of
from contracts.envelope import Event
from contracts.ledger import RunChanged, TokenSums, Totals
from contracts.subjects import Address
from contracts.types import ChannelId, RunStatus, Wire
from services.gateway.handlers import on_batch
from shared.consume import Batch, Delivery, Received
from shared.db import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.gateway.running import Gateway


class Noted(Wire):
    """What no room says: an event of tests, for channels."""

    number: int
    channel_id: ChannelId | None = None


NOTED = EventType("noted", 1, "ledger", Noted, "LEDGER", ("channels",))


def run_changed(run_id: str) -> RunChanged:
    return RunChanged(
        run_id=run_id,
        run_revision=1,
        status=RunStatus.RUNNING,
        previous=None,
        reason="started",
        surface=None,
        agent_id=None,
        user_id=None,
        started_by_user_id=None,
        parent_run_id=None,
        root_run_id=run_id,
        totals=Totals(
            cost_nanousd=0,
            request_count=0,
            unpriced_count=0,
            missing_delegate_count=0,
            tokens=TokenSums(),
        ),
        partial=False,
        at=datetime.now(UTC),
    )


def received(org: str, data: Wire, *, at: datetime | None = None) -> Received:
    kind = NOTED if isinstance(data, Noted) else event_of(type(data))
    event: Event[Any] = kind.event_model(
        id="e",
        source="ledger",
        type=kind.full_name,
        time=at or datetime.now(UTC),
        subject=org,
        data=data,
    )
    delivery = Delivery(f"rienda.event.{org}.ledger.{kind.name}.v1", b"", "LEDGER", 1)
    return Received(delivery, Address(org, "ledger", None, kind, 1), event)


@asynccontextmanager
async def database_of(gateway: Gateway) -> AsyncIterator[Database]:
    """The gateway's database as its own role sees it."""
    database = Database(gateway.database.url("gateway"), schema="gateway")
    try:
        yield database
    finally:
        await database.close()


async def hear(database: Database, org: str, *said: Wire, at: datetime | None = None) -> None:
    """One batch, handled and committed."""
    now = datetime.now(UTC)
    batch = Batch(tuple(received(org, data, at=at) for data in said), now)
    async with database.transaction() as connection:
        await on_batch(connection, batch)
