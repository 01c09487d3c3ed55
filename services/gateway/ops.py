"""The gateway's operator commands: describe the API, and a key for whoever is locked out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from services.gateway.domain.permissions import CATALOGUE
from services.gateway.http.application import description
from services.gateway.settings import GatewaySettings
from services.gateway.store.minting import KeyOrder, mint_key
from services.gateway.store.organizations import lock_organization
from shared.clock import SystemClock
from shared.db import Database

DOCUMENT = Path("docs/openapi.json")


def add_to(app: typer.Typer) -> None:
    """Add the commands to the room's command line."""
    keys = typer.Typer(name="key", no_args_is_help=True, help="API keys.")
    keys.callback()(_keys)
    keys.command("create")(create_key)
    app.add_typer(keys)
    app.command("openapi")(write_openapi)


def _keys() -> None:
    """API keys."""


def openapi_text() -> str:
    """The committed form of the API's description."""
    return json.dumps(description(), indent=2, ensure_ascii=False) + "\n"


def write_openapi(
    out: Annotated[Path, typer.Option(help="Where to write.")] = DOCUMENT,
    check: Annotated[bool, typer.Option("--check", help="Compare; exit code 1 if it differs.")] = (
        False
    ),
) -> None:
    """Write the API's description, or compare it with what is committed."""
    text = openapi_text()
    if check:
        same = out.exists() and out.read_text() == text
        typer.echo(f"{out}: {'up to date' if same else 'differs: write it again'}")
        raise typer.Exit(0 if same else 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    typer.echo(f"{out}: written")


def create_key(
    org: Annotated[str, typer.Option(help="The organization that the key is for.")],
    permission: Annotated[list[str], typer.Option(help="A permission; give it several times.")],
    name: Annotated[str, typer.Option(help="What the key is called in lists.")] = "operator",
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Create an API key without one: for an organization that has locked itself out.

    The key is shown once. The act is in the organization's audit, without an actor.
    """
    if unknown := sorted(set(permission) - CATALOGUE):
        raise typer.BadParameter(
            f"no permissions of the catalogue: {', '.join(unknown)}", param_hint="--permission"
        )
    key = asyncio.run(_create_key(org, name, tuple(sorted(set(permission)))))
    typer.echo(json.dumps({"org": org, "api_key": key}) if as_json else key)


async def _create_key(org: str, name: str, permissions: tuple[str, ...]) -> str:
    settings = GatewaySettings()
    database = Database(settings.postgres_url.get_secret_value(), schema="gateway")
    try:
        async with database.transaction() as connection:
            if await lock_organization(connection, org) is None:
                raise typer.BadParameter(f"there is no organization {org}", param_hint="--org")
            now = SystemClock().now()
            order = KeyOrder(org=org, name=name, permissions=permissions, at=now, by=None)
            key, _ = await mint_key(connection, order)
    finally:
        await database.close()
    return key.text
