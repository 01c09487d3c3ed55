"""Every room's migrations make the tables that its code speaks of."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from contracts.catalog import ROOMS
from shared.migrate import differences, migrate, script_of
from shared.schema import SchemaTooOld, head_of, require_schema, revisions_of

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]


def metadata_of(room: str) -> Any:
    """Of a module of tables, or of a package of several."""
    tables = importlib.import_module(f"services.{room}.tables")
    modules = [tables] + [
        importlib.import_module(f"{tables.__name__}.{found.name}")
        for found in pkgutil.iter_modules(getattr(tables, "__path__", ()))
    ]
    (metadata,) = {module.METADATA for module in modules if hasattr(module, "METADATA")}
    return metadata


@pytest.mark.parametrize("room", ROOMS)
async def test_the_migrated_schema_equals_the_tables(room: str, room_database):
    database = await room_database(room)
    metadata = metadata_of(room)
    assert await differences(database.owner_url(room), schema=room, metadata=metadata) == []


@pytest.mark.parametrize("room", ROOMS)
def test_scripts_are_named_and_numbered_as_alembic_orders_them(room: str):
    migrations = ROOT / "services" / room / "migrations"
    known = [step.revision for step in script_of(migrations).walk_revisions()]
    assert revisions_of(migrations) == known[::-1]


@pytest.mark.parametrize("room", ROOMS)
async def test_migrating_again_changes_nothing(room: str, room_database):
    database = await room_database(room)
    migrations = ROOT / "services" / room / "migrations"
    head = await migrate(database.owner_url(room), schema=room, migrations=migrations)
    assert head == head_of(migrations)


async def test_serving_refuses_an_older_schema_and_tolerates_a_newer_one(room_database):
    database = await room_database("ledger")
    migrations = ROOT / "services" / "ledger" / "migrations"
    owner = await asyncpg.connect(
        database.owner_url("ledger"), ssl=False, server_settings={"search_path": "ledger"}
    )
    try:
        await require_schema(owner, room="ledger", migrations=migrations)
        await owner.execute("UPDATE schema_version SET version_num = 'ledger_9999'")
        await require_schema(owner, room="ledger", migrations=migrations)
        await owner.execute("DELETE FROM schema_version")
        with pytest.raises(SchemaTooOld, match=r"python -m services\.ledger migrate"):
            await require_schema(owner, room="ledger", migrations=migrations)
    finally:
        await owner.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger.entry SET cost_nanousd = 0",
        "DELETE FROM ledger.entry",
        "TRUNCATE ledger.entry",
        "UPDATE ledger.audit_entry SET hash = ''",
        "DELETE FROM ledger.audit_entry",
        "DELETE FROM ledger.admission",
        "CREATE TABLE ledger.mine (id int)",
        "DROP TABLE ledger.entry",
    ],
)
async def test_the_runtime_role_cannot_rewrite_what_was_entered(statement: str, room_database):
    database = await room_database("ledger")
    runtime = await asyncpg.connect(database.url("ledger"), ssl=False)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await runtime.execute(statement)
    finally:
        await runtime.close()
