"""The configuration of nats-server says exactly what the catalogue lets each user do."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from contracts.catalog import DURABLES, EVENTS, QUESTIONS, ROOMS, STREAMS
from services.host.bootstrap.credentials import BusUsers, ServerConfig
from services.host.bootstrap.nats_config import BusLogins, Listen, server_text, users_text
from services.host.bootstrap.rights import channel_rights, channel_user, room_rights
from services.host.errors import DataDirBroken

LOGINS = BusLogins("pboot", "psys", {room: f"p{room}" for room in ROOMS})
LISTEN = Listen(port=4222, http_port=8222)


def admits(rights: tuple[str, ...], subject: str) -> bool:
    """Tell whether a list of rights lets a subject through, as nats-server reads wildcards."""
    for right in rights:
        pattern = re.escape(right.split(" ")[0])
        pattern = pattern.replace(r"\*", "[^.]+").replace(r"\.>", r"\..+").replace(r"\$", r"\$")
        if re.fullmatch(pattern, subject):
            return True
    return False


@pytest.mark.parametrize("room", ROOMS)
def test_lets_a_room_say_its_own_words_only(room: str) -> None:
    publish = room_rights(room).publish
    assert admits(publish, f"rienda.event.acme.{room}.audit_recorded.v1")
    assert admits(publish, f"rienda.dead.{room}")
    for other in {*ROOMS, "bootstrap"} - {room}:
        assert not admits(publish, f"rienda.event.acme.{other}.audit_recorded.v1")
        assert not admits(publish, f"rienda.dead.{other}")


def test_lets_only_the_gateway_speak_for_the_directory_and_for_channels() -> None:
    subjects = (
        "rienda.event.acme.directory.0f.agent_published.v1",
        "rienda.event.acme.channel.c1.run_started.v1",
        "rienda.pulse.acme.channel.c1.run_heartbeat.v1.0f",
    )
    for room in ROOMS:
        for subject in subjects:
            assert admits(room_rights(room).publish, subject) == (room == "gateway")


@pytest.mark.parametrize("room", ROOMS)
def test_gives_a_room_its_own_durables_and_no_other_jetstream_right(room: str) -> None:
    publish = room_rights(room).publish
    for spec in DURABLES:
        where = f"{spec.stream}.{spec.durable}"
        for subject in (
            f"$JS.API.CONSUMER.INFO.{where}",
            f"$JS.API.CONSUMER.MSG.NEXT.{where}",
            f"$JS.ACK.{where}.1.1.1.1.0",
        ):
            assert admits(publish, subject) == (spec.room == room)
    for stream in STREAMS:
        for verb in ("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "MSG.GET", "INFO"):
            assert not admits(publish, f"$JS.API.STREAM.{verb}.{stream.name}")
        for verb in ("CREATE", "DELETE", "DURABLE.CREATE"):
            assert not admits(publish, f"$JS.API.CONSUMER.{verb}.{stream.name}.{room}")


@pytest.mark.parametrize("room", ROOMS)
def test_lets_a_room_hear_its_inbox_and_its_questions_only(room: str) -> None:
    subscribe = room_rights(room).subscribe
    answers = any(question.room == room for question in QUESTIONS)
    assert admits(subscribe, f"_INBOX.{room}.abc.1")
    assert admits(subscribe, f"rienda.ask.acme.room.gateway.{room}.anything") == answers
    assert all(
        right == f"_INBOX.{room}.>" or right.endswith(f".{room}.* {room}") for right in subscribe
    )
    for other in {*ROOMS, "bootstrap"} - {room}:
        assert not admits(subscribe, f"_INBOX.{other}.abc.1")
        assert not admits(subscribe, f"rienda.ask.acme.room.gateway.{other}.anything")


def test_lets_only_the_gateway_ask_and_only_as_itself() -> None:
    for room in ROOMS:
        publish = room_rights(room).publish
        for question in QUESTIONS:
            own = f"rienda.ask.acme.room.{room}.{question.room}.{question.name}"
            assert admits(publish, own) == (room == "gateway")
            as_channel = f"rienda.ask.acme.channel.c1.{question.room}.{question.name}"
            assert not admits(publish, as_channel)


def test_gives_a_channel_its_own_subjects_and_no_others() -> None:
    rights = channel_rights("acme", "c1")
    for event in EVENTS:
        if event.producer != "channel":
            continue
        kind, tail = ("pulse", ".0f") if event.stream == "PULSE" else ("event", "")
        said = f"{event.name}.v{event.version}{tail}"
        assert admits(rights.publish, f"rienda.{kind}.acme.channel.c1.{said}")
        assert not admits(rights.publish, f"rienda.{kind}.acme.channel.c2.{said}")
        assert not admits(rights.publish, f"rienda.{kind}.other.channel.c1.{said}")
    for question in QUESTIONS:
        asked = f"rienda.ask.acme.channel.c1.{question.room}.{question.name}"
        assert admits(rights.publish, asked) == question.asked_by_channels
    assert not any(right.startswith("$") for right in rights.publish)
    assert rights.subscribe == ("_INBOX.acme.c1.>",)


@pytest.mark.parametrize("name", ["a.b", "A", "", "*", ">", "a b", '"', "-a", "a" * 64])
def test_refuses_names_that_are_no_subject_token(name: str) -> None:
    with pytest.raises(ValueError, match="lower case"):
        channel_user("acme", name)
    with pytest.raises(ValueError, match="lower case"):
        channel_user(name, "c1")


def test_writes_the_fixed_part_with_its_limits() -> None:
    text = server_text(LISTEN, store=Path("/data/nats/jetstream"), system_password="psys")
    for line in (
        'host: "127.0.0.1"',
        "port: 4222",
        'http: "127.0.0.1:8222"',
        "max_payload: 1MB",
        "max_file: 8GB",
        'sync_interval: "2s"',
        'include "users.conf"',
        "system_account: SYS",
    ):
        assert line in text


def test_has_room_in_its_store_for_every_stream_at_its_limit() -> None:
    held = {"file": 0, "memory": 0}
    for stream in STREAMS:
        held[stream.storage] += stream.bytes_max
    assert held["file"] < 8 * 1000**3
    assert held["memory"] < 128 * 1000**2


def test_writes_one_user_per_room_and_channel() -> None:
    text = users_text(LOGINS, {"acme.c1": "pc1", "acme.c2": "pc2"})
    names = re.findall(r"\{ user: \"?([^\",]+)\"?,", text)
    assert names == ["bootstrap", *ROOMS, "acme.c1", "acme.c2"]
    assert json.dumps(channel_rights("acme", "c2").publish) in text


def test_refuses_to_write_users_without_a_password_for_each_room() -> None:
    with pytest.raises(ValueError, match="gateway"):
        users_text(BusLogins("p", "p", {"ledger": "p"}), {})


def test_keeps_channel_users_when_the_server_is_configured_again(tmp_path: Path) -> None:
    config = ServerConfig(LISTEN, LOGINS)
    assert config(tmp_path) == tmp_path / "nats.conf"
    BusUsers(tmp_path).change_channels({"acme.c1": "pc1", "acme.c2": "pc2"})
    BusUsers(tmp_path).change_channels({"acme.c2": None})
    before = (tmp_path / "users.conf").read_text()
    config(tmp_path)
    assert (tmp_path / "users.conf").read_text() == before
    assert BusUsers(tmp_path).channels() == {"acme.c1": "pc1"}


def test_keeps_every_file_private(tmp_path: Path) -> None:
    ServerConfig(LISTEN, LOGINS)(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "nats.conf",
        "users.conf",
        "users.json",
        "users.lock",
    }
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_says_so_when_the_record_is_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(DataDirBroken, match="missing"):
        BusUsers(tmp_path).change_channels({"acme.c1": "p"})
    (tmp_path / "users.json").write_text("{")
    with pytest.raises(DataDirBroken, match="damaged"):
        BusUsers(tmp_path).channels()
