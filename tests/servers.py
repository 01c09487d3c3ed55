"""Real servers for the tests: one PostgreSQL and one nats-server per test process.

The one thing not to break: whatever a test needs fresh (a database, empty streams, a process of a
room) it gets from here in a fraction of a second, and nothing outlives the test process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext

from services.host.bootstrap.credentials import BusUsers, ServerConfig
from services.host.bootstrap.database import (
    connect,
    on_database,
    prepare_postgres,
    restrict_database,
)
from services.host.bootstrap.environment import (
    Deployment,
    Logins,
    inherited,
    make_logins,
    migration_environment,
    owner_role,
    role_url,
    room_environment,
    runtime_role,
    serve_environment,
)
from services.host.bootstrap.keys import new_seed, public_key
from services.host.bootstrap.nats_config import BOOTSTRAP_USER, SYSTEM_USER, WITNESS_USER, Listen
from services.host.bootstrap.rights import JETSTREAM_PREFIX, inbox_prefix
from services.host.bootstrap.streams import (
    Catalogue,
    StreamReport,
    delete_streams,
    prepare_streams,
)
from services.host.datadir import DataDir
from services.host.embedded.nats import EmbeddedNats
from services.host.embedded.postgres import EmbeddedPostgres
from services.host.embedded.probe import LOOPBACK, POLL_S, choose_free_port, http_get, until
from services.host.embedded.process import read_log_tail, spawn
from shared.bus import PLAIN_PREFIX, BusAddress
from shared.migrate import migrate
from tests.plain_nats import PlainConfig

ROOT = Path(__file__).resolve().parents[1]
READY_S_MAX = 60.0
"""Generous: two cores may be shared with other work. It decides no verdict but "it never came"."""
STOP_S_MAX = 30.0
DEPLOYMENT_KEY = "rd_" + "k" * 43
"""The deployment key of every gateway that a test starts."""


@dataclass(frozen=True, slots=True)
class RoomDatabase:
    """A database of its own, with the schemas of the rooms that were asked for migrated."""

    deployment: Deployment

    @property
    def name(self) -> str:
        """Its name on the server."""
        return self.deployment.database

    @property
    def admin_url(self) -> str:
        """URL of the superuser."""
        return on_database(self.deployment.postgres_admin_url, self.name)

    def url(self, room: str) -> str:
        """URL of a room's runtime role."""
        return self._url(runtime_role(room))

    def owner_url(self, room: str) -> str:
        """URL of the role that owns a room's schema."""
        return self._url(owner_role(room))

    def _url(self, role: str) -> str:
        return role_url(
            self.deployment.postgres_admin_url,
            role=role,
            password=self.deployment.logins.roles[role],
            database=self.name,
        )


