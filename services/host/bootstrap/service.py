"""The bootstrap step and the bootstrap process, put together.

`prepare` runs once before the rooms start. `serve` stays up and answers `bootstrap.issue` and
`bootstrap.revoke`. The one thing not to break: only the gateway may ask; it has checked who is
allowed to make a channel.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, replace
from typing import Final

import nats
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import APIError
from prometheus_client import Counter

from contracts.bootstrap import Credential, IssueCredential, RevokeCredential, Revoked
from contracts.catalog import DEPLOYMENT, DURABLES, STREAMS
from contracts.errors import Forbidden, Retryable
from contracts.types import Wire
from services.host.bootstrap.channel_users import ChannelUsers
from services.host.bootstrap.credentials import BusUsers
from services.host.bootstrap.database import prepare_postgres
from services.host.bootstrap.errors import ServerUnusable
from services.host.bootstrap.floods import FloodWatch, Pauses
from services.host.bootstrap.reload import SystemConnection, answer_probes, gets_through
from services.host.bootstrap.rights import channel_user, inbox_prefix
from services.host.bootstrap.settings import NAME, PrepareSettings, ServeSettings
from services.host.bootstrap.streams import (
    Catalogue,
    Decision,
    StreamReport,
    prepare_streams,
)
from services.host.bootstrap.watching import look
from services.host.errors import HostError
from shared.bus import CONNECT_S_MAX, RECONNECT_WAIT_S, Bus
from shared.clock import SystemClock
from shared.health import health_server
from shared.log import logger
from shared.questions import Question, Responder

ASKER: Final = "gateway"
WATCH_S: Final = 2.0
ALARM_S: Final = 30.0
FLOOD_LOOK_S: Final = 0.5
"""Two looks make a flood, so a sender that waits for nothing is cut within a second or two."""
FLOODS = Counter("rienda_channel_floods", "Channels cut for sending too much")


@dataclass(frozen=True, slots=True)
class Report:
    """What `prepare` changed; empty lists when it ran before."""

    postgres: list[str]
    streams: StreamReport


async def prepare(settings: PrepareSettings, decision: Decision) -> Report:
    """Prepare Postgres, then the streams.

    Errors: UnsafeDifference, StreamRefused, ServerUnusable.
    """
    done = await prepare_postgres(
        settings.postgres_url.get_secret_value(),
        database=settings.database,
        passwords={
            role: secret.get_secret_value() for role, secret in settings.role_passwords.items()
        },
    )
    client = await _connect(settings)
    try:
        streams = await prepare_streams(
            JetStreamContext(client),
            _catalogue(channel_age_s=settings.channel_age_s),
            decision=decision,
        )
    except (nats.errors.Error, APIError, TimeoutError) as error:
        raise _unusable(error) from error
    finally:
        await client.close()
    return Report(done, streams)


def _catalogue(*, channel_age_s: int) -> Catalogue:
    return Catalogue(
        tuple(
            replace(stream, age_s_max=channel_age_s) if stream.name == "CHANNEL" else stream
            for stream in STREAMS
        )
    )


def _memory_catalogue() -> Catalogue:
    streams = tuple(stream for stream in STREAMS if stream.storage == "memory")
    names = {stream.name for stream in streams}
    return Catalogue(streams, tuple(spec for spec in DURABLES if spec.stream in names))


async def _connect(settings: PrepareSettings) -> Client:
    try:
        return await nats.connect(
            settings.nats_url,
            **settings.address.login,
            name=NAME,
            allow_reconnect=False,
            connect_timeout=CONNECT_S_MAX,
            error_cb=_log_error,
        )
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise _unusable(error) from error


def _unusable(error: Exception) -> ServerUnusable:
    said = str(error) or type(error).__name__
    return ServerUnusable("NATS", said, setting="RIENDA_BOOTSTRAP_NATS_URL")


async def _log_error(error: Exception) -> None:
    logger().warning("bus_error", cause=type(error).__name__)


class Answers:
    """Answers the gateway's questions; `users` is None with a server of somebody else's."""

    def __init__(self, users: ChannelUsers | None, *, channel_url: str) -> None:
        """Take the users and the address that channels are told."""
        self._users = users
        self._channel_url = channel_url

    async def issue(self, question: Question) -> Wire:
        """Make or replace the bus user of a channel.

        Raises:
            Forbidden: somebody else than the gateway asks.
            Retryable: the server could not be made to agree.
        """
        _require_gateway(question)
        wanted: IssueCredential = question.data
        if self._users is None:
            return Credential(available=False, url=None, user=None, inbox_prefix=None)
        user = channel_user(wanted.org, wanted.channel_id)
        seed = await self._users.issue(wanted.org, wanted.channel_id)
        return Credential(
            available=True,
            url=self._channel_url,
            user=user,
            nkey_seed=seed,
            inbox_prefix=inbox_prefix(user),
        )

    async def revoke(self, question: Question) -> Wire:
        """Remove the bus user of a channel and cut it.

        Raises:
            Forbidden: somebody else than the gateway asks.
            Retryable: the server could not be made to agree.
        """
        _require_gateway(question)
        wanted: RevokeCredential = question.data
        if self._users is None:
            return Revoked(existed=False)
        return Revoked(existed=await self._users.revoke(wanted.org, wanted.channel_id))


def _require_gateway(question: Question) -> None:
    asked = question.asked
    if (asked.kind, asked.asker, asked.org) != ("room", ASKER, DEPLOYMENT):
        raise Forbidden("only the gateway asks for bus credentials", reason="not_for_you")


class BootstrapProcess:
    """The process that stays up."""

    def __init__(self, settings: ServeSettings) -> None:
        """Assemble; nothing is connected before `run`."""
        self._bus = Bus(settings.address)
        self._system: SystemConnection | None = None
        self._users: ChannelUsers | None = None
        if settings.config_folder and settings.sys_nkey_seed:
            self._system = SystemConnection(
                settings.nats_url, nkey_seed=settings.sys_nkey_seed.get_secret_value()
            )

            async def probe(*, user: str, nkey_seed: str) -> bool:
                return await gets_through(settings.nats_url, user=user, nkey_seed=nkey_seed)

            self._users = ChannelUsers(BusUsers(settings.config_folder), self._system, probe)
        self._floods = FloodWatch(messages_per_s_max=settings.channel_messages_per_s_max)
        self._pauses = Pauses(settings.channel_pause_s)
        answers = Answers(self._users, channel_url=settings.channel_nats_url or settings.nats_url)
        self._responder = Responder(
            self._bus,
            room=NAME,
            answers={
                "issue": answers.issue,
                "revoke": answers.revoke,
                "list_streams": self._list_streams,
            },
        )
        self._server = health_server(
            {"started": self._is_started, "bus": self._is_bus_up},
            host=settings.http_host,
            port=settings.http_port,
        )
        self._started = False

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT; answer the exit code."""
        stop = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
        stopping = asyncio.create_task(stop.wait())
        web = asyncio.create_task(self._server.serve())
        starting = asyncio.create_task(self._start())
        try:
            await asyncio.wait({starting, stopping, web}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                logger().info("serving")
                watching = {
                    asyncio.create_task(self._watch_memory()),
                    asyncio.create_task(self._watch_alarms()),
                    asyncio.create_task(self._watch_floods()),
                }
                await asyncio.wait({stopping, web, *watching}, return_when=asyncio.FIRST_COMPLETED)
                for task in watching:
                    task.cancel()
            return 0 if stop.is_set() else 1
        finally:
            starting.cancel()
            await self._stop()
            await asyncio.gather(starting, web, return_exceptions=True)

    async def _start(self) -> None:
        await self._bus.connect()
        await answer_probes(self._bus.client)
        while self._users and self._system:
            try:
                if not self._system.is_up:
                    await self._system.connect()
                await self._users.agree()
                break
            except (OSError, nats.errors.Error, TimeoutError, Retryable) as error:
                logger().warning("system_account_waits", cause=type(error).__name__)
                await asyncio.sleep(RECONNECT_WAIT_S)
        await self._bus.start()
        self._started = True

    async def _watch_memory(self) -> None:
        """Make streams in memory again: a restarted server has forgotten them and their durables.

        Looked at every `WATCH_S`; what lies on disk is the business of `prepare`.
        """
        while True:
            try:
                report = await prepare_streams(
                    JetStreamContext(self._bus.client), _memory_catalogue()
                )
                if report.changed:
                    logger().warning("memory_streams_made_again", created=report.created)
            except (OSError, nats.errors.Error, TimeoutError, HostError) as error:
                logger().warning("memory_streams_wait", cause=type(error).__name__)
            await asyncio.sleep(WATCH_S)

    async def _watch_alarms(self) -> None:
        """Look at streams and durables every `ALARM_S`: gauges, and a line in the log per alarm."""
        while True:
            try:
                await look(JetStreamContext(self._bus.client), SystemClock().now())
            except (OSError, nats.errors.Error, TimeoutError) as error:
                logger().warning("streams_not_seen", cause=type(error).__name__)
            await asyncio.sleep(ALARM_S)

    async def _watch_floods(self) -> None:
        """Cut whoever sends more than the bus bears for all, longer each time (ADR 0029)."""
        while True:
            await asyncio.sleep(FLOOD_LOOK_S)
            if self._users is None or self._system is None:
                continue
            try:
                await self._look_for_floods(self._users, self._system)
            except (OSError, nats.errors.Error, TimeoutError, Retryable, HostError) as error:
                logger().warning("floods_not_seen", cause=type(error).__name__)

    async def _look_for_floods(self, users: ChannelUsers, system: SystemConnection) -> None:
        traffic, at_s = await system.traffic(), time.monotonic()
        for user in self._pauses.now(at_s) - users.paused:
            self._pauses.lift(user, at_s)
        for flood in self._floods.look(traffic, at_s):
            if sender := users.user_of(flood.key):
                FLOODS.inc()
                logger().error(
                    "channel_paused",
                    user=sender,
                    messages_per_s=round(flood.messages_per_s),
                    bytes_per_s=round(flood.bytes_per_s),
                    pause_s=self._pauses.begin(sender, at_s),
                )
        await users.pause(self._pauses.now(at_s))

    async def _list_streams(self, question: Question) -> Wire:
        """Say how full the streams are and how far their durables.

        Raises:
            Forbidden: somebody else than a room asks.
        """
        if question.asked.kind != "room" or question.asked.org != DEPLOYMENT:
            raise Forbidden("only rooms ask for the streams", reason="not_for_you")
        return await look(JetStreamContext(self._bus.client), SystemClock().now())

    async def _stop(self) -> None:
        self._started = False
        # Answers under way need the connection, so they come first.
        await self._responder.drain()
        await self._bus.stop()
        if self._system:
            await self._system.close()
        self._server.should_exit = True

    async def _is_started(self) -> bool:
        return self._started

    async def _is_bus_up(self) -> bool:
        return self._bus.is_up and (self._system is None or self._system.is_up)
