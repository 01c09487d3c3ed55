"""The gateway's operator commands: describe the API, let somebody in, say the directory again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from services.gateway.domain.names import clean_email
from services.gateway.domain.permissions import CATALOGUE
from services.gateway.http.application import description
from services.gateway.settings import GatewaySettings
from services.gateway.store.acts import Act, ensure_pseudonym, record_act, say_again
from services.gateway.store.minting import KeyOrder, mint_key
from services.gateway.store.organizations import lock_organization
from services.gateway.store.pages import Place, list_entities
from services.gateway.store.people import save_app_admin
from shared.clock import SystemClock
from shared.db import Database

DOCUMENT = Path("docs/openapi.json")


def add_to(app: typer.Typer) -> None:
    """Add the commands to the room's command line."""
    keys = typer.Typer(name="key", no_args_is_help=True, help="API keys.")
    keys.callback()(_keys)
    keys.command("create")(create_key)
    app.add_typer(keys)
    directory = typer.Typer(name="directory", no_args_is_help=True, help="The directory.")
    directory.callback()(_directory)
    directory.command("republish")(republish)
    app.add_typer(directory)
    people = typer.Typer(name="person", no_args_is_help=True, help="People who sign in.")
    people.callback()(_people)
    people.command("admin")(make_admin)
    app.add_typer(people)
    app.command("openapi")(write_openapi)


def _keys() -> None:
    """API keys."""


def _directory() -> None:
    """The directory."""


def _people() -> None:
    """People who sign in."""


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


def republish(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Say every entity of the directory again, tombstones included.

    Rooms apply only what is newer than what they have, so this mends a projection and changes no
    other. The relay publishes; the command ends when all of it stands in the outbox.
    """
    said = asyncio.run(_republish())
    typer.echo(json.dumps({"said": said}) if as_json else f"{said} states said again")


async def _republish() -> int:
    settings = GatewaySettings()
    database = Database(settings.postgres_url.get_secret_value(), schema="gateway")
    said = 0
    place: Place | None = Place()
    try:
        while place is not None:
            async with database.transaction() as connection:
                entities, following = await list_entities(connection, place)
                await say_again(connection, entities, at=SystemClock().now())
            said, place = said + len(entities), following
    finally:
        await database.close()
    return said


def make_admin(
    email: Annotated[str, typer.Option(help="The address that the person signs in with.")],
    revoke: Annotated[bool, typer.Option("--revoke", help="An app admin no longer.")] = False,
) -> None:
    """Let a person do everything in every organization, held by the audit trail alone."""
    if not asyncio.run(_make_admin(clean_email(email), is_app_admin=not revoke)):
        raise typer.BadParameter(f"nobody signs in as {email}", param_hint="--email")
    typer.echo(f"{email}: {'no app admin any more' if revoke else 'app admin'}")


async def _make_admin(email: str, *, is_app_admin: bool) -> bool:
    settings = GatewaySettings()
    database = Database(settings.postgres_url.get_secret_value(), schema="gateway")
    try:
        async with database.transaction() as connection:
            now = SystemClock().now()
            person_id = await save_app_admin(connection, email, is_app_admin=is_app_admin, at=now)
            if person_id is None:
                return False
            pseudonym = await ensure_pseudonym(connection, f"person:{person_id}", now=now)
            act = Act(
                action="person.admin_made" if is_app_admin else "person.admin_unmade",
                org=None,
                target_type="person",
                target_id=pseudonym,
                actor=None,
                at=now,
            )
            await record_act(connection, act)
    finally:
        await database.close()
    return True
