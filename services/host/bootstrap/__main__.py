"""The command line of the bootstrap step; it holds no rule, every error it prints is defined."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from services.host.bootstrap.containers import STORE, Place, write_folders
from services.host.bootstrap.service import BootstrapProcess, Report, prepare
from services.host.bootstrap.settings import PrepareSettings, ServeSettings, read_settings
from services.host.bootstrap.streams import Decision
from services.host.errors import HostError
from shared.log import configure

app = typer.Typer(
    name="python -m services.host.bootstrap", no_args_is_help=True, add_completion=False
)


@app.command(name="prepare")
def prepare_command(
    accept: Annotated[
        list[str] | None, typer.Option(help="Apply this difference, e.g. CHANNEL.max_age.")
    ] = None,
    recreate: Annotated[
        list[str] | None,
        typer.Option(help="Delete a stream or durable and make it again, e.g. CHANNEL/ledger."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Make streams, durables, database, roles and schemas as this code needs them."""
    configure(room="bootstrap", part="prepare", level="WARNING")
    try:
        settings = read_settings(PrepareSettings)
        decision = Decision(accepted=accept or (), recreated=recreate or ())
        report = asyncio.run(prepare(settings, decision))
    except HostError as error:
        typer.echo(_failure(error, as_json=as_json), err=True)
        sys.exit(1)
    typer.echo(_success(report, as_json=as_json))


@app.command(name="configure")
def configure_command(
    root: Annotated[Path, typer.Argument(help="Where the folders of the containers lie.")],
    nats_url: Annotated[str, typer.Option(help="As containers find it.")] = Place().nats_url,
    postgres: Annotated[str, typer.Option(help="Host and port.")] = Place().postgres_host,
    store: Annotated[Path, typer.Option(help="Folder of the streams.")] = STORE,
) -> None:
    """Write the files of a deployment in containers (`compose.yaml`); secrets are made once."""
    try:
        write_folders(root, Place(nats_url=nats_url, postgres_host=postgres, store=store))
    except HostError as error:
        typer.echo(_failure(error, as_json=False), err=True)
        sys.exit(1)


@app.command()
def serve() -> None:
    """Answer the gateway's questions for bus credentials until SIGTERM."""
    configure(room="bootstrap", part="serve")
    try:
        process = BootstrapProcess(read_settings(ServeSettings))
        sys.exit(asyncio.run(process.run()))
    except HostError as error:
        typer.echo(_failure(error, as_json=False), err=True)
        sys.exit(1)


def _failure(error: HostError, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"code": error.code, "message": str(error)})
    return f"{error}\n({error.code})"


def _success(report: Report, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(asdict(report))
    lines = [
        *report.postgres,
        *(f"{where}: made" for where in report.streams.created),
        *(f"{where}: deleted and made again" for where in report.streams.recreated),
        *(
            f"{one.where}: {one.field} {one.found} -> {one.wanted}"
            for one in report.streams.applied
        ),
        *(f"{where}: not in the catalogue, left alone" for where in report.streams.strangers),
    ]
    return "\n".join(lines) or "everything is as the catalogue says"


if __name__ == "__main__":
    app()
