"""Which processes make a deployment, and with what each of them is started.

The one thing not to break: this page is the only list of processes, and each gets the environment
of its own room alone (`bootstrap/environment.py` says who may know what).
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.catalog import ROOMS
from services.host.bootstrap.environment import (
    Deployment,
    inherited,
    migration_environment,
    prepare_environment,
    room_environment,
    serve_environment,
)
from services.host.datadir import DataDir, write_private
from services.host.embedded.probe import LOOPBACK, choose_free_port, is_port_free
from services.host.outside import BusLogin, Outside
from services.host.supervisor.child import ChildSpec

ROOT: Final = Path(__file__).resolve().parents[2]
"""Where `services` lies: the repository, or the folder that it is installed into."""
PARTS: Final[Mapping[str, Sequence[str]]] = {
    "ledger": ("ingest", "answer", "relay"),
    "gateway": ("http", "relay"),
}
"""Parts that run as processes of their own. A room that is not named here is one process."""
API_ROOM: Final = "gateway"
API_PART: Final = "http"
API_PROCESS: Final = "gateway"
"""The process that people and channels speak to; named after its room, unlike other parts."""
BOOTSTRAP: Final = "bootstrap"
BOOTSTRAP_MODULE: Final = "services.host.bootstrap"
SHARED_SETTINGS: Final = (
    "DEFAULT_ORG_MONTHLY_BUDGET_USD",
    "STALE_RUN_REAPED_AFTER_SECONDS",
    "STAV_NOK_PER_USD",
)
"""Settings of rooms that carry no room's name (facts.md 2.1, 2.2 and 3.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A program that has to end well before the rooms start."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log_path: Path


@dataclass(frozen=True, slots=True)
class _Part:
    """One process of a room; `part` is None where the room is one process."""

    room: str
    part: str | None

    @property
    def name(self) -> str:
        """Name of the process, of its log and of its port."""
        if self.part is None or (self.room, self.part) == (API_ROOM, API_PART):
            return self.room
        return f"{self.room}-{self.part}"


