"""Pulling a room's durables in bounded batches.

The loop is ours (ADR 0004). One pull is open at a time; what has arrived is handled at once,
however little it is, and what arrives meanwhile makes the next batch, so that load alone makes
batches large. It is read while the one before waits for the database (ADR 0041). A loop that fails
here ends the process, loudly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import nats.errors

from shared.bus import BusUnavailable
from shared.consume import is_suspect, keep
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from shared.bus import Bus
    from shared.consume import Consumer

PULL_S = 5.0
"""How long one pull stays open at the server."""
PULL_BYTES_MAX = 16 * 1024 * 1024
"""Most that one pull brings; more waits at the server."""
GRACE_S = 0.5
"""A pull whose end is not heard of so long after its time is over: the server was restarted."""
AWAY_S = 0.2
LOOK_S = 0.005
"""Between two looks at what has arrived while a batch is handled."""
KEEP_S = 10.0
"""Between two signs to the server that what has arrived is not forgotten; it waits 30 s."""
RETRY_POLL_S = 0.5
_STATUS = "Status"
_ENDS_QUIETLY = ("404", "408")
"""No messages; the pull's time is over."""
_COMPLETED = "Batch Completed"
"""Description of a 409 that says that the pull brought all it could."""
_KEEPS_OPEN = "100"


