"""From a stream to committed effects: batches, refusals, retries, dead letters.

A batch is one transaction: inbox rows, effects, outbox rows, dead letters. It is acknowledged after
the commit, so a crash anywhere delivers it again and the effect stays one (design.md 2, *Failure*).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import nats.errors

from contracts.catalog import DurableSpec
from contracts.envelope import Event
from contracts.errors import Invalid, Retryable
from contracts.subjects import Address
from contracts.upcast import read_event
from shared import failures, metrics
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from shared.clock import Clock
    from shared.db import Connection, Database

QUICK_TRIES_MAX = 2
"""Tries of a single message at once, before it waits in the retry table (design.md 2)."""
HOLD_S_MAX = 5.0
SUSPECT_DELIVERIES = 4
"""A message delivered more often is handled alone: one of its batch may end the process."""
DELIVERIES_MAX = 32
"""Delivered more often it is a dead letter, unhandled: whoever touched it died (ADR 0013). Of a
whole batch that is delivered with a culprit half has its turn each time."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as it came: from a stream, or again from the retry table."""

    subject: str
    body: bytes
    stream: str
    sequence: int
    tries: int = 0
    at: datetime | None = None
    """When its stream stored it; a publisher's own time proves nothing. Null: just now."""


@dataclass(frozen=True, slots=True)
class Received:
    """One message that was understood."""

    delivery: Delivery
    address: Address
    event: Event[Any]


@dataclass(slots=True)
class Batch:
    """What a handler gets: understood messages, and where it says which it refuses."""

    received: tuple[Received, ...]
    now: datetime
    refusals: list[tuple[Delivery, Invalid]] = field(default_factory=list)
    postponed: list[tuple[Delivery, Retryable]] = field(default_factory=list)

    def refuse(self, item: Received, why: Invalid) -> None:
        """Make this one a dead letter; the others of the batch go on."""
        self.refusals.append((item.delivery, why))

    def postpone(self, item: Received, why: Retryable) -> None:
        """Let this one wait in the retry table: it came before what it needs."""
        self.postponed.append((item.delivery, why))


Handler = Callable[["Connection", Batch], Awaitable[None]]
"""Handles a batch in the caller's transaction. Raises `Retryable` for what may work later."""