class Rooms:
    """The processes of one deployment; `servers` have to run before any of them."""

    def __init__(
        self,
        directory: DataDir,
        deployment: Deployment,
        *,
        outside: Outside,
        gateway: Mapping[str, str],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Take where the servers are; `gateway` holds the further settings of the gateway.

        `environ` is this process's environment: a room gets its own `RIENDA_<ROOM>_…` out of it,
        where nothing here says otherwise.
        """
        self._directory = directory
        self._deployment = deployment
        self._outside = outside
        self._gateway = gateway
        self._environ = environ
        # Settled once, before anything of ours listens on them.
        self._ports = {name: _settle_port(directory, name) for name in process_names()}

    @property
    def ports(self) -> dict[str, int]:
        """The port of every process by its name; the API's is that of `API_PROCESS`."""
        return dict(self._ports)

    def prepare(self, *decisions: str) -> Step:
        """Make the database, roles, schemas, streams and durables.

        `decisions` are its options: what a person settled about unsafe differences.
        """
        env = self._with_login(BOOTSTRAP, prepare_environment(self._deployment))
        return self._step(
            BOOTSTRAP_MODULE, "prepare", *decisions, env=self._inherited(BOOTSTRAP) | env
        )

    def migrations(self) -> list[Step]:
        """Bring every room's schema to what its code needs; they may run side by side."""
        return [
            self._step(
                f"services.{room}",
                "migrate",
                env=self._room_environment(room, port=self._ports[_parts_of(room)[0].name])
                | migration_environment(room, self._deployment),
            )
            for room in ROOMS
        ]

    def children(self) -> list[ChildSpec]:
        """Describe every process that stays, in the order of their start."""
        return [self._bootstrap(), *(self._child(part) for part in _parts())]

    def write_environments(self) -> None:
        """Write `rooms/<room>.env`, with which an operator runs a room's commands by hand.

        Those that work on the schema as its owner need `rooms/<room>-owner.env` besides.
        """
        for room in ROOMS:
            port = self._ports[_parts_of(room)[0].name]
            serving = self._room_environment(room, port=port)
            write_private(self._directory.room_env_path(room), _exports(serving))
            owner = migration_environment(room, self._deployment)
            write_private(self._directory.owner_env_path(room), _exports(owner))

    def _bootstrap(self) -> ChildSpec:
        port = self._ports[BOOTSTRAP]
        folder = None if self._outside.nats else self._directory.nats_home
        env = serve_environment(self._deployment, config_folder=folder, http_port=port)
        return ChildSpec(
            name=BOOTSTRAP,
            argv=_python(BOOTSTRAP_MODULE, "serve"),
            env=self._inherited(BOOTSTRAP) | self._with_login(BOOTSTRAP, env),
            log_path=self._directory.log_path(BOOTSTRAP),
            ready_url=_ready_url(port),
        )

    def _child(self, part: _Part) -> ChildSpec:
        port = self._ports[part.name]
        options = ("--part", part.part) if part.part else ()
        return ChildSpec(
            name=part.name,
            argv=_python(f"services.{part.room}", "serve", *options),
            env=self._room_environment(part.room, port=port),
            log_path=self._directory.log_path(part.name),
            ready_url=_ready_url(port),
        )

    def _step(self, module: str, command: str, *options: str, env: Mapping[str, str]) -> Step:
        room = module.rpartition(".")[2]
        return Step(
            name=f"python -m {module} {command}",
            argv=_python(module, command, *options),
            env=env,
            log_path=self._directory.log_path(f"{room}-{command}"),
        )

    def _room_environment(self, room: str, *, port: int) -> dict[str, str]:
        own = room_environment(room, self._deployment, http_port=port)
        further = self._gateway if room == API_ROOM else {}
        return {**self._inherited(room), **self._with_login(room, own), **further}

    def _inherited(self, who: str) -> dict[str, str]:
        """What finds programs, this very code, and the operator's settings of this room."""
        prefix = f"RIENDA_{who.upper()}_"
        settings = {
            name: value
            for name, value in self._environ.items()
            if name.startswith(prefix) or name in SHARED_SETTINGS
        }
        passed = inherited(self._environ)
        path = os.pathsep.join(filter(None, (str(ROOT), passed.get("PYTHONPATH"))))
        return {**passed, "PYTHONPATH": path, **settings}

    def _with_login(self, who: str, environment: Mapping[str, str]) -> dict[str, str]:
        """With an outside NATS server everybody shares its one login."""
        nats = self._outside.nats
        return dict(environment) if nats is None else _logged_in(who, environment, nats.login)


def _exports(settings: Mapping[str, str]) -> str:
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(settings.items())
        if name.startswith("RIENDA_")
    ]
    return f"# Written at every start of Rienda.\n{chr(10).join(lines)}\n"


def process_names() -> list[str]:
    """Every process of the rooms by name, `bootstrap` first."""
    return [BOOTSTRAP, *(part.name for part in _parts())]


def _settle_port(directory: DataDir, process: str) -> int:
    """The port kept for a process; another one when a stranger has taken it meanwhile.

    Nobody but the supervisor knows these ports. The API's is known to people, so it never changes
    by itself: whoever starts has settled it before.
    """
    port = directory.port(process)
    if process == API_PROCESS or is_port_free(port):
        return port
    kept = directory.kept_ports().values()
    while port in kept:
        port = choose_free_port()
    directory.keep_port(process, port)
    return port


def _parts() -> list[_Part]:
    return [part for room in ROOMS for part in _parts_of(room)]


def _parts_of(room: str) -> list[_Part]:
    return [_Part(room, part) for part in PARTS.get(room, ())] or [_Part(room, None)]


def _logged_in(who: str, environment: Mapping[str, str], login: BusLogin) -> dict[str, str]:
    prefix = f"RIENDA_{who.upper()}_NATS_"
    # Nobody's key, and JetStream by its own name: it is all one account there.
    dropped = {prefix + name for name in ("NKEY_SEED", "JS_PREFIX", "USER", "PASSWORD")}
    kept = {name: value for name, value in environment.items() if name not in dropped}
    if login.user is None:
        return kept
    return {**kept, f"{prefix}USER": login.user, f"{prefix}PASSWORD": login.password or ""}


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    """`-P`: a folder named `services` where `rienda` is called must not be taken for ours."""
    return (sys.executable, "-P", "-m", module, *arguments)


def _ready_url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}/ready"
