"""The ledger's operator commands: those of every room, and its own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from contracts.types import instant_text
from services.ledger.app import COMMANDS, PARTS
from services.ledger.ops.rebuilding import add_to
from services.ledger.store.transitions import list_watermarks
from shared.command import room_app
from shared.db import is_transient

app = room_app(COMMANDS)
add_to(app)


@app.command()
def watermark(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Up to when everything that a stream stored is handled; runs are judged against it."""
    try:
        rows = asyncio.run(_watermarks())
    except Exception as error:
        if not is_transient(error):
            raise
        typer.echo(f"the database is away ({type(error).__name__}): start it", err=True)
        sys.exit(1)
    found = [
        {
            "stream": row["stream"],
            "handled_until": instant_text(row["handled_until"]),
            "read_at": instant_text(row["read_at"]),
        }
        for row in rows
    ]
    if as_json:
        typer.echo(json.dumps(found))
    elif not found:
        typer.echo("nothing is known yet: ingest has not come to the end of a stream")
    else:
        for one in found:
            typer.echo(
                f"{one['stream']}: all until {one['handled_until']} is handled "
                f"(read at {one['read_at']})"
            )


async def _watermarks() -> Sequence[Any]:
    database = COMMANDS.process_of(PARTS[0]).database
    try:
        async with database.reading() as connection:
            return await list_watermarks(connection)
    finally:
        await database.close()
