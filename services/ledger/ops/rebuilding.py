"""`recompute-rollups` and `rebuild`: are the sums and states what entries and facts amount to?

The one thing not to break: both look at one snapshot and change nothing, unless `--apply` is given;
then nobody writes sums meanwhile, and the repair is an audit entry.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from uuid_utils.compat import uuid7

from contracts.rooms import AuditEntry
from services.ledger.app import COMMANDS
from services.ledger.store import rebuilding
from services.ledger.store.rebuilding import COMPARISONS, Difference
from shared import audit
from shared.clock import SystemClock
from shared.db import is_transient, open_connection

if TYPE_CHECKING:
    from shared.db import Connection

STATEMENT_TIMEOUT: Final = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}
"""A whole ledger takes as long as it takes; an operator may interrupt it."""
Isolation = Literal["read_committed", "repeatable_read"]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was found."""

    differences: tuple[Difference, ...]
    recounts: int
    """Changes of departments that are still being counted: their months may differ until then."""
    applied: bool = False


def add_to(app: typer.Typer) -> None:
    """Add both commands to a room's."""
    app.command("recompute-rollups")(recompute_rollups)
    app.command("rebuild")(rebuild)


def recompute_rollups(
    apply: Annotated[bool, typer.Option("--apply", help="Put right what differs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add every sum up again from the entries and compare; exit code 1 where one differs."""
    _show(_run(apply_sums=apply, states=False, keep=False), as_json=as_json)


def rebuild(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the shadow schema there to look at.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make sums, roots, attributions and states again in a shadow schema and compare."""
    _show(_run(apply_sums=False, states=True, keep=keep), as_json=as_json)


def _run(*, apply_sums: bool, states: bool, keep: bool) -> Rebuilt:
    try:
        return asyncio.run(_rebuild(apply_sums=apply_sums, states=states, keep=keep))
    except Exception as error:
        if not is_transient(error):
            raise
        typer.echo(f"the database is away ({type(error).__name__}): start it", err=True)
        sys.exit(1)


async def _rebuild(*, apply_sums: bool, states: bool, keep: bool) -> Rebuilt:
    connection = await open_connection(COMMANDS.owner_dsn(), COMMANDS.room, STATEMENT_TIMEOUT)
    # Sums are moved with their entries, so one snapshot has to agree; a repair has to stop writers.
    isolation: Isolation = "read_committed" if apply_sums else "repeatable_read"
    try:
        async with connection.transaction(isolation=isolation):
            if apply_sums:
                await rebuilding.hold_rollups(connection)
            await rebuilding.build(connection)
            found = await _compare(connection, states=states)
            if apply_sums and found:
                await rebuilding.apply_rollups(connection)
                await _record(connection, found)
            recounts = await rebuilding.count_recounts(connection)
            if not keep:
                await rebuilding.drop(connection)
    finally:
        await connection.close()
    return Rebuilt(tuple(found), recounts, applied=apply_sums and bool(found))


async def _compare(connection: Connection, *, states: bool) -> list[Difference]:
    found: list[Difference] = []
    for comparison in COMPARISONS:
        differences = await rebuilding.compare(connection, comparison)
        found += [one for one in differences if states or one.column not in comparison.states]
    return found


async def _record(connection: Connection, found: Sequence[Difference]) -> None:
    """Say in the deployment's chain that an operator put sums right, and which."""
    now = SystemClock().now()
    entry = AuditEntry(
        id=str(uuid7()),
        actor=None,
        organization=None,
        action="rollups.recomputed",
        target_type="room",
        target_id=COMMANDS.room,
        details={f"{one.table}.{one.column}": one.rows for one in found},
        created_at=now,
    )
    await audit.record(connection, entry, room=COMMANDS.room)


def _show(rebuilt: Rebuilt, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_as_json(rebuilt)))
    else:
        for one in rebuilt.differences:
            typer.echo(f"{one.table}.{one.column}: {one.rows} rows differ")
            for example in one.examples:
                typer.echo(f"  {example}")
        if rebuilt.recounts:
            typer.echo(f"{rebuilt.recounts} changes of departments are still being counted")
        words = "everything agrees" if not rebuilt.differences else "they do not agree"
        typer.echo("put right" if rebuilt.applied else words)
    sys.exit(1 if rebuilt.differences and not rebuilt.applied else 0)


def _as_json(rebuilt: Rebuilt) -> dict[str, Any]:
    return {
        "agrees": not rebuilt.differences,
        "applied": rebuilt.applied,
        "recounts": rebuilt.recounts,
        "differences": [asdict(one) for one in rebuilt.differences],
    }
