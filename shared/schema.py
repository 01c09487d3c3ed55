"""Which schema a room's code needs, and whether it is there.

`serve` refuses a schema older than it needs and tolerates one newer: expand first, contract later
(design.md 1). Revisions are read off the scripts in `versions/`, which carry their names and are
numbered; a test compares them with what alembic makes of the same folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncpg

VERSION_TABLE = "schema_version"


class SchemaTooOld(Exception):
    """The room's schema lacks what this code needs."""

    def __init__(self, room: str, found: str | None, needed: str) -> None:
        """Say what is there, what is needed and which command brings it."""
        super().__init__(
            f"the schema of {room} is at {found or 'nothing'}, this code needs {needed}: "
            f"run `python -m services.{room} migrate`"
        )


def revisions_of(migrations: Path) -> list[str]:
    """Every revision that the code knows, oldest first."""
    return sorted(script.stem for script in (migrations / "versions").glob("*.sql"))


def head_of(migrations: Path) -> str:
    """The newest revision that the code knows."""
    revisions = revisions_of(migrations)
    if not revisions:
        raise RuntimeError(f"{migrations} holds no migration")
    return revisions[-1]


async def require_schema(
    connection: asyncpg.Connection[Any] | Any, *, room: str, migrations: Path
) -> None:
    """Refuse to serve on a schema older than this code.

    Raises:
        SchemaTooOld: names the command.
    """
    table = await connection.fetchval("SELECT to_regclass($1)", f"{room}.{VERSION_TABLE}")
    found = (
        await connection.fetchval(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608
        if table
        else None
    )
    head = head_of(migrations)
    if found == head or (found is not None and found not in revisions_of(migrations)):
        return
    raise SchemaTooOld(room, found, head)
