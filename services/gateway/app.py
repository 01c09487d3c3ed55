"""Assembly of the gateway: settings, database, bus, and the process that a part is."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from services.gateway import ops
from services.gateway.http.application import build
from services.gateway.http.ports import Ports
from services.gateway.settings import GatewaySettings
from shared.app import Process
from shared.bus import Bus
from shared.clock import SystemClock
from shared.command import RoomCommands, room_app
from shared.db import Database
from shared.outbox import Relay
from shared.questions import Asker

ROOM = "gateway"
MIGRATIONS = Path(__file__).with_name("migrations")


def process_of(part: str) -> Process:
    """Assemble a part: `http` serves the API, `relay` publishes the outbox."""
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
        process.loops = (Relay(database, bus).run,)
        return process
    ports = Ports(
        database=database,
        bus=bus,
        asker=Asker(bus, name=ROOM),
        clock=SystemClock(),
        deployment_key_sha256=settings.deployment_key_sha256,
        org_monthly_budget_nanousd=settings.org_monthly_budget_nanousd,
    )
    process.web = partial(build, ports)
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