class Servers:
    """One PostgreSQL and one nats-server with the accounts and roles of a real deployment."""

    def __init__(self, home: Path, *, has_accounts: bool = True, flushes: bool = True) -> None:
        """Lay out the directory; nothing runs before `start`.

        Without accounts NATS is as somebody else runs it, and everybody signs in as nobody.
        Without flushes PostgreSQL makes a database in 30 ms instead of 200; kills lose nothing,
        and no test cuts the power.
        """
        self._has_accounts = has_accounts
        self.directory = DataDir(home)
        self.directory.create()
        self.logins: Logins = make_logins(self.directory.secret)
        nats_port, http_port = self.directory.port("nats"), self.directory.port("nats_http")
        listen = Listen(port=nats_port, http_port=http_port)
        self.postgres = EmbeddedPostgres(
            self.directory.postgres_home,
            port=self.directory.port("postgres"),
            password=self.directory.secret("postgres"),
            log_path=self.directory.log_path("postgres"),
            flushes=flushes,
        )
        self.nats = EmbeddedNats(
            self.directory.nats_home,
            port=nats_port,
            http_port=http_port,
            write_config=ServerConfig(listen, self.logins.bus)
            if has_accounts
            else PlainConfig(listen),
            log_path=self.directory.log_path("nats"),
        )
        self.deployment = Deployment(
            nats_url=self.nats.url,
            postgres_admin_url=self.postgres.superuser_dsn,
            logins=self.logins,
        )
        self._templates: dict[tuple[str, ...], str] = {}
        self._databases_made = 0
        self._processes: list[RoomProcess] = []

    async def start(self) -> None:
        """Start both servers; streams and durables are made, no database yet."""
        await self.postgres.start()
        await self.nats.start()
        await self.fresh_streams()

    async def stop(self) -> None:
        """End what runs: rooms, then servers."""
        await self.end_processes()
        await self.nats.stop()
        await self.postgres.stop()

    async def kill_nats(self) -> None:
        """SIGKILL nats-server and start it again on its port."""
        await _kill_and_start(self.nats)

    async def kill_postgres(self) -> None:
        """SIGKILL the postmaster and start it again on its port; its crash recovery is run."""
        await _kill_and_start(self.postgres)

    async def fresh_streams(self, catalogue: Catalogue | None = None) -> StreamReport:
        """Delete the catalogue's streams with all they hold and make them again."""
        wanted = catalogue or Catalogue()
        client = await self.log_in(BOOTSTRAP_USER)
        try:
            jetstream = JetStreamContext(client)
            await delete_streams(jetstream, wanted)
            return await prepare_streams(jetstream, wanted)
        finally:
            await client.close()

    async def new_database(self, *rooms: str) -> RoomDatabase:
        """Make a database with every room's roles and schemas, and migrate those of `rooms`.

        The first of a kind is migrated once and becomes the template of the others.
        """
        template = await self._template(tuple(sorted(set(rooms))))
        self._databases_made += 1
        name = f"test_{self._databases_made}"
        admin = await connect(self.postgres.superuser_dsn)
        try:
            await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
            # Rights on the database itself are not copied from a template.
            await restrict_database(admin, name)
        finally:
            await admin.close()
        return RoomDatabase(replace(self.deployment, database=name))

    async def analyze(self, database: str) -> None:
        """Let the planner's statistics tell of now."""
        admin = await connect(on_database(self.postgres.superuser_dsn, database))
        try:
            await admin.execute("ANALYZE")
        finally:
            await admin.close()

    async def drop_database(self, database: RoomDatabase) -> None:
        """Drop a database, cutting whoever is still connected."""
        admin = await connect(self.postgres.superuser_dsn)
        try:
            await admin.execute(f'DROP DATABASE IF EXISTS "{database.name}" WITH (FORCE)')
        finally:
            await admin.close()

    def bus_address(self, room: str) -> BusAddress:
        """Where the bus is, as a room (or `bootstrap`, who may do everything) logs in."""
        if not self._has_accounts:
            return BusAddress(url=self.nats.url, name=room)
        prefix = PLAIN_PREFIX if room == BOOTSTRAP_USER else JETSTREAM_PREFIX
        return BusAddress(url=self.nats.url, name=room, nkey_seed=self.seed(room), js_prefix=prefix)

    async def log_in(
        self, user: str, seed: str | None = None, errors: list[str] | None = None
    ) -> Client:
        """Connect with plain nats-py, without reconnecting; close it yourself.

        `seed` is a channel's; the deployment's own users are known here.

        A forbidden publish or subscription is no exception: its words land in `errors`.
        """
        told = [] if errors is None else errors

        async def on_error(error: Exception) -> None:
            told.append(str(error))

        return await nats.connect(
            self.nats.url,
            nkeys_seed_str=(seed or self.seed(user)) if self._has_accounts else None,
            inbox_prefix=inbox_prefix(user).encode(),
            allow_reconnect=False,
            error_cb=on_error,
        )

    def environment(self, room: str, database: RoomDatabase, *, http_port: int) -> dict[str, str]:
        """The whole environment of one process of a room, migrations included."""
        key = hashlib.sha256(DEPLOYMENT_KEY.encode()).hexdigest()
        own = room_environment(room, database.deployment, http_port=http_port)
        if not self._has_accounts:
            own = {k: v for k, v in own.items() if not k.endswith(("_NKEY_SEED", "_JS_PREFIX"))}
        return {
            **inherited(os.environ),
            **own,
            **migration_environment(room, database.deployment),
            **({"RIENDA_GATEWAY_DEPLOYMENT_KEY_SHA256": key} if room == "gateway" else {}),
        }

    async def start_room(
        self,
        room: str,
        part: str,
        database: RoomDatabase,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> RoomProcess:
        """Start `python -m services.<room> serve --part <part>` and wait until it is ready."""
        port = choose_free_port()
        values = {**self.environment(room, database, http_port=port), **(environment or {})}
        argv = ["-m", f"services.{room}", "serve", "--part", part]
        return await self._start(RoomProcess(f"{room}-{part}", argv, values, port=port))

    async def start_bootstrap(self, *, external: bool = False) -> RoomProcess:
        """Start `python -m services.host.bootstrap serve` and wait until it is ready.

        With `external` it runs as beside a server of somebody else's: it can make no users.
        """
        port = choose_free_port()
        folder = None if external else self.directory.nats_home
        values = {
            **inherited(os.environ),
            **serve_environment(self.deployment, config_folder=folder, http_port=port),
        }
        argv = ["-m", "services.host.bootstrap", "serve"]
        return await self._start(RoomProcess("bootstrap", argv, values, port=port))

    async def end_processes(self) -> None:
        """Kill every process of a room that still runs."""
        while self._processes:
            await self._processes.pop().kill()

    async def _start(self, process: RoomProcess) -> RoomProcess:
        process.log_path = self.directory.log_path(f"{process.name}-{process.port}")
        self._processes.append(process)
        await process.start()
        return process

    def seed(self, user: str) -> str:
        """The seed of a user of the deployment itself."""
        bus = self.logins.bus
        own = {BOOTSTRAP_USER: bus.bootstrap, SYSTEM_USER: bus.system, WITNESS_USER: bus.witness}
        return {**own, **bus.rooms}[user]

    async def add_channels(self, *users: str) -> dict[str, str]:
        """Make users (`<org>.<channel>`) without the bootstrap process; answer their seeds."""
        seeds = {user: new_seed() for user in users}
        keys: dict[str, str | None] = {user: public_key(seed) for user, seed in seeds.items()}
        BusUsers(self.directory.nats_home).change_channels(keys)
        for _ in range(2):  # What a new account imports works after the second.
            await self.nats.reload()
        return seeds

    async def remove_channels(self) -> None:
        """Remove every channel's user."""
        users = BusUsers(self.directory.nats_home)
        users.change_channels(dict.fromkeys(users.channels()))
        await self.nats.reload()

    async def _template(self, rooms: tuple[str, ...]) -> str:
        if rooms not in self._templates:
            name = "_".join(("template", *rooms))
            await prepare_postgres(
                self.postgres.superuser_dsn, database=name, passwords=self.logins.roles
            )
            database = RoomDatabase(replace(self.deployment, database=name))
            for room in rooms:
                await migrate(
                    database.owner_url(room),
                    schema=room,
                    migrations=ROOT / "services" / room / "migrations",
                )
            self._templates[rooms] = name
        return self._templates[rooms]


class RoomProcess:
    """One process of a room as a test sees it: start, stop, kill, start again."""

    def __init__(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], *, port: int
    ) -> None:
        """Take the command (after the interpreter) and its whole environment."""
        self.name = name
        self.port = port
        self.url = f"http://{LOOPBACK}:{port}"
        self.log_path = Path(os.devnull)
        self._argv = [sys.executable, *argv]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its pid while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    async def start(self) -> None:
        """Start it and return when `/ready` says so."""
        self.launch()
        await self.wait_until_ready()

    def launch(self) -> None:
        """Start it without waiting."""
        assert self.pid is None, f"{self.name} runs already"
        self._process = spawn(self._argv, env=self._environment, log_path=self.log_path)

    async def is_ready(self) -> bool:
        """Ask its `/ready` page."""
        answer = await http_get(f"{self.url}/ready")
        return answer is not None and answer[0] == 200

    async def wait_until_ready(self) -> None:
        """Return when it is ready; fail with its last words when it ended or never is."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + READY_S_MAX
        while loop.time() < ends_at and self.pid is not None:
            if await self.is_ready():
                return
            await asyncio.sleep(POLL_S)
        state = "ended while starting" if self.pid is None else "is not ready"
        raise AssertionError(f"{self.name} {state}{self._last_words()}")

    async def stop(self) -> int:
        """SIGTERM, wait for its end and return its exit code; fail when it does not end."""
        process = self._process
        assert process is not None, f"{self.name} was never started"
        process.send_signal(signal.SIGTERM)
        if not await until(lambda: process.poll() is not None, wait_s=STOP_S_MAX):
            raise AssertionError(f"{self.name} ignores SIGTERM{self._last_words()}")
        return int(process.returncode)

    async def kill(self) -> None:
        """SIGKILL and wait for its end; nothing when it does not run."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            assert await until(lambda: process.poll() is not None, wait_s=STOP_S_MAX)

    def _last_words(self) -> str:
        return "".join(f"\n  | {line}" for line in read_log_tail(self.log_path))


async def _kill_and_start(server: EmbeddedNats | EmbeddedPostgres) -> None:
    pid = server.pid
    assert pid is not None, f"{server.name} does not run"
    os.kill(pid, signal.SIGKILL)
    assert await until(lambda: not server.is_alive(), wait_s=STOP_S_MAX)
    await server.start()
