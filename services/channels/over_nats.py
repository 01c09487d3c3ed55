"""The way over NATS: events acknowledged by their stream, questions by request and reply.

The one thing not to break: a message's id is a hash of subject, source, id and body
(`contracts.envelope.message_id`), and replies come back on the one inbox that this channel's user
may subscribe to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import BaseModel, ValidationError

from contracts import catalog, subjects
from contracts.channel import RunHeartbeat
from contracts.envelope import Ask, Event, encode, message_id
from contracts.errors import Fault, Forbidden, Invalid, Retryable, Unauthenticated, fault_from
from contracts.holds import HoldVoided, VoidHold
from contracts.ledger import Authorization, Authorize
from contracts.types import Wire
from contracts.upcast import read_event
from services.channels.errors import AnswerUnreadable, CredentialRefused, RiendaUnreachable
from services.channels.transport import DEADLINE_S, Outcome, Said, Verdict

T = TypeVar("T", bound=Wire)
LOG: Final = logging.getLogger("rienda.channel")
CONNECT_S: Final = 1.0
"""How long a call waits for the connection, which is tried for until the transport closes."""
ACK_S: Final = 5.0
RECONNECT_WAIT_S: Final = 0.2
HEARD_MAX: Final = 1_000
"""Events that a listener may be behind; what comes beyond them is lost to it."""
LISTEN_S: Final = 1.0
"""How long a listener may take to notice that the transport was closed."""
IN_FLIGHT_MAX: Final = 64
"""Events of one call that wait for their acknowledgement at the same time."""
HEARER: Final = "channels"
"""What the catalogue calls channels among those who hear an event."""
_VIOLATION: Final = "authorization violation"
VIOLATIONS_MIN: Final = 2
"""So often in a row the server must refuse the user before it counts: one refusal may be the hole
of a reload, in which the server knows nobody for a moment (ADR 0014)."""
_STREAM_FULL: Final = frozenset({10077, 10167})
"""Maximum bytes or messages, and too many in flight: it may work later (nats-server 2.15)."""
_UNREACHABLE: Final = (
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionDrainingError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.NoServersError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.StaleConnectionError,
    nats.errors.UnexpectedEOF,
    OSError,
    TimeoutError,
)


def heard_subjects(org: str) -> list[str]:
    """Where what an organization's channels have to hear is said."""
    return [
        subjects.event_subject(event, org) for event in catalog.EVENTS if HEARER in event.hearers
    ]


class _AckError(BaseModel):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(BaseModel):
    stream: str | None = None
    duplicate: bool = False
    error: _AckError | None = None


