"""`compose.yaml` without an engine: its commands run as processes, its volumes are folders.

What this cannot show is what an engine adds: images, users, read-only files, published ports.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from services.host.bootstrap.containers import folders
from services.host.embedded.nats import find_program
from services.host.embedded.postgres import EmbeddedPostgres
from services.host.embedded.probe import choose_free_port
from services.host.rooms import BOOTSTRAP, process_names

REPOSITORY = Path(__file__).parents[2]
COMPOSE: Mapping[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
SERVICES: Mapping[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "rienda"}
STEPS = [name for name, service in OURS.items() if service["restart"] == "no"]
WAIT_S = 90.0


def words(command: list[str]) -> str:
    return " ".join(command)


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """Where each volume of a service is mounted, by the volume."""
    return dict(text.split(":")[:2] for text in service.get("volumes", []))


def test_every_process_and_step_of_the_deployment_is_a_container() -> None:
    """A process that `rienda up` starts and compose.yaml forgets would be missed at night."""
    assert set(OURS) - set(STEPS) == {*process_names(), "nats"}
    assert BOOTSTRAP in OURS
    assert {f"{name}-migrate" for name in ("ledger", "gateway")} <= set(STEPS)


def test_nobody_mounts_what_another_may_know() -> None:
    """`configure` alone mounts everything; a path in a command lies in a volume of that service."""
    assert set(mounts(SERVICES["configure"]).values()) == {f"/rienda/{name}" for name in folders()}
    owners: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        texts = [words(service["command"])] if "command" in service else []
        texts += [words(service["healthcheck"]["test"])] if "healthcheck" in service else []
        paths = set(re.findall(r"/rienda/[a-z-]+", " ".join(texts)))
        assert paths <= set(mounts(service).values()), name
        for volume in mounts(service).keys() - {"nats-data", "postgres-data"}:
            owners.setdefault(volume, set()).add(name)
    assert set(COMPOSE["volumes"]) == owners.keys() | {"nats-data", "postgres-data"}
    assert owners["secrets"] == owners["admin"] == {"configure"}
    assert owners["ledger-migrate-files"] == {"configure", "ledger-migrate"}
    assert owners["gateway-files"] == {"configure", "gateway", "gateway-relay"}
    assert owners["nats-files"] == {"configure", "nats", "bootstrap"}


def test_the_image_has_every_folder_that_a_volume_is_mounted_over() -> None:
    """A folder that is not there would be made for root, and nobody could write to it."""
    made = set(re.findall(r"/rienda/[a-z-]+", (REPOSITORY / "Dockerfile").read_text()))
    assert made == {f"/rienda/{name}" for name in folders()}


@pytest.mark.parametrize("name", OURS)
def test_a_container_may_as_little_as_possible(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    if name not in STEPS:
        assert service["healthcheck"]["test"][0] == "CMD"


@dataclass
class Played:
    """The services of the file as processes below one folder."""

    root: Path
    nats_port: int = field(default_factory=choose_free_port)
    nats_http_port: int = field(default_factory=choose_free_port)
    postgres_port: int = field(default_factory=choose_free_port)
    ports: dict[str, int] = field(default_factory=dict)

    def _local(self, text: str) -> str:
        text = text.replace("/rienda", f"{self.root}/rienda").replace("/data", f"{self.root}/data")
        text = text.replace("127.0.0.1:8222", f"127.0.0.1:{self.nats_http_port}")
        return re.sub(r"\b(python|nats-server)\b(?= -)", lambda m: self._program(m[1]), text)

    def _program(self, name: str) -> str:
        return f"{sys.executable} -P" if name == "python" else str(find_program())

    def start(self, name: str, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        """Start what a service runs, with the variables that the file gives it."""
        service = SERVICES[name]
        port = self.ports.setdefault(name, choose_free_port())
        room = name.partition("-")[0].upper()
        given = {
            f"RIENDA_{room}_HTTP_PORT": str(port),
            "RIENDA_LEDGER_POSTGRES_CONNECTIONS_MAX": "4",
        }
        argv = list(command or service["command"])
        shell = argv[-1] if argv[:2] == ["sh", "-c"] else " ".join(argv)
        if name == "configure":
            shell += (
                f" --nats-url nats://127.0.0.1:{self.nats_port} --store {self.root}/data"
                f" --postgres 127.0.0.1:{self.postgres_port}"
            )
        with (self.root / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ["sh", "-c", self._local(shell)],
                cwd=REPOSITORY,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), **given},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def step(self, name: str, command: list[str] | None = None) -> int:
        """Run a service to its end."""
        process = self.start(name, command)
        async with asyncio.timeout(WAIT_S):
            while process.poll() is None:
                await asyncio.sleep(0.05)
        return process.returncode

    async def healthy(self, name: str) -> None:
        """Wait until the health check of the file says so."""
        test = SERVICES[name]["healthcheck"]["test"][1:]
        if test[0] == "python":
            code = test[-1].replace("127.0.0.1:8100", f"127.0.0.1:{self.ports[name]}")
            test = ["sh", "-c", f'python -c "{code}"']
        async with asyncio.timeout(WAIT_S):
            while await self.step(name, test):
                await asyncio.sleep(0.2)

    def log_of(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()


def end(process: subprocess.Popen[bytes]) -> None:
    """End a service with all that its shell started: the shell does not hand a signal on."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.wait()


