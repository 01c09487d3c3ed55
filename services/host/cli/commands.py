"""`rienda up | down | status | import`: options, exit codes, and what becomes of an error.

The one thing not to break: every anticipated failure is one sentence that says what to do, on
standard error, with exit code 1; a traceback is a bug.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from contracts.errors import Fault
from services.channels.command import import_app
from services.channels.connection import DATA_DIR_DEFAULT, DATA_DIR_VARIABLE, URL_VARIABLE
from services.channels.errors import ChannelError
from services.host.cli.status import Report, look_at_directory, look_at_url, show
from services.host.cli.stopping import stop
from services.host.cli.up import Up, up_detached, up_here
from services.host.datadir import DataDir
from services.host.errors import HostError

EXIT_FAILED: Final = 1
PORT_MAX: Final = 65_535

app = typer.Typer(
    name="rienda",
    help="Rienda: what agents may spend, stopped before it is spent, with an exact bill.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(import_app, name="import")

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help=f"Where everything is kept (default {DATA_DIR_DEFAULT}, or {DATA_DIR_VARIABLE}).",
        file_okay=False,
    ),
]


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rienda {version('rienda')}")
        raise typer.Exit


@app.callback()
def rienda(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say it.")
    ] = False,
) -> None:
    """Rienda: what agents may spend, stopped before it is spent, with an exact bill."""


@app.command()
def up(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=PORT_MAX, help="Port of the API (8700, or that of last time)."),
    ] = None,
    data_dir: DataDirOption = None,
    samples: Annotated[
        bool, typer.Option("--samples/--no-samples", help="Sample sessions, a demonstration.")
    ] = True,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when everything is ready; goes on behind.")
    ] = False,
    accept: Annotated[
        list[str] | None, typer.Option(help="Apply an unsafe difference, e.g. CHANNEL.max_age.")
    ] = None,
    recreate: Annotated[
        list[str] | None, typer.Option(help="Make a stream or durable anew, e.g. CHANNEL/ledger.")
    ] = None,
) -> None:
    """Start Rienda, and serve until Ctrl-C.

    The first start makes an organization with a key (DIR/admin.json), brings sample sessions in and
    shows an agent that is stopped by its budget. RIENDA_POSTGRES_URL and RIENDA_NATS_URL name
    servers of your own instead of the embedded ones.
    """
    decisions = [
        *(part for one in accept or () for part in ("--accept", one)),
        *(part for one in recreate or () for part in ("--recreate", one)),
    ]
    wanted = Up(
        directory=_directory(data_dir),
        port=port,
        has_samples=samples,
        decisions=tuple(decisions),
        command=_command(),
        options=f" --data-dir {shlex.quote(str(data_dir))}" if data_dir else "",
    )
    with _anticipated():
        is_well = up_detached(wanted) if detach else up_here(wanted)
    raise typer.Exit(0 if is_well else EXIT_FAILED)


@app.command()
def down(data_dir: DataDirOption = None) -> None:
    """Stop what `rienda up` started, and wait for its end."""
    directory = _directory(data_dir)
    with _anticipated():
        stopped = asyncio.run(stop(directory))
    typer.echo(
        f"Rienda on {directory.path} has been stopped."
        if stopped
        else f"Rienda does not run on {directory.path}: there is nothing to stop."
    )


@app.command()
def status(
    data_dir: DataDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what runs and whether it is ready; exit code 1 when anything is not."""
    url = os.environ.get(URL_VARIABLE)
    with _anticipated():
        report: Report
        if data_dir is None and url:
            report = asyncio.run(look_at_url(url))
        else:
            report = look_at_directory(_directory(data_dir), os.environ)
    if as_json:
        typer.echo(report.as_json())
    else:
        show(report, Console(highlight=False))
    raise typer.Exit(0 if report.ready else EXIT_FAILED)


def _directory(given: Path | None, environ: Mapping[str, str] = os.environ) -> DataDir:
    return DataDir(given or Path(environ.get(DATA_DIR_VARIABLE) or DATA_DIR_DEFAULT))


def _command() -> str:
    """How this program was called, short enough to be copied: `rienda`, `.venv/bin/rienda`."""
    called = Path(sys.argv[0]).absolute()
    found = shutil.which(called.name)
    if found is not None and Path(found).absolute() == called:
        return called.name
    return str(called.relative_to(Path.cwd()) if called.is_relative_to(Path.cwd()) else called)


@contextmanager
def _anticipated() -> Iterator[None]:
    """Turn what can be foreseen into a sentence and an exit code."""
    try:
        yield
    except (HostError, ChannelError, Fault) as error:
        console = Console(stderr=True)
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from error
