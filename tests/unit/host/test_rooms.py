"""Which processes make a deployment, and what each of them is told."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from contracts.catalog import ROOMS
from services.host.bootstrap.environment import Deployment, make_logins
from services.host.datadir import DataDir
from services.host.errors import ApiPortTaken
from services.host.outside import Outside, read_outside
from services.host.rooms import PARTS, ROOT, Rooms, process_names
from services.host.starting import PORT_DEFAULT, choose_api_port

GATEWAY = {"RIENDA_GATEWAY_DEPLOYMENT_KEY_SHA256": "0" * 64}
ENVIRON = {
    "PATH": "/bin",
    "HOME": "/home/somebody",
    "AWS_SECRET_ACCESS_KEY": "no",
    "DEFAULT_ORG_MONTHLY_BUDGET_USD": "5",
    "STALE_RUN_REAPED_AFTER_SECONDS": "30",
    "STAV_NOK_PER_USD": "10.5",
    "RIENDA_LEDGER_POSTGRES_CONNECTIONS_MAX": "3",
    "RIENDA_LEDGER_HTTP_PORT": "1",
}


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "data")
    made.create()
    return made


def rooms_of(directory: DataDir, outside: Outside | None = None) -> Rooms:
    deployment = Deployment(
        nats_url="nats://127.0.0.1:4222",
        postgres_admin_url="postgresql://postgres:root@127.0.0.1:5432/postgres",
        logins=make_logins(directory.secret),
    )
    return Rooms(
        directory,
        deployment,
        outside=outside or Outside(),
        gateway=GATEWAY,
        environ=ENVIRON,
    )


def test_every_part_of_every_room_is_a_process_with_a_port_of_its_own(directory: DataDir) -> None:
    rooms = rooms_of(directory)
    children = rooms.children()
    assert [child.name for child in children] == process_names()
    assert len(children) == 1 + sum(len(PARTS.get(room, "x")) for room in ROOMS)
    assert len(set(rooms.ports.values())) == len(children)
    for child in children:
        assert child.ready_url == f"http://127.0.0.1:{rooms.ports[child.name]}/ready"
    assert rooms_of(directory).ports == rooms.ports


def test_a_process_knows_its_own_room_and_nothing_more(directory: DataDir) -> None:
    rooms = rooms_of(directory)
    for child in rooms.children():
        words = set("\n".join(child.env.values()).split("\n"))
        assert not [word for word in words if "postgres:root@" in word]
        assert {"HOME", "AWS_SECRET_ACCESS_KEY"}.isdisjoint(child.env)
        room = child.name.partition("-")[0]
        named = {name.split("_")[1].lower() for name in child.env if name.startswith("RIENDA_")}
        assert named == {room}
        assert f"RIENDA_{room.upper()}_POSTGRES_OWNER_URL" not in child.env
        assert str(ROOT) in child.env["PYTHONPATH"]


def test_the_operators_settings_reach_their_room_where_the_host_says_nothing(
    directory: DataDir,
) -> None:
    children = {child.name: child.env for child in rooms_of(directory).children()}
    ledger = children["ledger-answer"]
    assert ledger["RIENDA_LEDGER_POSTGRES_CONNECTIONS_MAX"] == "3"
    assert ledger["RIENDA_LEDGER_HTTP_PORT"] != "1"
    assert children["gateway"]["DEFAULT_ORG_MONTHLY_BUDGET_USD"] == "5"
    assert children["ledger-ingest"]["STALE_RUN_REAPED_AFTER_SECONDS"] == "30"
    assert children["ledger-ingest"]["STAV_NOK_PER_USD"] == "10.5"
    assert children["gateway"].items() >= GATEWAY.items()


def test_with_an_outside_bus_everybody_uses_its_one_login(directory: DataDir) -> None:
    outside = read_outside({"RIENDA_NATS_URL": "nats://someone:word@h:4222"})
    rooms = rooms_of(directory, outside)
    environments = [*(child.env for child in rooms.children()), rooms.prepare().env]
    for env in environments:
        logins = {value for name, value in env.items() if name.endswith("_NATS_USER")}
        assert logins == {"someone"}
    assert not [name for name in environments[0] if "SYS_" in name or "CONFIG_FOLDER" in name]
    open_bus = rooms_of(directory, read_outside({"RIENDA_NATS_URL": "nats://h:4222"}))
    for child in open_bus.children():
        assert not [name for name in child.env if name.endswith(("_NATS_USER", "_NATS_PASSWORD"))]


def test_migrations_run_as_the_owner_and_decisions_reach_the_preparation(
    directory: DataDir,
) -> None:
    rooms = rooms_of(directory)
    for room, step in zip(ROOMS, rooms.migrations(), strict=True):
        assert f"{room}_owner:" in step.env[f"RIENDA_{room.upper()}_POSTGRES_OWNER_URL"]
        assert step.argv[1:] == ("-P", "-m", f"services.{room}", "migrate")
    assert rooms.prepare("--accept", "CHANNEL.max_age").argv[-2:] == ("--accept", "CHANNEL.max_age")


def test_operators_get_a_private_file_for_each_room(directory: DataDir) -> None:
    rooms_of(directory).write_environments()
    for room in ROOMS:
        path = directory.room_env_path(room)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert f"export RIENDA_{room.upper()}_POSTGRES_URL=" in path.read_text()
        assert "OWNER" not in path.read_text()
        owner = directory.owner_env_path(room)
        assert stat.S_IMODE(owner.stat().st_mode) == 0o600
        assert f"export RIENDA_{room.upper()}_POSTGRES_OWNER_URL=" in owner.read_text()


def test_the_port_is_the_one_asked_for_or_kept_or_8700(directory: DataDir) -> None:
    assert choose_api_port(directory, None) == PORT_DEFAULT == 8700
    directory.keep_port("gateway", 8711)
    assert choose_api_port(directory, None) == 8711
    assert choose_api_port(directory, 8712) == 8712
    with pytest.raises(ApiPortTaken, match="--port"):
        choose_api_port(directory, directory.port("postgres"))
