"""Assembly of the gateway: settings, database, bus, and the process that a part is."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path

import typer

from contracts.catalog import DURABLES
from services.gateway import ops
from services.gateway.handlers import on_batch, prune_heard_forever
from services.gateway.http.application import build
from services.gateway.http.callers import key_lookup
from services.gateway.http.listening import Listening
from services.gateway.http.passwords import Passwords
from services.gateway.http.ports import Ports
from services.gateway.requests import DirectoryReader, answers
from services.gateway.settings import GatewaySettings
from shared.app import Process
from shared.bus import Bus
from shared.clock import SystemClock
from shared.command import RoomCommands, room_app
from shared.consume import Consumer
from shared.db import Database
from shared.lookups import Lookups
from shared.outbox import Relay
from shared.pull import Puller, retry_forever
from shared.questions import Asker, Responder

ROOM = "gateway"
CALLERS_CONNECTIONS_MAX = 4
"""Each request looks its caller up in well below a millisecond."""
MIGRATIONS = Path(__file__).with_name("migrations")


def process_of(part: str) -> Process:
    """Assemble a part: `http` serves the API, `relay` speaks and listens on the bus."""
    settings = GatewaySettings()
    database = Database(settings.postgres_url.get_secret_value(), schema=ROOM)
    bus = Bus(settings.bus_address(ROOM))
    process = Process(
        room=ROOM,
        part=part,
        bus=bus,
        database=database,
        migrations=MIGRATIONS,
        http_host=settings.http_host,
        http_port=settings.http_port,
    )
    if part == "relay":
        return _with_bus_side(process)
    listening = Listening(database)
    callers = Lookups(
        settings.postgres_url.get_secret_value(),
        schema=ROOM,
        connections_max=CALLERS_CONNECTIONS_MAX,
    )
    clock = SystemClock()
    process.loops = (listening.run,)
    process.drains = (callers.close,)
    ports = Ports(
        database=database,
        callers=callers,
        keys=key_lookup(callers, clock),
        bus=bus,
        asker=Asker(bus, name=ROOM),
        clock=clock,
        passwords=Passwords(),
        listening=listening,
        session_age=timedelta(hours=settings.session_age_hours),
        session_cookie_secure=settings.session_cookie_secure,
        deployment_key_sha256=settings.deployment_key_sha256,
        org_monthly_budget_nanousd=settings.org_monthly_budget_nanousd,
    )
    process.web = partial(build, ports)
    return process


def _with_bus_side(process: Process) -> Process:
    """Publish the outbox, take in what channels and people hear, answer the directory."""
    bus, database, clock = process.bus, process.database, SystemClock()
    consumers = [
        Consumer(room=ROOM, durable=durable, database=database, handler=on_batch, clock=clock)
        for durable in DURABLES
        if durable.room == ROOM
    ]
    pullers = [Puller(bus, consumer) for consumer in consumers]
    responder = Responder(bus, room=ROOM, answers=answers(DirectoryReader(database=database)))
    process.durables = [consumer.durable for consumer in consumers]
    process.drains = [responder.drain, *(puller.drain for puller in pullers)]
    process.loops = [
        Relay(database, bus).run,
        partial(prune_heard_forever, database, clock),
        *(puller.run for puller in pullers),
        *(partial(retry_forever, consumer) for consumer in consumers),
    ]
    return process


def _owner_dsn() -> str:
    owner = GatewaySettings().postgres_owner_url
    if owner is None:
        raise typer.BadParameter("set RIENDA_GATEWAY_POSTGRES_OWNER_URL to migrate")
    return owner.get_secret_value()


def _health_url() -> str:
    settings = GatewaySettings()
    return f"http://{settings.http_host}:{settings.http_port}"


COMMANDS = RoomCommands(
    room=ROOM,
    migrations=MIGRATIONS,
    parts=("http", "relay"),
    process_of=process_of,
    owner_dsn=_owner_dsn,
    health_url=_health_url,
)


def command_line() -> typer.Typer:
    """The room's commands: those of every room, and its own."""
    app = room_app(COMMANDS)
    ops.add_to(app)
    return app
