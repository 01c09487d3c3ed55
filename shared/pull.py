"""Pull subscriptions of a room's durables, carried by FastStream.

The message bodies are not decoded by the framework: a message that it could not decode would be
redelivered for ever, while `consume.Consumer` makes it a dead letter at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faststream import AckPolicy
from faststream.nats import JStream, NatsMessage, PullSub

from contracts.catalog import stream_spec
from shared.bus import BusUnavailable
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from shared.bus import Bus
    from shared.consume import Consumer

PULL_S = 1.0
RETRY_POLL_S = 0.5


def subscribe(bus: Bus, consumer: Consumer) -> None:
    """Hear a durable in bounded batches, acknowledged by the consumer itself."""
    spec = consumer.durable
    subscriber = bus.broker.subscriber(
        # The framework asks for a subject; the durable itself is unfiltered.
        stream_spec(spec.stream).subjects[0],
        stream=JStream(spec.stream, declare=False),
        durable=spec.durable,
        inbox_prefix=f"{bus.inbox_prefix}.".encode(),
        pull_sub=PullSub(batch_size=spec.batch_messages_max, timeout=PULL_S, batch=True),
        ack_policy=AckPolicy.MANUAL,
        decoder=_undecoded,
    )

    async def on_batch(message: NatsMessage) -> None:
        await consumer.on_messages(message.raw_message)  # type: ignore[arg-type]

    subscriber(on_batch)


async def retry_forever(consumer: Consumer) -> None:
    """Work off the retry table of one stream until cancelled."""
    while True:
        try:
            tried = await consumer.retry_due()
        except Exception as error:
            if not (is_transient(error) or isinstance(error, BusUnavailable)):
                raise
            logger().warning("retry_waits", cause=type(error).__name__)
            tried = 0
        if not tried:
            await asyncio.sleep(RETRY_POLL_S)


async def _undecoded(_: NatsMessage) -> bytes:
    return b""
