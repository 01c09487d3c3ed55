"""The bootstrap step against real servers: it makes what is missing and then changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
from nats.js import JetStreamContext, api

from contracts.catalog import DURABLES, ROOMS, STREAMS
from services.host.bootstrap.compare import stream_config
from services.host.bootstrap.database import connect, on_database, prepare_postgres
from services.host.bootstrap.environment import (
    all_roles,
    inherited,
    owner_role,
    prepare_environment,
    role_url,
)
from services.host.bootstrap.errors import StreamRefused, UnsafeDifference
from services.host.bootstrap.streams import Catalogue, Decision, prepare_streams
from tests.servers import RoomDatabase, Servers

pytestmark = pytest.mark.integration

COMMAND_S_MAX = 60
Prepared = Callable[..., Awaitable[RoomDatabase]]


@pytest.fixture
async def jetstream(servers: Servers, fresh_streams: None):
    """JetStream as the bootstrap user; whatever a test did to the streams is undone after it."""
    client = await servers.log_in("bootstrap")
    yield JetStreamContext(client)
    await client.close()
    await servers.fresh_streams()


def changed(where: str, **fields: object) -> Catalogue:
    """The catalogue with one stream or durable changed."""
    stream, _, durable = where.partition("/")
    return Catalogue(
        tuple(
            replace(spec, **fields) if spec.name == stream and not durable else spec
            for spec in STREAMS
        ),
        tuple(
            replace(spec, **fields) if (spec.stream, spec.durable) == (stream, durable) else spec
            for spec in DURABLES
        ),
    )


async def publish_to_channel_stream(jetstream: JetStreamContext) -> None:
    await jetstream.publish("rienda.event.acme.channel.c1.run_started.v1", b"{}")


async def test_makes_every_stream_and_durable_once(jetstream: JetStreamContext) -> None:
    for spec in STREAMS:
        await jetstream.delete_stream(spec.name)
    first = await prepare_streams(jetstream, Catalogue())
    assert first.created == [
        *(spec.name for spec in STREAMS),
        *(f"{spec.stream}/{spec.durable}" for spec in DURABLES),
    ]
    again = await prepare_streams(jetstream, Catalogue())
    assert not again.changed
    assert again.strangers == []


async def test_states_on_the_server_what_the_catalogue_says(jetstream: JetStreamContext) -> None:
    for spec in STREAMS:
        held = (await jetstream.stream_info(spec.name)).config
        assert held.subjects == list(spec.subjects)
        assert (held.storage, held.discard) == (spec.storage, spec.discard)
        assert (held.max_age, held.max_bytes) == (spec.age_s_max, spec.bytes_max)
        assert held.max_msgs_per_subject == spec.messages_per_subject_max
        assert held.duplicate_window == spec.duplicate_window_s
        assert held.deny_delete == (spec.storage == "file")
        assert not held.allow_rollup_hdrs
        assert not held.allow_msg_ttl
    for durable in DURABLES:
        held_by = (await jetstream.consumer_info(durable.stream, durable.durable)).config
        assert held_by is not None
        assert (held_by.ack_policy, held_by.deliver_policy) == ("explicit", durable.deliver)
        assert (held_by.ack_wait, held_by.max_deliver) == (
            durable.ack_wait_s,
            durable.deliveries_max,
        )
        assert held_by.max_ack_pending == durable.ack_pending_max
        assert held_by.filter_subject is None
        assert held_by.filter_subjects is None


async def test_applies_safe_differences_and_keeps_the_messages(
    jetstream: JetStreamContext,
) -> None:
    await publish_to_channel_stream(jetstream)
    wider = changed("CHANNEL", age_s_max=30 * 86_400, bytes_max=3 * 1024**3)
    report = await prepare_streams(jetstream, wider)
    assert [one.key for one in report.applied] == ["CHANNEL.max_age", "CHANNEL.max_bytes"]
    info = await jetstream.stream_info("CHANNEL")
    assert info.config.max_age == 30 * 86_400
    assert info.state.messages == 1
    slower = changed("CHANNEL/ledger", ack_wait_s=60, deliveries_max=20)
    report = await prepare_streams(jetstream, Catalogue(wider.streams, slower.durables))
    assert [one.key for one in report.applied] == [
        "CHANNEL/ledger.ack_wait",
        "CHANNEL/ledger.max_deliver",
    ]
    assert not (await prepare_streams(jetstream, Catalogue(wider.streams, slower.durables))).changed


async def test_refuses_unsafe_differences_and_changes_nothing_at_all(
    jetstream: JetStreamContext,
) -> None:
    await publish_to_channel_stream(jetstream)
    tighter = changed("CHANNEL", age_s_max=3_600)
    larger = changed("LEDGER", bytes_max=1024**3)
    both = Catalogue((*tighter.streams[:3], *larger.streams[3:]), DURABLES)
    with pytest.raises(UnsafeDifference, match=r"--accept CHANNEL\.max_age"):
        await prepare_streams(jetstream, both)
    ledger = next(spec for spec in STREAMS if spec.name == "LEDGER")
    assert (await jetstream.stream_info("LEDGER")).config.max_bytes == ledger.bytes_max
    report = await prepare_streams(
        jetstream, both, decision=Decision(accepted=("CHANNEL.max_age",))
    )
    assert [one.key for one in report.applied] == ["CHANNEL.max_age", "LEDGER.max_bytes"]
    assert (await jetstream.stream_info("CHANNEL")).config.max_age == 3_600


async def test_takes_unsafe_flags_and_subjects_back_only_when_told(
    jetstream: JetStreamContext,
) -> None:
    held = (await jetstream.stream_info("CHANNEL")).config
    await jetstream.update_stream(
        held.evolve(
            allow_rollup_hdrs=True, subjects=[*(held.subjects or ()), "loose.>"], discard="old"
        )
    )
    keys = ("CHANNEL.subjects", "CHANNEL.discard", "CHANNEL.allow_rollup_hdrs")
    with pytest.raises(UnsafeDifference) as refused:
        await prepare_streams(jetstream, Catalogue())
    assert tuple(one.key for one in refused.value.differences) == keys
    await prepare_streams(jetstream, Catalogue(), decision=Decision(accepted=keys))
    restored = (await jetstream.stream_info("CHANNEL")).config
    assert restored.subjects == ["rienda.event.*.channel.>"]
    assert restored.discard == "new"
    assert not restored.allow_rollup_hdrs


async def test_makes_again_what_cannot_be_changed_in_place(jetstream: JetStreamContext) -> None:
    await publish_to_channel_stream(jetstream)
    spec = next(one for one in STREAMS if one.name == "LEDGER")
    await jetstream.delete_stream("LEDGER")
    await jetstream.add_stream(
        stream_config(spec).evolve(
            storage=api.StorageType.MEMORY, max_bytes=1024, deny_delete=False
        )
    )
    await jetstream.delete_consumer("CHANNEL", "ledger")
    await jetstream.add_consumer(
        "CHANNEL", durable_name="ledger", name="ledger", filter_subject="rienda.event.acme.>"
    )
    with pytest.raises(UnsafeDifference) as refused:
        await prepare_streams(jetstream, Catalogue())
    assert {one.where for one in refused.value.differences} == {"LEDGER", "CHANNEL/ledger"}
    report = await prepare_streams(
        jetstream, Catalogue(), decision=Decision(recreated=("LEDGER", "CHANNEL/ledger"))
    )
    assert report.recreated == ["LEDGER", "CHANNEL/ledger"]
    # A stream that was deleted took its durable along.
    assert report.created == ["LEDGER/gateway"]
    assert (await jetstream.stream_info("CHANNEL")).state.messages == 1
    assert not (await prepare_streams(jetstream, Catalogue())).changed


async def test_leaves_strangers_alone_and_says_that_they_are_there(
    jetstream: JetStreamContext,
) -> None:
    await jetstream.add_stream(name="OTHER", subjects=["other.>"])
    await jetstream.add_consumer("CHANNEL", durable_name="somebody")
    try:
        report = await prepare_streams(jetstream, Catalogue())
        assert report.strangers == ["CHANNEL/somebody", "OTHER"]
        assert not report.changed
    finally:
        await jetstream.delete_stream("OTHER")


async def test_says_which_stream_the_server_refuses(jetstream: JetStreamContext) -> None:
    await jetstream.delete_stream("DEAD")
    await jetstream.add_stream(name="THIEF", subjects=["rienda.dead.ledger"])
    try:
        with pytest.raises(StreamRefused, match="DEAD: subjects overlap"):
            await prepare_streams(jetstream, Catalogue())
    finally:
        await jetstream.delete_stream("THIEF")


async def test_a_full_stream_refuses_instead_of_forgetting(jetstream: JetStreamContext) -> None:
    small = changed("GATEWAY", bytes_max=2_000)
    await prepare_streams(jetstream, small, decision=Decision(recreated=("GATEWAY",)))
    subject = "rienda.event.acme.gateway.audit_recorded.v1"
    await jetstream.publish(subject, b"x" * 1_500)
    with pytest.raises(Exception, match="maximum bytes exceeded"):
        await jetstream.publish(subject, b"y" * 1_500)
    assert (await jetstream.stream_info("GATEWAY")).state.first_seq == 1


async def prepare_again(servers: Servers, database: str) -> list[str]:
    return await prepare_postgres(
        servers.postgres.superuser_dsn, database=database, passwords=servers.logins.roles
    )


async def test_prepares_a_database_once(servers: Servers, room_database: Prepared) -> None:
    database = (await room_database()).name
    assert await prepare_again(servers, database) == []
    await asyncio.gather(*(prepare_again(servers, database) for _ in range(3)))


async def test_repairs_roles_and_schemas_that_somebody_widened(
    servers: Servers, room_database: Prepared
) -> None:
    database = await room_database()
    admin = await connect(database.admin_url)
    await admin.execute(
        f"""
        ALTER ROLE ledger SUPERUSER CREATEROLE;
        GRANT gateway TO ledger;
        GRANT USAGE ON SCHEMA gateway TO ledger;
        GRANT ALL ON SCHEMA ledger TO PUBLIC;
        GRANT CREATE ON SCHEMA ledger TO ledger;
        GRANT CONNECT ON DATABASE {database.name} TO PUBLIC;
        """
    )
    await admin.close()
    assert set(await prepare_again(servers, database.name)) == {
        "role ledger: NOSUPERUSER, NOCREATEROLE",
        "role ledger: no member of gateway any more",
        "schema gateway: closed to ledger",
        "schema ledger: closed to all",
        "schema ledger: ledger may use it",
        f"database {database.name}: closed to others",
    }
    assert await prepare_again(servers, database.name) == []


@pytest.mark.parametrize("room", ROOMS)
async def test_gives_no_room_more_than_its_own_schema(room_database: Prepared, room: str) -> None:
    database = await room_database()
    other = next(name for name in ROOMS if name != room)
    owner = await connect(database.owner_url(other))
    await owner.execute(f"CREATE TABLE {other}.secret (id int)")
    await owner.close()
    runtime = await connect(database.url(room))
    attempts = [
        f"SELECT * FROM {other}.secret",
        f"CREATE TABLE {room}.mine (id int)",
        f"CREATE TABLE {other}.mine (id int)",
        "CREATE TABLE public.mine (id int)",
        "CREATE TEMP TABLE mine (id int)",
        "CREATE SCHEMA mine",
        "CREATE ROLE mine",
        "CREATE DATABASE mine",
        f"SET ROLE {owner_role(room)}",
        f"SET ROLE {other}",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "SELECT pg_read_file('postgresql.conf')",
    ]
    try:
        for attempt in attempts:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await runtime.execute(attempt)
    finally:
        await runtime.close()
    owner = await connect(database.owner_url(room))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await owner.execute(f"SELECT * FROM {other}.secret")
    finally:
        await owner.close()


async def test_makes_no_role_special(servers: Servers, room_database: Prepared) -> None:
    admin = await connect((await room_database()).admin_url)
    rows = await admin.fetch("SELECT * FROM pg_roles WHERE rolname = ANY ($1)", all_roles())
    await admin.close()
    assert len(rows) == 2 * len(ROOMS)
    for row in rows:
        special = [row[f"rol{name}"] for name in ("super", "createdb", "createrole", "bypassrls")]
        assert not any(special)


async def test_replaces_a_password_that_is_no_longer_the_right_one(
    servers: Servers, room_database: Prepared
) -> None:
    database = await room_database()
    admin = await connect(database.admin_url)
    await admin.execute("ALTER ROLE ledger PASSWORD 'another'")
    await admin.close()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await connect(database.url("ledger"))
    await prepare_again(servers, database.name)
    await (await connect(database.url("ledger"))).close()


async def test_needs_no_superuser_where_the_server_is_somebody_elses(tmp_path: Path) -> None:
    own = Servers(tmp_path / "own")
    await own.postgres.start()
    try:
        admin = await connect(own.postgres.superuser_dsn)
        await admin.execute("CREATE ROLE tenant LOGIN CREATEROLE CREATEDB PASSWORD 'ptenant'")
        await admin.close()
        url = role_url(
            own.postgres.superuser_dsn, role="tenant", password="ptenant", database="postgres"
        )
        passwords = own.logins.roles
        assert await prepare_postgres(url, database="rienda", passwords=passwords)
        assert await prepare_postgres(url, database="rienda", passwords=passwords) == []
    finally:
        await own.postgres.stop()


async def run_prepare(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.host.bootstrap", "prepare", *arguments),
        env={**inherited(os.environ), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), COMMAND_S_MAX)
    return process.returncode or 0, output.decode()


async def test_runs_as_a_command_and_says_what_it_did(
    servers: Servers, jetstream: JetStreamContext
) -> None:
    deployment = replace(servers.deployment, database="by_command")
    environment = prepare_environment(deployment)
    code, output = await run_prepare(environment, "--json")
    assert code == 0, output
    assert "database by_command: made" in json.loads(output)["postgres"]
    assert await run_prepare(environment) == (0, "everything is as the catalogue says\n")
    await publish_to_channel_stream(jetstream)
    code, output = await run_prepare({**environment, "RIENDA_BOOTSTRAP_CHANNEL_AGE_S": "3600"})
    assert code == 1
    assert "--accept CHANNEL.max_age" in output
    assert "(unsafe-difference)" in output
    dsn = on_database(servers.postgres.superuser_dsn, "nowhere")
    broken = {**environment, "RIENDA_BOOTSTRAP_POSTGRES_URL": dsn.replace(":p", ":x", 1)}
    code, output = await run_prepare(broken)
    assert code == 1
    assert "Check RIENDA_BOOTSTRAP_POSTGRES_URL" in output
    del environment["RIENDA_BOOTSTRAP_NATS_URL"]
    code, output = await run_prepare(environment)
    assert code == 1
    assert "RIENDA_BOOTSTRAP_NATS_URL: field required" in output
