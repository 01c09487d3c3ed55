"""The configuration of nats-server says exactly what the catalogue lets each user do."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.catalog import DURABLES, EVENTS, QUESTIONS, ROOMS, STREAMS
from contracts.subjects import event_subject
from services.host.bootstrap.accounts import (
    BUS,
    Account,
    bus_account,
    org_account_of,
    room_account_of,
)
from services.host.bootstrap.compare import stream_config
from services.host.bootstrap.credentials import BusUsers, ServerConfig
from services.host.bootstrap.keys import new_seed, public_key
from services.host.bootstrap.nats_config import (
    BusLogins,
    Listen,
    organizations_text,
    server_text,
)
from services.host.bootstrap.rights import channel_rights, channel_user, room_rights
from services.host.errors import DataDirBroken
from shared.pull import GRACE_S, PULL_S

LOGINS = BusLogins(new_seed(), new_seed(), new_seed(), {room: new_seed() for room in ROOMS})
SEEDS = (LOGINS.bootstrap, LOGINS.system, LOGINS.witness, *LOGINS.rooms.values())
KEY = public_key(new_seed())
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
            f"bus.CONSUMER.INFO.{where}",
            f"bus.CONSUMER.MSG.NEXT.{where}",
            f"$JS.ACK.{where}.1.1.1.1.0",
        ):
            assert admits(publish, subject) == (spec.room == room)
    assert not any(right.startswith("$JS.API") for right in publish)
    for stream in STREAMS:
        for verb in ("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "MSG.GET", "INFO"):
            assert not admits(publish, f"bus.STREAM.{verb}.{stream.name}")
        for verb in ("CREATE", "DELETE", "DURABLE.CREATE"):
            assert not admits(publish, f"bus.CONSUMER.{verb}.{stream.name}.{room}")


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


def test_lets_a_room_ask_what_the_catalogue_says_and_only_as_itself() -> None:
    for room in ROOMS:
        publish = room_rights(room).publish
        for question in QUESTIONS:
            org = "_" if question.room == "bootstrap" else "acme"
            own = f"rienda.ask.{org}.room.{room}.{question.room}.{question.name}"
            assert admits(publish, own) == (room in question.asked_by)
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
    heard = tuple(event_subject(event, "acme") for event in EVENTS if "channels" in event.hearers)
    assert rights.subscribe == ("_INBOX.acme.c1.>", *heard)


@pytest.mark.parametrize("name", ["a.b", "A", "", "*", ">", "a b", '"', "-a", "a" * 64])
def test_refuses_names_that_are_no_subject_token(name: str) -> None:
    with pytest.raises(ValueError, match="lower case"):
        channel_user("acme", name)
    with pytest.raises(ValueError, match="lower case"):
        channel_user(name, "c1")


def test_writes_the_fixed_part_with_its_limits_and_no_secret() -> None:
    text = server_text(LISTEN, LOGINS, store=Path("/data/nats/jetstream"))
    for line in (
        'host: "127.0.0.1"',
        "port: 4222",
        'http: "127.0.0.1:8222"',
        "max_payload: 1MB",
        "max_file: 8GB",
        'sync_interval: "2s"',
        'include "organizations.conf"',
        "system_account: SYS",
    ):
        assert line in text
    assert "password" not in text
    for seed in SEEDS:
        assert seed not in text
        assert public_key(seed) in text


def imported(account: Account) -> set[tuple[str, str]]:
    return {(one.account, one.subject) for one in account.imports}


def test_gives_jetstream_to_no_room_and_no_organization() -> None:
    for account in (
        *(room_account_of(room, KEY) for room in ROOMS),
        org_account_of("acme", {"c1": KEY}),
    ):
        assert "jetstream" not in account.settings
        for one in account.imports:
            # Pitfall 1: every account has an import of `$JS.API` that answers "not enabled" first.
            assert not (one.to or one.subject).startswith("$JS.API")


def test_an_organization_imports_nothing_that_does_not_name_it() -> None:
    account = org_account_of("acme", {"c1": KEY})
    for one in account.imports:
        assert one.subject.split(".")[2] == "acme"
        # Pitfall 6: with a literal import an answer could be stored under another channel.
        said = one.kind == "service" and not one.subject.startswith("rienda.probe")
        if one.account == BUS and said:
            assert one.subject.endswith(".channel.>")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_its_own_durables_of_jetstream_and_no_others(room: str) -> None:
    wanted = set()
    for spec in DURABLES:
        if spec.room == room:
            where = f"{spec.stream}.{spec.durable}"
            wanted |= {
                (BUS, f"$JS.API.CONSUMER.INFO.{where}"),
                (BUS, f"$JS.API.CONSUMER.MSG.NEXT.{where}"),
                (BUS, f"$JS.ACK.{where}.>"),
            }
    found = {one for one in imported(room_account_of(room, KEY)) if one[1].startswith("$JS")}
    assert found == wanted


def test_every_import_is_exported_to_its_importer() -> None:
    accounts = {
        account.name: account
        for account in (
            bus_account(KEY),
            *(room_account_of(room, KEY) for room in ROOMS),
            org_account_of("acme", {"c1": KEY}),
        )
    }
    for account in accounts.values():
        for one in account.imports:
            if one.account not in accounts:
                continue
            assert any(
                admits((export.subject,), one.subject.replace("*", "x").replace(">", "x"))
                and export.kind == one.kind
                and (not export.accounts or account.name in export.accounts)
                for export in accounts[one.account].exports
            ), (account.name, one)


def test_every_pull_outlives_its_longest_and_not_by_much() -> None:
    """Pitfall 7: a mapping stays for the threshold after each pull; the default is 2 min."""
    pulls = [one for one in bus_account(KEY).exports if ".MSG.NEXT." in one.subject]
    assert len(pulls) == len(DURABLES)
    for one in pulls:
        assert one.has_many_answers
        assert one.answer_s is not None
        assert PULL_S + GRACE_S < one.answer_s <= 15


def test_streams_are_heard_exactly_where_an_event_names_channels() -> None:
    for stream in STREAMS:
        heard = any(e.stream == stream.name and "channels" in e.hearers for e in EVENTS)
        assert stream.is_heard == heard


def test_copies_of_a_heard_stream_name_the_organization_alone() -> None:
    spec = replace(next(one for one in STREAMS if one.name == "LEDGER"), is_heard=True)
    copies = stream_config(spec).republish
    assert copies is not None
    assert copies.src == "rienda.event.*.ledger.>"
    assert copies.dest == "rienda.heard.{{wildcard(1)}}.ledger.>"
    heard = replace(next(e for e in EVENTS if e.name == "run_changed"), hearers=("channels",))
    account = org_account_of("acme", {"c1": KEY}, (heard,))
    (one,) = [one for one in account.imports if one.kind == "stream"]
    assert one.subject == "rienda.heard.acme.ledger.run_changed.v1"
    assert one.to == "rienda.event.acme.ledger.run_changed.v1"
    rights = channel_rights("acme", "c1", (heard,))
    assert rights.subscribe == ("_INBOX.acme.c1.>", one.to)


def test_has_room_in_its_store_for_every_stream_at_its_limit() -> None:
    held = {"file": 0, "memory": 0}
    for stream in STREAMS:
        held[stream.storage] += stream.bytes_max
    assert held["file"] < 8 * 1000**3
    assert held["memory"] < 128 * 1000**2


def test_writes_one_account_per_organization_and_one_user_per_channel() -> None:
    keys = {name: public_key(new_seed()) for name in ("acme.c1", "acme.c2", "other.c1")}
    text = organizations_text(keys)
    assert re.findall(r'^"(\w+)": \{$', text, re.MULTILINE) == ["ORG_acme", "ORG_other"]
    assert re.findall(r'"nkey": "(\w+)"', text) == list(keys.values())
    assert json.dumps(channel_rights("acme", "c2").publish) in text
    assert "password" not in text


def test_refuses_to_write_accounts_without_a_key_for_each_room() -> None:
    logins = BusLogins(new_seed(), new_seed(), new_seed(), {"ledger": new_seed()})
    with pytest.raises(ValueError, match="gateway"):
        server_text(LISTEN, logins, store=Path("/data"))


def test_keeps_channel_users_when_the_server_is_configured_again(tmp_path: Path) -> None:
    config = ServerConfig(LISTEN, LOGINS)
    assert config(tmp_path) == tmp_path / "nats.conf"
    BusUsers(tmp_path).change_channels({"acme.c1": KEY, "acme.c2": public_key(new_seed())})
    BusUsers(tmp_path).change_channels({"acme.c2": None})
    before = (tmp_path / "organizations.conf").read_text()
    config(tmp_path)
    assert (tmp_path / "organizations.conf").read_text() == before
    assert BusUsers(tmp_path).channels() == {"acme.c1": KEY}


def test_keeps_every_file_private(tmp_path: Path) -> None:
    ServerConfig(LISTEN, LOGINS)(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "nats.conf",
        "organizations.conf",
        "users.json",
        "users.lock",
    }
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_takes_over_a_folder_from_when_the_bus_was_one_account(tmp_path: Path) -> None:
    record = {"bootstrap": "pb", "system": "ps", "rooms": {"ledger": "pl"}}
    (tmp_path / "users.json").write_text(json.dumps({**record, "channels": {"acme.c1": "pc1"}}))
    (tmp_path / "users.conf").write_text("users: []")
    streams = tmp_path / "jetstream" / "jetstream" / "RIENDA" / "streams" / "CHANNEL"
    streams.mkdir(parents=True)
    for _ in range(2):
        ServerConfig(LISTEN, LOGINS)(tmp_path)
    assert (tmp_path / "jetstream" / "jetstream" / BUS / "streams" / "CHANNEL").is_dir()
    assert not (tmp_path / "users.conf").exists()
    assert BusUsers(tmp_path).channels() == {"acme.c1": "pc1"}
    # The channel signs in as before until it is issued again; nothing else has a password.
    assert '"user": "acme.c1", "password": "pc1"' in (tmp_path / "organizations.conf").read_text()
    assert "pb" not in json.loads((tmp_path / "users.json").read_text()).values()


def test_says_so_when_the_record_is_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(DataDirBroken, match="missing"):
        BusUsers(tmp_path).change_channels({"acme.c1": KEY})
    (tmp_path / "users.json").write_text("{")
    with pytest.raises(DataDirBroken, match="damaged"):
        BusUsers(tmp_path).channels()


@pytest.mark.parametrize("text", ["", "pabc", "SUAB", "U" * 56])
def test_takes_nothing_but_a_seed_for_a_seed(text: str) -> None:
    with pytest.raises(ValueError, match="no seed"):
        public_key(text)
