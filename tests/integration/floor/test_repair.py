"""What an operator does at night: every command of the rooms' runbooks, run as printed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from uuid import UUID

import pytest
from click.testing import Result

from contracts.catalog import ROOMS
from shared.consume import Delivery
from tests.commands import invoke
from tests.factories import Feed, started
from tests.ledger_room import LedgerRoom
from tests.servers import ROOT

pytestmark = pytest.mark.integration


@pytest.fixture
async def deployment(servers, fresh_streams, room_database):
    return await room_database("ledger", "gateway")


@pytest.fixture
async def room(deployment):
    room = LedgerRoom(deployment.url("ledger"))
    yield room
    await room.close()


@pytest.fixture
def command(servers, deployment):
    def run(*words: str) -> Result:
        return invoke(*words, environment=servers.environment("ledger", deployment, http_port=1))

    return run


def misunderstood(sequence: int) -> Delivery:
    """An event of a newer version than this code knows."""
    good = Feed().channel(started("r1"))
    return Delivery(good.subject.replace(".v1", ".v9"), good.body, "CHANNEL", sequence)


async def letters(room: LedgerRoom) -> list[UUID]:
    rows = await room.rows("SELECT id FROM dead_letter WHERE settled_at IS NULL ORDER BY dead_at")
    return [row["id"] for row in rows]


async def test_letters_are_listed_shown_and_counted(room, command):
    await room.consumers["CHANNEL"].handle([misunderstood(1), misunderstood(2)])
    listed = json.loads(command("dead", "list", "--json").stdout)
    assert [letter["reason"] for letter in listed] == ["unknown_event", "unknown_event"]
    assert json.loads(command("dead", "list", "--org", "beta", "--json").stdout) == []
    shown = json.loads(command("dead", "show", listed[0]["id"], "--json").stdout)
    assert json.loads(shown["body"])["data"]["run_id"] == "r1"
    lag = json.loads(command("lag", "--json").stdout)
    assert (lag["dead_letters"], lag["retries"]) == (2, 0)
    assert {durable["stream"] for durable in lag["durables"]} == {"CHANNEL", "DIRECTORY", "PULSE"}


async def test_a_replayed_letter_has_its_effect_once_its_cause_is_mended(room, command):
    feed = Feed()
    await room.know(feed)
    good = feed.channel(started("r1"))
    await room.rows("SELECT 1")
    await room.consumers["CHANNEL"].handle([misunderstood(7)])
    (letter,) = await letters(room)
    # Mended: what was unknown is known now. The stored subject stands for the upgrade.
    await room.rows("UPDATE dead_letter SET subject = $1, body = $2", good.subject, good.body)
    assert command("dead", "replay", str(letter)).exit_code == 0
    room.clock.at = max(room.clock.at, (await room.rows("SELECT now() AS at"))[0]["at"])
    assert await room.consumers["CHANNEL"].retry_due() == 1
    assert (await room.run("r1")).status == "running"
    assert await letters(room) == []
    (settled,) = await room.rows("SELECT settled_as FROM dead_letter")
    assert settled["settled_as"] == "replayed"


async def test_a_replayed_letter_that_fails_again_waits_again(room, command):
    await room.consumers["CHANNEL"].handle([misunderstood(1)])
    (letter,) = await letters(room)
    command("dead", "replay", "--reason", "unknown_event")
    assert await letters(room) == []
    room.clock.at = (await room.rows("SELECT now() AS at"))[0]["at"]
    await room.consumers["CHANNEL"].retry_due()
    assert await letters(room) == [letter]
    assert await room.rows("SELECT * FROM retry") == []


async def test_a_dropped_letter_stays_as_a_row_and_is_audited(room, command):
    await room.consumers["CHANNEL"].handle([misunderstood(1)])
    (letter,) = await letters(room)
    assert command("dead", "drop", str(letter)).exit_code == 2
    assert command("dead", "drop", str(letter), "--why", "tested").exit_code == 0
    assert await letters(room) == []
    (entry,) = await room.rows("SELECT chain, number, body FROM audit_entry")
    assert (entry["chain"], entry["number"]) == ("acme", 1)
    said = json.loads(bytes(entry["body"]))["entry"]
    assert (said["actor"], said["action"]) == (None, "dead_letter.dropped")
    again = command("dead", "drop", str(letter), "--why", "tested")
    assert again.exit_code == 1
    assert "no dead letter waits under" in again.stderr
    assert "Traceback" not in again.stderr


async def test_waiting_messages_are_listed_and_hurried(room, command):
    await room.hear([Feed().channel(started("r1"))])
    room.clock.at = (await room.rows("SELECT now() AS at"))[0]["at"]
    await room.rows("UPDATE retry SET next_at = now() + interval '1 hour'")
    (waiting,) = json.loads(command("retry", "list", "--json").stdout)
    assert waiting["reason"] == "organization_unknown"
    assert json.loads(command("retry", "now", "--json").stdout) == {"hurried": 1}
    assert await room.rows("SELECT 1 FROM retry WHERE next_at <= now()") != []


@pytest.mark.parametrize("name", ROOMS)
async def test_every_command_of_a_rooms_runbook_does_what_it_says(
    servers, name, room, deployment, rienda_process
):
    """`$LETTER` is a fresh dead letter each time; `health` asks a process that runs."""
    page = (ROOT / "services" / name / "README.md").read_text().split("## Runbook")[1]
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines()
        if line.strip()
    ]
    assert any("health" in line for line in lines), "the runbook names no command"
    part = "http" if name == "gateway" else "answer"
    process = await rienda_process(name, part, deployment)
    await servers.start_bootstrap()
    environment = servers.environment(name, deployment, http_port=process.port)
    for number, line in enumerate(lines):
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", f"services.{name}"], line
        if name == "ledger":
            await room.consumers["CHANNEL"].handle([misunderstood(100 + number)])
        if "$LETTER" in words:
            letter = str((await letters(room))[-1])
            words = [letter if word == "$LETTER" else word for word in words]
        done = subprocess.run(
            [sys.executable, *words[1:]],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