class Consumer:
    """Handles the deliveries of one durable of a room."""

    def __init__(
        self, *, room: str, durable: DurableSpec, database: Database, handler: Handler, clock: Clock
    ) -> None:
        """Bind a handler to a durable."""
        self.durable = durable
        self._room = room
        self._database = database
        self._handler = handler
        self._clock = clock
        self._read: dict[int, tuple[Address, Event[Any]] | Invalid] = {}
        """What was read ahead, by its place in the stream."""

    def read_ahead(self, messages: Sequence[Msg]) -> None:
        """Read messages that will be handled next; not those that may end the process."""
        for message in messages:
            if is_suspect(message):
                continue
            delivery = _delivery_of(message)
            try:
                self._read[delivery.sequence] = _read(delivery)
            except Exception as error:
                # A bug: whoever handles the message meets it alone, and it waits among retries.
                logger().warning(
                    "not_read_ahead",
                    stream=delivery.stream,
                    sequence=delivery.sequence,
                    cause=type(error).__name__,
                )

    async def on_messages(self, messages: Sequence[Msg]) -> None:
        """Handle what one pull brought and acknowledge all of it.

        While the database is away the batch is held, kept alive towards the server, and tried
        again: a fetch more would only be held as well.
        """
        started = time.perf_counter()
        suspects = [message for message in messages if is_suspect(message)]
        # In another order each time, so that no culprit stands before the same neighbours for ever.
        random.Random(max(map(_deliveries, messages))).shuffle(suspects)
        together = [message for message in messages if not is_suspect(message)]
        for group in ([together] if together else []) + [[message] for message in suspects]:
            await self._hold_until_handled(group)
            await _acknowledge(group)
        metrics.BATCH_S.observe(time.perf_counter() - started)

    def _take_read(self, delivery: Delivery) -> tuple[Address, Event[Any]] | Invalid:
        # What comes again from the retry table is read anew.
        ahead = None if delivery.tries else self._read.pop(delivery.sequence, None)
        return ahead if ahead is not None else _read(delivery)

    async def _hold_until_handled(self, messages: Sequence[Msg]) -> None:
        wait_s = 0.1
        # A message that was missed while its batch was held comes again, perhaps beside itself.
        deliveries = {one.sequence: one for one in map(_delivery_of, messages)}
        while True:
            try:
                if _deliveries(messages[0]) > DELIVERIES_MAX:
                    await self._bury_unhandled(messages)
                else:
                    await self.handle([*deliveries.values()])
                return
            except Exception as error:
                if not is_transient(error):
                    raise
                logger().warning(
                    "batch_held", stream=self.durable.stream, cause=type(error).__name__
                )
                await keep(messages)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, HOLD_S_MAX)

    async def _bury_unhandled(self, messages: Sequence[Msg]) -> None:
        for message in messages:
            self._read.pop(_delivery_of(message).sequence, None)
        why = Invalid(
            f"delivered {DELIVERIES_MAX} times and never acknowledged: it ends the process",
            reason="deliveries_exhausted",
        )
        async with self._database.transaction() as connection:
            await failures.bury(
                connection,
                [(_delivery_of(message), why) for message in messages],
                room=self._room,
                now=self._clock.now(),
            )
        metrics.REFUSED.labels(why.reason).inc(len(messages))

    async def handle(self, deliveries: Sequence[Delivery]) -> None:
        """Commit the effect of every delivery, or its place among retries or dead letters.

        Raises:
            Exception: only what `is_transient` names; then nothing is committed for the part that
                failed and the caller tries again.
        """
        try:
            await self._handle_together(deliveries)
        except Exception as error:
            if is_transient(error):
                raise
            if len(deliveries) == 1:
                await self._handle_single_again(deliveries[0], error)
                return
            metrics.BATCH_FAILURES.inc()
            logger().warning(
                "batch_split",
                stream=self.durable.stream,
                messages=len(deliveries),
                cause=type(error).__name__,
            )
            middle = len(deliveries) // 2
            await self.handle(deliveries[:middle])
            await self.handle(deliveries[middle:])

    async def _handle_together(self, deliveries: Sequence[Delivery]) -> Batch:
        received: list[Received] = []
        refused: list[tuple[Delivery, Invalid]] = []
        for delivery in deliveries:
            read = self._take_read(delivery)
            if isinstance(read, Invalid):
                refused.append((delivery, read))
            else:
                received.append(Received(delivery, *read))
        batch = Batch(tuple(received), self._clock.now(), refused)
        async with self._database.transaction() as connection:
            if received:
                await self._handler(connection, batch)
            await failures.bury(connection, batch.refusals, room=self._room, now=batch.now)
            for delivery, why in batch.postponed:
                await failures.put_off(connection, delivery, why, room=self._room, now=batch.now)
        for name, count in Counter(item.address.event.name for item in received).items():
            metrics.HANDLED.labels(name).inc(count)
        for _, refusal in batch.refusals:
            metrics.REFUSED.labels(refusal.reason).inc()
        return batch

    async def _handle_single_again(self, delivery: Delivery, error: Exception) -> None:
        for _ in range(QUICK_TRIES_MAX - 1):
            try:
                await self._handle_together([delivery])
            except Exception as again:
                if is_transient(again):
                    raise
                error = again
            else:
                return
        await self._put_off(delivery, error)

    async def _put_off(self, delivery: Delivery, error: Exception) -> None:
        if not isinstance(error, Retryable):
            logger().error(
                "handler_failed",
                stream=delivery.stream,
                sequence=delivery.sequence,
                subject=delivery.subject,
                tries=delivery.tries,
                exc_info=error,
            )
        async with self._database.transaction() as connection:
            await failures.put_off(
                connection, delivery, error, room=self._room, now=self._clock.now()
            )

    async def retry_due(self) -> int:
        """Try again what is due of this stream; answer how many were tried."""
        tried = 0
        for delivery in await self._due():
            tried += 1
            try:
                batch = await self._handle_together([delivery])
            except Exception as error:
                if is_transient(error):
                    raise
                await self._put_off(delivery, error)
            else:
                if batch.postponed:
                    continue
                async with self._database.transaction() as connection:
                    await failures.forget(connection, delivery)
        return tried

    async def _due(self) -> Sequence[Delivery]:
        async with self._database.transaction() as connection:
            return [
                Delivery(
                    row["subject"],
                    row["body"],
                    row["stream"],
                    row["stream_sequence"],
                    row["tries"],
                    row["stored_at"],
                )
                for row in await failures.due(
                    connection, stream=self.durable.stream, now=self._clock.now()
                )
            ]


def _read(delivery: Delivery) -> tuple[Address, Event[Any]] | Invalid:
    try:
        return read_event(delivery.subject, delivery.body)
    except Invalid as error:
        return error


async def keep(messages: Sequence[Msg]) -> None:
    """Tell the server that these are not forgotten, so that it does not deliver them again."""
    with contextlib.suppress(nats.errors.Error, OSError):
        # While the bus is away there is nobody to tell: it delivers them again, which is no harm.
        for message in messages:
            if not message.is_acked:
                await message.in_progress()


async def _acknowledge(messages: Sequence[Msg]) -> None:
    with contextlib.suppress(nats.errors.Error, OSError):
        # What is handled and not acknowledged comes again, and is seen to be handled.
        for message in messages:
            await message.ack()


def is_suspect(message: Msg) -> bool:
    """Whether a message has come so often that it may be what ends the process."""
    return _deliveries(message) > SUSPECT_DELIVERIES


def _deliveries(message: Msg) -> int:
    return int(message.metadata.num_delivered)


def _delivery_of(message: Msg) -> Delivery:
    metadata = message.metadata
    return Delivery(
        message.subject,
        message.data,
        metadata.stream,
        metadata.sequence.stream,
        at=metadata.timestamp,
    )