class Puller:
    """Hears one durable; `run` until cancelled, `drain` to end after the batch under way."""

    def __init__(self, bus: Bus, consumer: Consumer) -> None:
        """Pull what `consumer` handles."""
        self._bus = bus
        self._consumer = consumer
        self._stopping = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = 0
        """Messages that the open pull may still bring."""
        self._open_until = 0.0
        self._away = False
        self._under_way: Sequence[Msg] = ()
        self._alone = False
        """Nothing is taken beside what is under way: it may end the process."""
        self._has_left = False
        self._not_before = 0.0
        """When the next batch may begin (`DurableSpec.batch_every_s`)."""

    async def run(self) -> None:
        """Pull, handle, acknowledge; while the durable is away, wait for it."""
        inbox = self._bus.client.new_inbox()
        subscription = await self._bus.client.subscribe(inbox)
        loop = asyncio.get_running_loop()
        handling: asyncio.Task[None] | None = None
        messages: list[Msg] = []
        try:
            while not self._stopping.is_set():
                await self._take_some(subscription, inbox, messages, handling)
                if handling is not None:
                    await handling
                    handling = None
                self._alone = any(map(is_suspect, messages))
                if self._alone:
                    await self._take_rest(subscription, messages)
                if messages and not self._stopping.is_set():
                    self._idle.clear()
                    self._not_before = loop.time() + self._consumer.durable.batch_every_s
                    handling = asyncio.create_task(self._handle(messages))
                    messages = []
                    continue
                if not messages:
                    self._idle.set()
                if self._away:
                    self._away = False
                    await asyncio.sleep(AWAY_S)
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._give_back(subscription, messages)
        finally:
            if handling is not None and not handling.done():
                handling.cancel()
                await asyncio.wait({handling})
            self._idle.set()

    async def _take_some(
        self,
        subscription: Subscription,
        inbox: str,
        messages: list[Msg],
        handling: asyncio.Task[None] | None,
    ) -> None:
        try:
            if handling is not None:
                await self._gather(subscription, inbox, messages, beside=handling)
            elif not messages:
                await self._next_batch(subscription, inbox, messages)
        except (nats.errors.Error, OSError) as error:
            logger().warning(
                "pull_waits", stream=self._consumer.durable.stream, cause=type(error).__name__
            )
            self._open, self._away = 0, True

    async def _handle(self, messages: list[Msg]) -> None:
        self._under_way = messages
        try:
            await self._consumer.on_messages(messages)
        finally:
            self._under_way = ()

    async def _gather(
        self,
        subscription: Subscription,
        inbox: str,
        messages: list[Msg],
        *,
        beside: asyncio.Task[None],
    ) -> None:
        """Take and read what arrives until the next batch may begin, up to a whole batch."""
        loop = asyncio.get_running_loop()
        keep_at = loop.time() + KEEP_S
        while not beside.done() or self._is_too_soon(messages):
            now = loop.time()
            if self._stopping.is_set():
                await self._give_back(subscription, messages)
            elif not self._alone:
                await self._take_arrived(subscription, inbox, messages)
            if now > keep_at:
                keep_at = now + KEEP_S
                await keep((*self._under_way, *messages))
            if beside.done():
                await asyncio.sleep(LOOK_S)
            else:
                await asyncio.wait({beside}, timeout=LOOK_S)

    def _is_too_soon(self, messages: list[Msg]) -> bool:
        """Whether a batch that was gathered beside another one waits for more of them."""
        return (
            0 < len(messages) < self._consumer.durable.batch_messages_max
            and not self._stopping.is_set()
            and asyncio.get_running_loop().time() < self._not_before
        )

    async def _take_arrived(
        self, subscription: Subscription, inbox: str, messages: list[Msg]
    ) -> None:
        taken, most = len(messages), self._consumer.durable.batch_messages_max
        # No more is asked for than is taken: what waited here would not be kept alive.
        if taken < most and self._is_over() and not self._away:
            await self._pull(inbox, most - taken)
        while subscription.pending_msgs and len(messages) < most:
            self._take(await subscription.next_msg(timeout=GRACE_S), messages)
        self._consumer.read_ahead(messages[taken:])

    async def _take_rest(self, subscription: Subscription, messages: list[Msg]) -> None:
        """Take all that the open pull brings.

        It is delivered, and counted, with the message that may end the process; so all of it has
        to have the same chance of a turn before that one (ADR 0013).
        """
        try:
            while not self._is_over():
                left_s = self._open_until - asyncio.get_running_loop().time()
                self._take(await subscription.next_msg(timeout=max(left_s, LOOK_S)), messages)
        except (TimeoutError, nats.errors.Error, OSError):
            self._open = 0

    async def _give_back(self, subscription: Subscription, messages: list[Msg]) -> None:
        """Let others have at once what will not be handled here."""
        if self._has_left:
            return
        self._has_left = True
        while subscription.pending_msgs:
            self._take(await subscription.next_msg(timeout=GRACE_S), messages)
        # First of all nobody hears the open pull any more: it would bring them here again.
        await subscription.unsubscribe()
        while messages:
            await messages.pop().nak()

    async def drain(self) -> None:
        """Take nothing more, give back what is not begun, and wait for the batch under way."""
        self._stopping.set()
        await self._idle.wait()

    async def _next_batch(
        self, subscription: Subscription, inbox: str, messages: list[Msg]
    ) -> None:
        """Take what has arrived, at least one message; nothing when the open pull ended."""
        if self._is_over():
            await self._pull(inbox, self._consumer.durable.batch_messages_max)
        try:
            self._take(await subscription.next_msg(timeout=PULL_S + GRACE_S), messages)
        except TimeoutError:
            self._open = 0
            return
        while (
            subscription.pending_msgs and len(messages) < self._consumer.durable.batch_messages_max
        ):
            self._take(await subscription.next_msg(timeout=GRACE_S), messages)

    def _is_over(self) -> bool:
        """Whether no pull is open, or none that the server still knows of."""
        return self._open <= 0 or asyncio.get_running_loop().time() > self._open_until

    async def _pull(self, inbox: str, messages_max: int) -> None:
        spec = self._consumer.durable
        wanted = {
            "batch": messages_max,
            "expires": int(PULL_S * 1_000_000_000),
            "max_bytes": PULL_BYTES_MAX,
        }
        await self._bus.client.publish(
            f"{self._bus.js_prefix}.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}",
            json.dumps(wanted).encode(),
            reply=inbox,
        )
        self._open = messages_max
        self._open_until = asyncio.get_running_loop().time() + PULL_S + GRACE_S

    def _take(self, message: Msg, messages: list[Msg]) -> None:
        status = (message.headers or {}).get(_STATUS)
        if status is None:
            self._open -= 1
            messages.append(message)
        elif status != _KEEPS_OPEN:
            self._open = 0
            why = (message.headers or {}).get("Description")
            if status not in _ENDS_QUIETLY and why != _COMPLETED:
                # 409: the durable was deleted, or the server goes; 503: nobody keeps it now.
                self._away = True
                logger().info(
                    "pull_ended", stream=self._consumer.durable.stream, status=status, why=why
                )


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
