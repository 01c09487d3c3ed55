"""The migrated schema, the rights on it, and the room's own commands."""

from __future__ import annotations

import json
import subprocess
import sys

import asyncpg
import pytest

from services.gateway.tables import METADATA
from shared.migrate import differences
from tests.integration.gateway.running import Gateway
from tests.servers import ROOT, Servers

pytestmark = pytest.mark.integration


async def test_the_migrations_make_what_the_tables_say(gateway: Gateway) -> None:
    url = gateway.database.owner_url("gateway")
    assert await differences(url, schema="gateway", metadata=METADATA) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_entry SET hash = ''",
        "DELETE FROM audit_entry",
        "DELETE FROM audit_head",
        "DELETE FROM organization",
        "DELETE FROM api_key",
        "UPDATE agent_version SET version = 0",
        "CREATE TABLE gateway.more (x int)",
        "DROP TABLE organization",
        "TRUNCATE audit_entry",
    ],
)
async def test_the_runtime_role_cannot(gateway: Gateway, statement: str) -> None:
    connection = await asyncpg.connect(
        gateway.database.url("gateway"),
        ssl=False,
        server_settings={"search_path": "gateway"},
    )
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    finally:
        await connection.close()


def command(
    gateway: Gateway, servers: Servers, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.gateway", *arguments],
        env=servers.environment("gateway", gateway.database, http_port=gateway.process.port),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_an_operator_lets_an_organization_in_again(
    gateway: Gateway, servers: Servers
) -> None:
    org = await gateway.new_org()
    made = command(
        gateway, servers, "key", "create", "--org", org, "--permission", "org:settings", "--json"
    )
    assert made.returncode == 0, made.stderr
    caller = gateway.caller(json.loads(made.stdout)["api_key"])
    keys = (await caller.get("/api-keys")).json()
    assert [item["permissions"] for item in keys["items"]] == [["org:settings"]]
    unknown = command(
        gateway, servers, "key", "create", "--org", "nobody", "--permission", "runs:view"
    )
    assert unknown.returncode == 2
    assert "no organization" in unknown.stderr


async def test_the_commands_of_every_room_work(gateway: Gateway, servers: Servers) -> None:
    health = command(gateway, servers, "health", "--json")
    assert (health.returncode, json.loads(health.stdout)["ready"]) == (0, True)
    again = command(gateway, servers, "migrate")
    assert again.returncode == 0, again.stderr
    assert "gateway_0002" in again.stdout


async def test_an_operator_makes_and_unmakes_an_app_admin(
    gateway: Gateway, servers: Servers
) -> None:
    """What nobody may do over HTTP: the first app admin comes from whoever runs the deployment."""
    org, foreign = await gateway.new_org(), await gateway.new_org()
    person = await gateway.new_person(org, "viewer")

    async def sees(other: str) -> int:
        answer = await gateway.caller(person.token, other).get(f"/orgs/{other}")
        return answer.status_code

    assert await sees(foreign) == 404
    email = person.email.upper()
    made = command(gateway, servers, "person", "admin", "--email", email)
    assert made.returncode == 0, made.stderr
    assert "app admin" in made.stdout
    assert (await person.client.get("/me")).json()["is_app_admin"] is True
    assert await sees(foreign) == 200
    unmade = command(gateway, servers, "person", "admin", "--email", email, "--revoke")
    assert unmade.returncode == 0, unmade.stderr
    assert await sees(foreign) == 404
    nobody = command(gateway, servers, "person", "admin", "--email", "nobody@example.net")
    assert nobody.returncode == 2
    assert "nobody signs in as" in nobody.stderr
    connection = await asyncpg.connect(gateway.database.admin_url, ssl=False)
    try:
        acts = await connection.fetch(
            "SELECT convert_from(body, 'UTF8')::jsonb #>> '{entry,action}' AS action "
            "FROM gateway.audit_entry WHERE chain = '_' ORDER BY number DESC LIMIT 2"
        )
    finally:
        await connection.close()
    assert [row["action"] for row in acts] == ["person.admin_unmade", "person.admin_made"]
