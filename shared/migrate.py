"""Migrations of a room's schema: a step of its own, under an advisory lock.

A room's `migrations/` holds `versions/`; this module is every room's `env.py`. Imported by what
migrates only: the libraries behind it take as long to import as all the rest of a room.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from shared.schema import VERSION_TABLE, head_of

if TYPE_CHECKING:
    from sqlalchemy import MetaData

FLOOR_0001 = Path(__file__).with_name("floor_0001.sql")
LOCK_S_MAX = 60


def run_sql(op: Operations, script: str) -> None:
    """Run a script statement by statement: the driver takes one at a time."""
    for statement in script.split(";\n"):
        lines = [line for line in statement.splitlines() if not line.strip().startswith("--")]
        bare = "\n".join(lines).strip()
        if bare:
            op.execute(text(bare.replace(":", "\\:")))


def script_of(migrations: Path) -> ScriptDirectory:
    """A room's revisions, as alembic reads them."""
    config = Config()
    config.set_main_option("script_location", migrations.as_posix())
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def _upgrade(connection: Connection, schema: str, migrations: Path) -> None:
    script = script_of(migrations)
    config = Config()
    config.set_main_option("script_location", migrations.as_posix())

    def steps(revision: Any, _: Any) -> Any:
        return script._upgrade_revs("head", revision)

    with EnvironmentContext(config, script, fn=steps, destination_rev="head") as environment:
        environment.configure(
            connection=connection,
            version_table=VERSION_TABLE,
            version_table_schema=schema,
            transaction_per_migration=False,
        )
        environment.run_migrations()


async def migrate(dsn: str, *, schema: str, migrations: Path) -> str:
    """Bring the schema to the newest revision, as its owner; answer the revision.

    Several at once wait for one another: the lock is taken first.
    """
    engine = create_async_engine(_sqlalchemy_url(dsn), poolclass=NullPool, connect_args=_CONNECT)
    lock = int.from_bytes(hashlib.sha256(f"migrate {schema}".encode()).digest()[:8], signed=True)
    try:
        async with engine.begin() as connection:
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_S_MAX}s'"))
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": lock})
            await connection.execute(text(f'SET LOCAL search_path = "{schema}"'))
            await connection.run_sync(_upgrade, schema, migrations)
    finally:
        await engine.dispose()
    return head_of(migrations)


async def differences(dsn: str, *, schema: str, metadata: MetaData) -> list[Any]:
    """What the migrated schema has and the tables do not say, or the other way round."""
    from alembic.autogenerate import compare_metadata

    def compare(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": lambda name, kind, _: kind != "schema" or name == schema,
                "version_table": VERSION_TABLE,
                "version_table_schema": schema,
                "compare_type": True,
                "compare_server_default": False,
            },
        )
        return list(compare_metadata(context, metadata))

    engine = create_async_engine(_sqlalchemy_url(dsn), poolclass=NullPool, connect_args=_CONNECT)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(compare)
    finally:
        await engine.dispose()


_CONNECT = {"ssl": False, "server_settings": {"timezone": "UTC"}}


def _sqlalchemy_url(dsn: str) -> str:
    scheme, rest = dsn.split("://", 1)
    if not scheme.startswith("postgres"):
        raise ValueError("a Postgres URL begins with postgresql://")
    # TLS is not negotiated here (`_CONNECT`); the driver's own query words are not SQLAlchemy's.
    return f"postgresql+asyncpg://{rest.partition('?')[0]}"


def migrate_now(dsn: str, *, schema: str, migrations: Path) -> str:
    """`migrate`, for callers without an event loop."""
    return asyncio.run(migrate(dsn, schema=schema, migrations=migrations))
