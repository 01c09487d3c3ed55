"""Sums and states made again from entries and facts: they agree, or it is said where not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from contracts.channel import Tokens
from contracts.types import RunStatus
from tests.commands import invoke
from tests.factories import (
    NOON,
    Feed,
    agent,
    belongs,
    department,
    finished,
    ingestion,
    minutes,
    organization,
    parked,
    started,
    usage,
)
from tests.ledger_room import LedgerRoom
from tests.servers import ROOT, RoomDatabase, Servers

pytestmark = pytest.mark.integration


class House:
    """A ledger with a story in it, and its operator's commands."""

    def __init__(self, servers: Servers, database: RoomDatabase) -> None:
        self.servers = servers
        self.database = database
        self.room = LedgerRoom(database.url("ledger"))

    def environment(self) -> dict[str, str]:
        found = self.servers.environment("ledger", self.database, http_port=1)
        return found | {"RIENDA_LEDGER_POSTGRES_OWNER_URL": self.database.owner_url("ledger")}

    def command(self, *arguments: str) -> tuple[int, Any]:
        """Run a command of the room; answer its exit code and what it printed as JSON."""
        done = invoke(*arguments, "--json", environment=self.environment())
        assert done.stdout, done.stderr
        return done.exit_code, json.loads(done.stdout)

    async def command_beside(self, *arguments: str) -> tuple[int, Any]:
        """The same in a process of its own, while this one goes on."""
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "services.ledger", *arguments, "--json"],
            env=self.environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    async def damage(self, statement: str) -> None:
        """Edit a row, as whoever owns the database may."""
        connection = await asyncpg.connect(
            self.database.owner_url("ledger"), ssl=False, server_settings={"search_path": "ledger"}
        )
        try:
            assert await connection.execute(statement) == "UPDATE 1", statement
        finally:
            await connection.close()


@pytest.fixture
async def house(servers: Servers) -> AsyncIterator[House]:
    database = await servers.new_database("ledger")
    made = House(servers, database)
    await tell_a_story(made.room)
    yield made
    await made.room.close()
    await servers.drop_database(database)


async def tell_a_story(room: LedgerRoom) -> None:
    """Delegation, a department, a system role, floors, ingestion, a correction, a waiting run."""
    feed = Feed()
    await room.hear([feed.directory(organization(), "acme")])
    await room.hear([feed.directory(agent("coder"), "coder")])
    await room.hear([feed.directory(department("sales", belongs("ana")), "sales")])
    await room.hear(
        [
            feed.channel(started("r1", started_by_user_id="ana")),
            feed.channel(started("r2", agent_id="helper", root_run_id="r1", parent_run_id="r1")),
            feed.channel(started("r3", agent_id="reviewer", system_role="review")),
            feed.channel(started("r4")),
            feed.channel(usage("q1", "r1")),
            feed.channel(usage("q1", "r1", tokens=Tokens(input=2_000, output=300))),
            feed.channel(usage("q2", "r2", provider="openai", model="gpt-5")),
            feed.channel(usage("q3", "r3", model="no-such-model")),
            feed.channel(usage("q4", "r1", billed_run_id="r2")),
            feed.channel(ingestion("q5")),
            feed.channel(finished("r1", missing_delegates=1)),
            feed.channel(finished("r3", status=RunStatus.FAILED)),
            feed.channel(parked("r4", NOON + minutes(2))),
        ]
    )
    entered = await room.rows("SELECT id FROM entry WHERE request_id = 'q2'")
    await room.correct(str(entered[0]["id"]), 777, "c1")
    # Known by its spend alone, then by a start that names another tree; a run that died.
    await room.hear([feed.channel(usage("q6", "r6")), feed.channel(started("r5"))])
    await room.hear(
        [feed.channel(started("r6", agent_id="helper", root_run_id="r1", parent_run_id="r1"))]
    )
    await room.reaper.sweep(room.clock.at + minutes(10), minutes(2))
    # Ana had left sales before she started anything.
    left = department("sales", belongs("ana", until=NOON - minutes(60)), revision=2)
    other = department("support", belongs("ana"))
    await room.hear([feed.directory(left, "sales"), feed.directory(other, "support")])


