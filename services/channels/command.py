"""`rienda import …`: the command line of the importer.

Exit codes: 0 all is well, 1 something was damaged or refused or nobody answered, 2 wrong use.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from contracts.errors import Fault
from contracts.types import AgentId, Id
from services.channels.connection import find_connection
from services.channels.errors import (
    ChannelError,
    CredentialRefused,
    NothingToImport,
    RiendaUnreachable,
)
from services.channels.over_http import HttpTransport
from services.channels.transcripts.discovery import Found, find_sessions
from services.channels.transcripts.importing import Summary, import_sessions
from services.channels.transcripts.saying import DELEGATE_SUFFIX, Attribution
from services.channels.transport import Transport

EXIT_FAULTY: Final = 1
EXIT_USAGE: Final = 2
SHOWN_MAX: Final = 20
"""Damages, refusals and missing delegates that the summary shows; `--json` lists more."""

import_app = typer.Typer(help="Bring work that is already done into Rienda.", no_args_is_help=True)


@import_app.callback()
def _import() -> None:
    """Bring work that is already done into Rienda."""


@import_app.command("transcripts")
def import_transcripts(
    paths: Annotated[list[Path], typer.Argument(help="Transcript files or folders of them.")],
    agent: Annotated[str, typer.Option(help="Whose work it was.")] = "claude-code",
    user: Annotated[str | None, typer.Option(help="Who started it.")] = None,
    project: Annotated[str | None, typer.Option(help="The project it belongs to.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Rienda's folder (.rienda).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Turn sessions of a coding assistant into runs with an exact bill.

    The same file twice changes nothing; a longer version of a file adds what is new. A damaged line
    is named, and the rest goes on.
    """
    _check("--agent", agent + DELEGATE_SUFFIX, TypeAdapter(AgentId))
    for option, value in (("--user", user), ("--project", project)):
        if value is not None:
            _check(option, value, TypeAdapter(Id))
    errors = Console(stderr=True)
    try:
        found = find_sessions(paths)
        connection = find_connection(data_dir)
        transport = HttpTransport(connection.base_url, connection.api_key)
        attribution = Attribution(agent_id=agent, user_id=user, project_id=project)
        summary = asyncio.run(_import_shown(found, transport, attribution, errors))
    except NothingToImport as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_USAGE) from error
    except (ChannelError, Fault) as error:
        errors.print(_advice(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAULTY) from error
    if as_json:
        typer.echo(json.dumps(summary.as_json(), indent=2))
    else:
        _show(summary, Console())
    if not summary.is_clean:
        raise typer.Exit(EXIT_FAULTY)


def _check(option: str, value: str, adapter: TypeAdapter[Any]) -> None:
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        raise typer.BadParameter(
            "takes 1 to 128 characters of A-Z a-z 0-9 . _ : @ -", param_hint=option
        ) from error


def _advice(error: ChannelError | Fault) -> str:
    """What is true, and what to do about it."""
    if isinstance(error, RiendaUnreachable):
        return (
            f"{error}\nIs Rienda running? See `rienda status`. Importing again is harmless: "
            "what was taken is not counted twice."
        )
    if isinstance(error, CredentialRefused):
        return f"{error}\nThe key needs the permission channels:publish, and a channel of its own."
    return str(error)


async def _import_shown(
    found: Found, transport: Transport, attribution: Attribution, console: Console
) -> Summary:
    columns = (
        TextColumn("importing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("sessions"),
        TimeElapsedColumn(),
    )
    await transport.open()
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("importing", total=len(found.sessions))
            return await import_sessions(
                found,
                transport,
                attribution=attribution,
                on_session=lambda _: progress.advance(task),
            )
    finally:
        await transport.close()


def _show(summary: Summary, console: Console) -> None:
    table = Table(title="Imported", show_header=False, title_justify="left")
    table.add_column("what")
    table.add_column("count", justify="right")
    for name, count in (
        ("files", summary.files),
        ("sessions", summary.sessions),
        ("runs", summary.runs),
        ("delegated runs", summary.delegated_runs),
        ("model requests", summary.requests),
        ("of these, compactions", summary.compactions),
        ("events accepted", summary.accepted),
        ("events known already", summary.duplicates),
        ("events refused", summary.refused.count),
        ("damaged lines", summary.damaged.count),
        ("delegates without a file", summary.missing_delegates.count),
    ):
        table.add_row(name, f"{count:,}")
    console.print(table)
    for title, listed in (
        ("Damaged, and left out:", summary.damaged),
        ("Refused:", summary.refused),
        ("Delegates without a file; the sum of their run is a floor:", summary.missing_delegates),
    ):
        if not listed.count:
            continue
        console.print(title)
        for item in listed.items[:SHOWN_MAX]:
            console.print(f"  {item}", markup=False, highlight=False, soft_wrap=True)
        if listed.count > SHOWN_MAX:
            console.print(f"  and {listed.count - SHOWN_MAX:,} more")
