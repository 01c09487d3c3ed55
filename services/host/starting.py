"""From a data directory to a running deployment: servers, preparation, rooms, credentials.

The one thing not to break: every step may be repeated. A start that was cut short at any point is
completed by the next one.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.host.bootstrap.credentials import ServerConfig
from services.host.bootstrap.environment import Deployment, Logins, make_logins
from services.host.bootstrap.nats_config import Listen
from services.host.datadir import DataDir
from services.host.embedded.nats import EmbeddedNats
from services.host.embedded.postgres import EmbeddedPostgres
from services.host.embedded.probe import LOOPBACK, is_port_free, until
from services.host.embedded.process import read_log_tail, spawn
from services.host.errors import ApiPortTaken, StepFailed
from services.host.first_run.seeding import Admin, seed
from services.host.outside import Outside, read_outside
from services.host.rooms import API_PROCESS, Rooms, Step
from services.host.supervisor.supervise import Supervisor

PORT_DEFAULT: Final = 8700
PORT_WAIT_S: Final = 3.0
"""A gateway of a supervisor that was killed may be about to leave its port."""
READY_WAIT_S: Final = 90.0
"""Usually 4 s on two cores; a first start on a loaded machine takes longer."""
STEP_WAIT_S: Final = 300.0
"""A migration of much data may take minutes."""
STEP_END_WAIT_S: Final = 10.0
DEPLOYMENT_KEY_BYTES: Final = 32
"""256 random bits: 43 characters of URL-safe base64 behind `rd_` (http.md, the gateway's keys)."""

Tell = Callable[[str], None]
"""Hears what is being done now: a few words for whoever waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be started; `port` None takes the kept one, or else 8700."""

    directory: DataDir
    port: int | None
    environ: Mapping[str, str]
    decisions: Sequence[str] = ()
    """Options of `python -m services.host.bootstrap prepare`: what a person settled."""


async def run(wanted: Wanted, *, tell: Tell, then: Callable[[Admin], Awaitable[None]]) -> None:
    """Start everything, call `then` once it serves, and keep it running until a signal.

    The caller holds the lock of the directory and is the main thread.

    Errors: every HostError; what `then` raises ends the deployment.
    """
    directory = wanted.directory
    outside = read_outside(wanted.environ)
    port = choose_api_port(directory, wanted.port)
    ports = {"api": port, **_server_ports(directory, outside)}
    async with Supervisor(directory, url=f"http://{LOOPBACK}:{port}", ports=ports) as supervisor:
        await _require_port(port)
        directory.keep_port(API_PROCESS, port)
        deployment = await _start_servers(supervisor, directory, outside, tell)
        deployment_key = directory.secret("deployment_key", make=_new_deployment_key)
        rooms = Rooms(
            directory,
            deployment,
            outside=outside,
            gateway={"RIENDA_GATEWAY_DEPLOYMENT_KEY_SHA256": _sha256_hex(deployment_key)},
            environ=wanted.environ,
        )
        await _start_rooms(supervisor, rooms, wanted.decisions, tell)
        tell("looking for the organization and its keys")
        admin = await seed(
            directory, base_url=f"http://{LOOPBACK}:{port}", deployment_key=deployment_key
        )
        await then(admin)
        await supervisor.wait_for_stop()


def choose_api_port(directory: DataDir, wanted: int | None) -> int:
    """Take the port that was asked for, else the one kept from the last start, else 8700.

    Errors: ApiPortTaken when another process of this deployment has it.
    """
    kept = directory.kept_ports()
    port = wanted or kept.get(API_PROCESS, PORT_DEFAULT)
    if port in {other for name, other in kept.items() if name != API_PROCESS}:
        raise ApiPortTaken(port)
    return port


async def _require_port(port: int) -> None:
    if not await until(lambda: is_port_free(port), wait_s=PORT_WAIT_S):
        raise ApiPortTaken(port)


def _server_ports(directory: DataDir, outside: Outside) -> dict[str, int]:
    """What people may want to know of the embedded servers."""
    ports = {}
    if outside.postgres_url is None:
        ports["postgres"] = directory.port("postgres")
    if outside.nats is None:
        ports |= {"nats": directory.port("nats"), "nats_http": directory.port("nats_http")}
    return ports


async def _start_servers(
    supervisor: Supervisor, directory: DataDir, outside: Outside, tell: Tell
) -> Deployment:
    """Start what is embedded and say where everything is."""
    logins = make_logins(directory.secret)
    postgres_url, nats_url = outside.postgres_url, outside.nats.url if outside.nats else None
    if postgres_url is None:
        postgres = EmbeddedPostgres(
            directory.postgres_home,
            port=directory.port("postgres"),
            password=directory.secret("postgres"),
            log_path=directory.log_path("postgres"),
        )
        tell("starting PostgreSQL")
        await supervisor.start(postgres)
        postgres_url = postgres.superuser_dsn
    if nats_url is None:
        nats = _embedded_nats(directory, logins)
        tell("starting NATS")
        await supervisor.start(nats)
        nats_url = nats.url
    return Deployment(nats_url=nats_url, postgres_admin_url=postgres_url, logins=logins)


def _embedded_nats(directory: DataDir, logins: Logins) -> EmbeddedNats:
    port, http_port = directory.port("nats"), directory.port("nats_http")
    return EmbeddedNats(
        directory.nats_home,
        port=port,
        http_port=http_port,
        write_config=ServerConfig(Listen(port=port, http_port=http_port), logins.bus),
        log_path=directory.log_path("nats"),
    )


async def _start_rooms(
    supervisor: Supervisor, rooms: Rooms, decisions: Sequence[str], tell: Tell
) -> None:
    tell("preparing roles, schemas and streams")
    rooms.write_environments()
    await run_step(rooms.prepare(*decisions))
    tell("bringing the schemas up to date")
    migrations = [run_step(step) for step in rooms.migrations()]
    for outcome in await asyncio.gather(*migrations, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
    tell("starting the rooms")
    for child in rooms.children():
        await supervisor.start(child)
    await supervisor.wait_ready(wait_s=READY_WAIT_S)


async def run_step(step: Step) -> None:
    """Run a program to its end; it ends with this process, and when the start is cut short.

    Errors: StepFailed with what it wrote.
    """
    offset = step.log_path.stat().st_size if step.log_path.exists() else 0
    process = spawn(step.argv, env=step.env, log_path=step.log_path)
    try:
        await until(lambda: process.poll() is not None, wait_s=STEP_WAIT_S)
    finally:
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(signal_number)
                await until(lambda: process.poll() is not None, wait_s=STEP_END_WAIT_S)
    if process.returncode != 0:
        lines = read_log_tail(step.log_path, offset=offset)
        raise StepFailed(step.name, exit_code=process.returncode, log_lines=lines)


def _new_deployment_key() -> str:
    return "rd_" + secrets.token_urlsafe(DEPLOYMENT_KEY_BYTES)


def _sha256_hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