class NatsTransport:
    """Speaks to the bus as one channel of one organization."""

    def __init__(
        self,
        url: str,
        *,
        org: str,
        channel_id: str,
        nkey_seed: str | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        """Nothing connects before `open` or the first call.

        `nkey_seed` is what Rienda's own bus hands out; `user` and `password` are for a bus of
        somebody else's.

        Raises:
            ValueError: `url` is no address of a bus.
        """
        try:
            parts = urlsplit(url)
            is_address = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise ValueError(f"{url!r} is no address of a bus: write nats://host:4222")
        self._url = url
        self._org = org
        self._channel_id = channel_id
        self._login: dict[str, str | None] = (
            {"nkeys_seed_str": nkey_seed} if nkey_seed else {"user": user, "password": password}
        )
        self._client: Client | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        """Set while connected, and when the server refused the user."""
        self._violations = 0
        self._has_begun = False

    @property
    def _is_refused(self) -> bool:
        return self._violations >= VIOLATIONS_MIN

    @property
    def source(self) -> str:
        """The CloudEvents source of everything that this channel says, as the gateway stamps it."""
        return f"channel/{self._channel_id}"

    async def open(self) -> None:
        """Connect; a connection that is missing or lost is tried for in the background.

        Raises:
            RiendaUnreachable: no server answers within `CONNECT_S`.
            CredentialRefused: the server knows no such user.
        """
        await self._connected()

    async def close(self) -> None:
        """Close the connection, or stop trying for one."""
        client, self._client = self._client, None
        connecting, self._connecting = self._connecting, None
        has_begun, self._has_begun = self._has_begun, False
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait({connecting})
        # nats-py cannot close what has not begun to connect.
        if client is not None and has_begun:
            # A connection that is lost while it is closed is closed.
            with contextlib.suppress(OSError, nats.errors.Error):
                await client.close()

    async def publish(self, events: Sequence[Said]) -> list[Outcome]:
        """Say events and wait for the stream's acknowledgement of each.

        Raises:
            RiendaUnreachable: some event was not acknowledged; all may be said again.
            CredentialRefused: the server knows no such user.
        """
        client = await self._connected()
        outcomes: list[Outcome] = []
        for start in range(0, len(events), IN_FLIGHT_MAX):
            batch = events[start : start + IN_FLIGHT_MAX]
            outcomes += await asyncio.gather(*(self._publish(client, event) for event in batch))
        return outcomes

    async def authorize(
        self, question: Authorize, *, timeout_s: float = DEADLINE_S
    ) -> Authorization:
        """Ask the ledger.

        Raises:
            RiendaUnreachable: no answer in time, or the ledger says "not now".
            CredentialRefused: this channel may not ask.
            AnswerUnreadable: the answer is none.
            contracts.errors.Fault: the question was refused.
        """
        frame = Ask[Authorize](data=question, timeout_ms=max(1, int(timeout_s * 1000)))
        return await self._ask("authorize", frame, Authorization, timeout_s)

    async def void_hold(self, request_id: str, *, timeout_s: float = DEADLINE_S) -> None:
        """Say that a request was not sent.

        Raises: as `authorize`; `NotFound` where nothing is held for it.
        """
        asked = VoidHold(request_id=request_id)
        frame = Ask[VoidHold](data=asked, timeout_ms=max(1, int(timeout_s * 1000)))
        await self._ask("void_hold", frame, HoldVoided, timeout_s)

    async def _ask(self, name: str, frame: Ask[Any], answers: type[T], timeout_s: float) -> T:
        asked = catalog.find_question("ledger", name)
        subject = subjects.question_subject(asked, self._org, "channel", self._channel_id)
        try:
            async with asyncio.timeout(timeout_s):
                client = await self._connected()
                body = await _request(client, subject, frame.model_dump_json().encode(), timeout_s)
        except TimeoutError as error:
            raise RiendaUnreachable(f"no answer on {subject} in time") from error
        try:
            answer = catalog.answer_model(answers).model_validate_json(body)
        except ValidationError as error:
            raise AnswerUnreadable(f"the answer on {subject} is none of a ledger") from error
        if answer.error is not None:
            raise _as_channel_error(
                fault_from(
                    answer.error.code,
                    answer.error.message,
                    answer.error.reason,
                    answer.error.details,
                )
            )
        if not isinstance(answer.data, answers):
            raise AnswerUnreadable(f"the answer on {subject} is empty")
        return answer.data

    async def listen(self) -> AsyncIterator[Event[Any]]:
        """What the organization's channels have to hear, as it is said; until the transport closes.

        At most once: what is said while nobody listens, or while the bus is away, is not said
        again here. `GET /feed` keeps it. What cannot be read is logged and passed over.

        Raises:
            RiendaUnreachable: no server answers within `CONNECT_S`.
            CredentialRefused: the server knows no such user.
        """
        client = await self._connected()
        waiting: asyncio.Queue[Msg] = asyncio.Queue(HEARD_MAX)
        subscriptions = [
            await client.subscribe(subject, cb=waiting.put, pending_msgs_limit=HEARD_MAX)
            for subject in heard_subjects(self._org)
        ]
        try:
            # Whoever waits for the first event has to be known to the server by then.
            await client.flush()
            while not client.is_closed:
                try:
                    async with asyncio.timeout(LISTEN_S):
                        message = await waiting.get()
                except TimeoutError:
                    continue
                try:
                    _, event = read_event(message.subject, message.data)
                except Invalid as error:
                    LOG.warning("bus: %s on %s", error.reason, message.subject)
                else:
                    yield event
        finally:
            for subscription in subscriptions:
                with contextlib.suppress(nats.errors.Error):
                    await subscription.unsubscribe()

    async def _publish(self, client: Client, event: Said) -> Outcome:
        subject = self._subject_of(event)
        try:
            body = encode(event.envelope(source=self.source, org=self._org))
        except Invalid as error:
            return Outcome(event.id, Verdict.REFUSED, error.reason, error.message)
        headers = {"Nats-Msg-Id": message_id(subject, self.source, event.id, body)}
        reply = await _request(client, subject, body, ACK_S, headers)
        try:
            ack = _Ack.model_validate_json(reply)
        except ValidationError as error:
            raise AnswerUnreadable(f"the reply on {subject} is no acknowledgement") from error
        if ack.error is None:
            return Outcome(event.id, Verdict.DUPLICATE if ack.duplicate else Verdict.ACCEPTED)
        if ack.error.code == 503 or ack.error.err_code in _STREAM_FULL:
            raise RiendaUnreachable(f"the stream takes nothing now: {ack.error.description}")
        reason = f"stream_error_{ack.error.err_code}"
        return Outcome(event.id, Verdict.REFUSED, reason, ack.error.description)

    def _subject_of(self, event: Said) -> str:
        # The gateway's token for the same run: one pulse per run, whichever way it came.
        data = event.data
        token = subjects.token_of("run", data.run_id) if isinstance(data, RunHeartbeat) else None
        return subjects.event_subject(
            event.event, self._org, channel_id=self._channel_id, token=token
        )

    async def _connected(self) -> Client:
        if self._client is None or self._client.is_closed:
            self._begin_to_connect()
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._news.wait()
        except TimeoutError as error:
            raise RiendaUnreachable(f"no bus at {self._url}") from error
        if self._is_refused or self._client is None:
            # The next call tries again: a user may be made after its channel was started.
            await self.close()
            raise CredentialRefused(f"{self._url} knows no such bus user")
        return self._client

    def _begin_to_connect(self) -> None:
        self._news.clear()
        self._violations = 0
        self._client = client = Client()
        self._connecting = asyncio.create_task(self._connect(client), name="connect to the bus")

    async def _connect(self, client: Client) -> None:
        async def on_error(error: Exception) -> None:
            LOG.warning("bus: %s", str(error) or type(error).__name__)
            # nats-py 2.16 has no class for it where the server is asked again and again.
            if client is self._client and _VIOLATION in str(error).lower():
                self._violations += 1
                if self._is_refused:
                    self._news.set()

        async def on_connected() -> None:
            if client is self._client:
                self._violations = 0
                self._news.set()

        async def on_lost() -> None:
            if client is self._client and not self._is_refused:
                self._news.clear()

        self._has_begun = True
        await client.connect(
            self._url,
            **self._login,  # type: ignore[arg-type]
            inbox_prefix=f"_INBOX.{self._org}.{self._channel_id}".encode(),
            max_reconnect_attempts=-1,
            # Typed as int, and slept as it is.
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]
            error_cb=on_error,
            disconnected_cb=on_lost,
            reconnected_cb=on_connected,
        )
        await on_connected()


async def _request(
    client: Client,
    subject: str,
    body: bytes,
    timeout_s: float,
    headers: dict[str, str] | None = None,
) -> bytes:
    try:
        message = await client.request(subject, body, timeout=timeout_s, headers=headers)
    except _UNREACHABLE as error:
        why = str(error) or type(error).__name__
        raise RiendaUnreachable(f"no answer on {subject}: {why}") from error
    return bytes(message.data)


def _as_channel_error(fault: Fault) -> Exception:
    match fault:
        case Retryable():
            return RiendaUnreachable(fault.message)
        case Unauthenticated() | Forbidden():
            return CredentialRefused(fault.message)
        case _:
            return fault