async def test_everything_agrees(house: House) -> None:
    kept = await house.room.rows(
        "SELECT status, count(*) FROM run GROUP BY 1 "
        "UNION ALL SELECT scope, count(*) FROM month_spend WHERE cost_nanousd > 0 GROUP BY 1"
    )
    story = {"failed", "awaiting_approval", "completed", "department", "agent", "organization"}
    assert story <= {row[0] for row in kept}, "there is something of everything to agree on"
    for command in ("recompute-rollups", "rebuild"):
        code, found = await house.command_beside(command)
        assert (code, found) == (
            0,
            {"agrees": True, "applied": False, "recounts": 0, "differences": []},
        )
    tables = await house.room.rows(
        "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'ledger_shadow'"
    )
    assert tables[0][0] == 0, "the shadow schema is left empty"


SUMS = {
    "UPDATE run SET own_cost_nanousd = own_cost_nanousd + 1 WHERE run_id = 'r2'": (
        "run",
        "own_cost_nanousd",
    ),
    "UPDATE run SET tree_input = 0 WHERE run_id = 'r1'": ("run", "tree_input"),
    "UPDATE run_line SET unpriced_count = 0 WHERE run_id = 'r3'": ("run_line", "unpriced_count"),
    "UPDATE month_spend SET cost_nanousd = 0 WHERE scope_id = 'support'": (
        "month_spend",
        "cost_nanousd",
    ),
    "UPDATE month_spend SET unpriced_count = 9 WHERE scope = 'organization'": (
        "month_spend",
        "unpriced_count",
    ),
    "UPDATE spend_slot SET cost_nanousd = 0 WHERE dimension = 'provider' AND value = 'openai' "
    "AND grain_s = 3600": ("spend_slot", "cost_nanousd"),
    "UPDATE spend_slot SET present_count = 9 WHERE dimension = 'person' AND value = 'ana' "
    "AND grain_s = 86400": ("spend_slot", "present_count"),
    "UPDATE run SET counted_agents = '{}' WHERE run_id = 'r2'": ("run", "counted_agents"),
    "UPDATE run SET counted_departments = '{x}' WHERE run_id = 'r1'": (
        "run",
        "counted_departments",
    ),
}


@pytest.mark.parametrize("statement", SUMS, ids=[" ".join(where) for where in SUMS.values()])
async def test_what_differs_is_named_and_put_right(house: House, statement: str) -> None:
    await house.damage(statement)
    code, found = house.command("recompute-rollups")
    assert code == 1
    assert SUMS[statement] in [(one["table"], one["column"]) for one in found["differences"]]
    assert all(one["examples"] for one in found["differences"])
    code, found = house.command("recompute-rollups", "--apply")
    assert (code, found["applied"]) == (0, True)
    assert house.command("rebuild")[0] == 0
    said = await house.room.rows(
        "SELECT body FROM outbox WHERE subject LIKE '%audit_recorded%' ORDER BY id DESC LIMIT 1"
    )
    assert b"rollups.recomputed" in said[0]["body"]


@pytest.mark.parametrize(
    ("statement", "column"),
    [
        ("UPDATE run SET status = 'running' WHERE run_id = 'r4'", "status"),
        ("UPDATE run SET root_run_id = 'r2' WHERE run_id = 'r2'", "root_run_id"),
    ],
)
async def test_a_state_that_facts_do_not_bear_is_found(
    house: House, statement: str, column: str
) -> None:
    await house.damage(statement)
    code, found = house.command("rebuild")
    assert code == 1
    assert column in [one["column"] for one in found["differences"]]


async def test_the_shadow_schema_can_be_kept_and_is_the_owners_alone(house: House) -> None:
    code, _ = house.command("rebuild", "--keep")
    assert code == 0
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await house.room.rows("SELECT count(*) FROM ledger_shadow.run")
    assert house.command("rebuild")[0] == 0


async def test_a_repair_beside_reports_loses_none(house: House) -> None:
    """The repair waits for writers and lets none in; what is entered beside it is counted once."""
    feed = Feed()
    await house.damage("UPDATE month_spend SET cost_nanousd = 0 WHERE scope_id = 'support'")

    async def report() -> None:
        for number in range(30):
            await house.room.hear([feed.channel(usage(f"more{number}", "r1"))])

    (code, found), _ = await asyncio.gather(
        house.command_beside("recompute-rollups", "--apply"), report()
    )
    assert (code, found["applied"]) == (0, True)
    assert house.command("rebuild")[0] == 0
