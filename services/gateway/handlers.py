"""What the gateway hears for channels that speak HTTP and for people who watch.

The one thing not to break: the catalogue says what channels hear (`hearers` with `channels`), so an
event that is added there needs nothing here, once its stream is among the gateway's durables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from contracts.envelope import encode
from services.gateway.domain.permissions import RUNS_VIEW
from services.gateway.store.heard import (
    LIVE_AGE,
    PRUNE_ROWS_MAX,
    NewlyHeard,
    prune_heard,
    save_heard,
)
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from datetime import datetime

    from shared.clock import Clock
    from shared.consume import Batch, Received
    from shared.db import Connection, Database

CHANNELS: Final = "channels"
PRUNE_EVERY_S: Final = 60.0


async def on_batch(connection: Connection, batch: Batch) -> None:
    """Keep what somebody has to hear, in the order in which it came."""
    rows = [row for item in batch.received if (row := _row_of(item, batch.now)) is not None]
    await save_heard(connection, rows, at=batch.now)


def _row_of(item: Received, now: datetime) -> NewlyHeard | None:
    hears = HEARS.get(item.address.event.name)
    people_need = hears(item, now) if hears else None
    for_channels = CHANNELS in item.address.event.hearers
    if people_need is None and not for_channels:
        return None
    return NewlyHeard(
        org=item.event.org,
        event=item.address.event.name,
        for_channels=for_channels,
        channel_id=getattr(item.event.data, "channel_id", None),
        people_need=people_need,
        body=encode(item.event),
    )


def on_run_changed(item: Received, now: datetime) -> str | None:
    """People who may see runs watch them; what is over for long is news to nobody."""
    return RUNS_VIEW if now - item.event.time <= LIVE_AGE else None


HEARS: Mapping[str, Callable[[Received, datetime], str | None]] = {
    "run_changed": on_run_changed,
}
"""Event name to the permission with which people watch it, or None."""


async def prune_heard_forever(database: Database, clock: Clock) -> None:
    """Let go what is too old, until cancelled."""
    while True:
        try:
            async with database.transaction() as connection:
                gone = await prune_heard(connection, now=clock.now())
        except Exception as error:
            if not is_transient(error):
                raise
            logger().warning("prune_waits", cause=type(error).__name__)
            gone = 0
        if gone < PRUNE_ROWS_MAX:
            await asyncio.sleep(PRUNE_EVERY_S)