@pytest.fixture
async def played(tmp_path: Path) -> AsyncIterator[Played]:
    """Start the services in the order that `depends_on` says."""
    played = Played(tmp_path)
    async with AsyncExitStack() as stack:
        for name in in_order():
            service = SERVICES[name]
            if name == "postgres":
                postgres = EmbeddedPostgres(
                    tmp_path / "postgres",
                    port=played.postgres_port,
                    password=(tmp_path / "rienda/postgres/password").read_text().strip(),
                    log_path=tmp_path / "postgres.log",
                )
                await postgres.start()
                stack.push_async_callback(postgres.stop)
            elif name in STEPS:
                assert await played.step(name) == 0, played.log_of(name)
            else:
                if name == "nats":
                    listen_elsewhere(played)
                stack.callback(end, played.start(name))
                await played.healthy(name)
            assert "image" in service
        yield played


def in_order() -> Iterator[str]:
    done: set[str] = set()
    while len(done) < len(SERVICES):
        free = [
            name
            for name, service in SERVICES.items()
            if name not in done and set(service.get("depends_on", {})) <= done
        ]
        assert free, "services wait for one another"
        yield free[0]
        done.add(free[0])


def listen_elsewhere(played: Played) -> None:
    """Here all services share one network, and port 8222 may be somebody's."""
    path = played.root / "rienda" / "nats" / "nats.conf"
    path.write_text(path.read_text().replace("0.0.0.0:8222", f"127.0.0.1:{played.nats_http_port}"))


@pytest.mark.integration
async def test_the_commands_of_the_file_make_a_deployment_that_works(played: Played) -> None:
    key = (played.root / "rienda/admin/deployment_key").read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{played.ports['gateway']}/api/v1"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
        made = await client.post("/orgs", json={"org_id": "acme", "name": "Acme"})
        assert made.status_code == 201, made.text
        scoped = {"X-Organization-Id": "acme"}
        channel = await client.post(
            "/channels", json={"channel_id": "c1", "name": "c1", "rights": []}, headers=scoped
        )
        assert channel.status_code == 201, channel.text
        assert channel.json()["nats"]["nkey_seed"], "the bootstrap process wrote a bus user"
        async with asyncio.timeout(WAIT_S):
            while True:
                caps = await client.get("/caps", headers=scoped)
                if caps.is_success and caps.json()["items"]:
                    break
                await asyncio.sleep(0.2)
    secrets = played.root / "rienda/secrets/secrets.json"
    before = secrets.read_text()
    assert await played.step("configure") == 0
    assert secrets.read_text() == before, "a second start makes no new secrets"
