"""The connection to NATS: publishing with acknowledgement, subscriptions, reconnects.

Everything waits for the stream's word: a publish that is not acknowledged has not happened, and its
outbox row stays. Consumers and streams are made by the bootstrap step, never here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import nats.errors
from faststream.nats import NatsBroker
from faststream.nats.security import NatsNKey
from faststream.security import BaseSecurity, SASLPlaintext
from nats.js.errors import APIError

from contracts.envelope import BODY_BYTES_MAX
from contracts.errors import Retryable
from shared import metrics
from shared.log import logger

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerInfo

    from contracts.catalog import DurableSpec
    from shared.outbox import Message

ACK_S_MAX = 5.0
RECONNECT_WAIT_S = 0.2
CONNECT_S_MAX = 2
PENDING_PUBLISHES_MAX = 256
GRACE_S = 15
MESSAGE_ID_HEADER = "Nats-Msg-Id"
PLAIN_PREFIX: Final = "$JS.API"
"""JetStream's API in the account that holds JetStream; elsewhere it is imported by another name."""


class BusUnavailable(Retryable):
    """NATS did not take it: away, reconnecting, or a full stream refuses."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The stream's word on one message."""

    stream: str
    sequence: int
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BusAddress:
    """Where the bus is and who connects: by key, by password, or as nobody."""

    url: str
    name: str
    """Also the inbox prefix: `_INBOX.<name>`, whose answers only this user hears."""
    nkey_seed: str | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    js_prefix: str = PLAIN_PREFIX
    """What JetStream's API is called in this user's account."""

    @property
    def login(self) -> dict[str, str]:
        """Who connects, in the words of nats-py."""
        if self.nkey_seed:
            return {"nkeys_seed_str": self.nkey_seed}
        return {"user": self.user, "password": self.password or ""} if self.user else {}


class Bus:
    """One process's connection, with what is subscribed on it."""

    def __init__(self, address: BusAddress) -> None:
        """Prepare; nothing is connected before `start`."""
        self.inbox_prefix = f"_INBOX.{address.name}"
        self.js_prefix = address.js_prefix
        self.broker = NatsBroker(
            address.url,
            inbox_prefix=self.inbox_prefix,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]
            connect_timeout=CONNECT_S_MAX,
            allow_reconnect=True,
            name=address.name,
            graceful_timeout=GRACE_S,
            logger=None,
            error_cb=self._on_error,
            reconnected_cb=self._on_reconnect,
            disconnected_cb=self._on_disconnect,
            js_options={"prefix": address.js_prefix},
            security=_security(address),
        )
        self._subscribers: list[Callable[[], Awaitable[None]]] = []
        self._slots = asyncio.Semaphore(PENDING_PUBLISHES_MAX)
        self._stopping = False

    @property
    def client(self) -> Client:
        """The nats-py client underneath."""
        return self.broker._connection  # type: ignore[return-value]

    @property
    def jetstream(self) -> JetStreamContext:
        """JetStream as this user's account calls it."""
        return self.client.jetstream(prefix=self.js_prefix)

    @property
    def is_up(self) -> bool:
        """Whether the connection stands."""
        connection = self.broker._connection
        return connection is not None and connection.is_connected

    @property
    def connections(self) -> int:
        """How often this process has connected: it grows with every connection that was lost."""
        return int(self.client.stats["reconnects"])

    async def connect(self) -> None:
        """Connect, waiting for a server that is not up yet, for as long as it takes."""
        while True:
            try:
                await self.broker.connect()
            except (OSError, nats.errors.Error, TimeoutError) as error:
                logger().warning("bus_waits", cause=type(error).__name__)
                await asyncio.sleep(RECONNECT_WAIT_S)
            else:
                return

    def at_start(self, subscribe: Callable[[], Awaitable[None]]) -> None:
        """Have a subscriber subscribe once the connection stands; it outlives reconnects."""
        self._subscribers.append(subscribe)

    async def start(self, durables: Sequence[DurableSpec] = ()) -> None:
        """Start the subscribers, once the durables answer.

        JetStream of a server that was just started needs a moment; a durable that is not there at
        all is made by the bootstrap step.
        """
        await self.connect()
        for spec in durables:
            while True:
                try:
                    await self.consumer_info(spec)
                except (nats.errors.Error, TimeoutError, OSError) as error:
                    logger().warning(
                        "durable_waits",
                        stream=spec.stream,
                        durable=spec.durable,
                        cause=type(error).__name__,
                    )
                    await asyncio.sleep(RECONNECT_WAIT_S)
                else:
                    break
        await self.broker.start()
        for subscribe in self._subscribers:
            await subscribe()

    async def consumer_info(self, spec: DurableSpec) -> ConsumerInfo:
        """What the server says of a durable of this room.

        Raises:
            nats.errors.Error: it is not there, or nobody answered.
        """
        info: ConsumerInfo = await self.jetstream.consumer_info(spec.stream, spec.durable)
        return info

    async def stop(self) -> None:
        """Let running handlers end, then disconnect."""
        self._stopping = True
        await self.broker.stop()

    async def publish(self, message: Message) -> Ack:
        """Publish one message and wait for its stream's acknowledgement.

        Raises:
            BusUnavailable: nobody answered in `ACK_S_MAX`, or the stream refused (full).
        """
        async with self._slots:
            try:
                reply = await self.client.request(
                    message.subject,
                    message.body,
                    timeout=ACK_S_MAX,
                    headers={MESSAGE_ID_HEADER: message.message_id},
                )
            except (nats.errors.Error, APIError, TimeoutError, OSError) as error:
                raise BusUnavailable(
                    "the bus did not acknowledge: try again", reason=type(error).__name__.lower()
                ) from error
        answer: dict[str, Any] = json.loads(reply.data)
        if refused := answer.get("error"):
            raise BusUnavailable(
                f"the stream refused: {refused.get('description', 'no reason given')}",
                reason="stream_refused",
                stream_error=refused.get("err_code"),
            )
        return Ack(answer["stream"], answer["seq"], bool(answer.get("duplicate")))

    async def publish_all(self, messages: Sequence[Message]) -> list[Ack]:
        """Publish many at once, at most `PENDING_PUBLISHES_MAX` unacknowledged."""
        if any(len(message.body) > 2 * BODY_BYTES_MAX for message in messages):
            raise ValueError("a body beyond the wire's limit reached the bus")
        return list(await asyncio.gather(*(self.publish(message) for message in messages)))

    async def _on_error(self, error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            metrics.PERMISSION_VIOLATIONS.inc()
            logger().error("bus_forbids", message=str(error)[:300])
        else:
            logger().warning("bus_error", cause=type(error).__name__)

    async def _on_reconnect(self) -> None:
        metrics.RECONNECTS.inc()
        logger().info("bus_reconnected")

    async def _on_disconnect(self) -> None:
        if not self._stopping:
            logger().warning("bus_disconnected")


def _security(address: BusAddress) -> BaseSecurity | None:
    if address.nkey_seed:
        return NatsNKey.from_seed(address.nkey_seed)
    return SASLPlaintext(address.user, address.password or "") if address.user else None
