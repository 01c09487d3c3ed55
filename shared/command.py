"""`python -m services.<room>`: the commands that every room has (design.md 11)."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from shared.app import Process, run
from shared.repair_commands import Repair

HEALTH_S_MAX = 3


@dataclass(frozen=True, slots=True)
class RoomCommands:
    """What differs between rooms."""

    room: str
    migrations: Path
    parts: Sequence[str]
    """Parts that may run as processes of their own; the first is the default."""
    process_of: Callable[[str], Process]
    owner_dsn: Callable[[], str]
    health_url: Callable[[], str]


def room_app(commands: RoomCommands) -> typer.Typer:
    """Build the command line of a room."""
    app = typer.Typer(
        name=f"python -m services.{commands.room}",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.command()
    def serve(part: str = typer.Option(commands.parts[0], help="Which part to run.")) -> None:
        """Serve until SIGTERM."""
        if part not in commands.parts:
            raise typer.BadParameter(f"one of {', '.join(commands.parts)}", param_hint="--part")
        sys.exit(run(commands.process_of(part)))

    @app.command(name="migrate")
    def migrate_command() -> None:
        """Bring the schema to what this code needs, as its owner."""
        # Imported here: no other command needs the libraries behind it.
        from shared.migrate import migrate

        revision = asyncio.run(
            migrate(commands.owner_dsn(), schema=commands.room, migrations=commands.migrations)
        )
        typer.echo(f"{commands.room}: schema at {revision}")

    @app.command()
    def health(as_json: bool = typer.Option(False, "--json")) -> None:
        """Ask a running process whether it is ready; exit code 1 if not."""
        ready, checks = _ask_ready(commands.health_url())
        if as_json:
            typer.echo(json.dumps({"room": commands.room, "ready": ready, "checks": checks}))
        else:
            typer.echo(f"{commands.room}: {'ready' if ready else 'not ready'}")
            for name, holds in checks.items():
                typer.echo(f"  {name}: {'ok' if holds else 'no'}")
        sys.exit(0 if ready else 1)

    Repair(commands.room, commands.process_of, commands.parts[0]).add_to(app)
    return app


def _ask_ready(url: str) -> tuple[bool, dict[str, bool]]:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=HEALTH_S_MAX) as answer:  # noqa: S310
            return True, json.load(answer)
    except urllib.error.HTTPError as error:
        return False, json.load(error)
    except OSError:
        return False, {"process": False}
