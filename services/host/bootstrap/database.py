"""Preparing Postgres: the database, two roles and one schema for every room (design.md 1).

The one thing not to break: no login of a room is a superuser, and nothing of one room can be seen
by another. Running it again only sets the passwords again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from contracts.catalog import ROOMS
from services.host.bootstrap.environment import all_roles, owner_role, runtime_role
from services.host.bootstrap.errors import ServerUnusable

CONNECT_S_MAX: Final = 10
STATEMENT_S_MAX: Final = 60
SCRAM_ITERATIONS: Final = 4_096
"""PostgreSQL's own default; passwords here are 128 random bits, so more would add nothing."""
LOCK: Final = "rienda bootstrap"
"""Two bootstrap steps at once wait for one another."""
_FORBIDDEN_ATTRIBUTES: Final = {
    "rolsuper": "NOSUPERUSER",
    "rolcreatedb": "NOCREATEDB",
    "rolcreaterole": "NOCREATEROLE",
    "rolreplication": "NOREPLICATION",
    "rolbypassrls": "NOBYPASSRLS",
}

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]


async def prepare_postgres(
    admin_url: str,
    *,
    database: str,
    passwords: Mapping[str, str],
    rooms: Sequence[str] = ROOMS,
) -> list[str]:
    """Make roles, database and schemas; return what had to be changed, empty the next time.

    `passwords` maps every role (`ledger_owner`, `ledger`, …) to its password.

    Errors: ServerUnusable.
    """
    done: list[str] = []
    with _as_unusable():
        connection = await connect(admin_url)
        try:
            await connection.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", LOCK)
            for role in all_roles(rooms):
                done += await _prepare_role(connection, role, passwords[role])
            done += await _prepare_database(connection, database, rooms)
            await _act_for_owners(connection, rooms)
        finally:
            await connection.close()
        inside = await connect(on_database(admin_url, database))
        try:
            await inside.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", LOCK)
            done += await _prepare_schemas(inside, rooms)
        finally:
            await inside.close()
    return done


async def restrict_database(
    connection: Connection, database: str, rooms: Sequence[str] = ROOMS
) -> list[str]:
    """Let only the rooms' roles (and its owner) into a database; return what was changed."""
    done: list[str] = []
    everybody = await connection.fetchval(
        """
        SELECT datacl IS NULL
            OR EXISTS (SELECT FROM aclexplode(datacl) AS acl WHERE acl.grantee = 0)
        FROM pg_database WHERE datname = $1
        """,
        database,
    )
    if everybody:
        await connection.execute(f"REVOKE ALL ON DATABASE {_name(database)} FROM PUBLIC")
        done.append(f"database {database}: closed to others")
    for role in all_roles(rooms):
        if not await connection.fetchval(
            "SELECT has_database_privilege($1, $2, 'CONNECT')", role, database
        ):
            await connection.execute(
                f"GRANT CONNECT ON DATABASE {_name(database)} TO {_name(role)}"
            )
            done.append(f"database {database}: open to {role}")
    return done


async def connect(url: str) -> Connection:
    """Connect as whoever the URL names; without `sslmode` in it, without TLS."""
    return await asyncpg.connect(
        url,
        ssl=None if "sslmode" in url else False,
        timeout=CONNECT_S_MAX,
        command_timeout=STATEMENT_S_MAX,
        server_settings={"timezone": "UTC", "application_name": "rienda bootstrap"},
    )


def on_database(url: str, database: str) -> str:
    """The same login on another database of the server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def scram_verifier(password: str, *, salt: bytes) -> str:
    """What PostgreSQL stores of a password (RFC 5803), so that the password is never sent.

    A password in a statement would stand in the server's log when the statement fails.
    """
    key = hashlib.pbkdf2_hmac("sha256", password.encode("ascii"), salt, SCRAM_ITERATIONS)
    client_key = hmac.digest(key, b"Client Key", "sha256")
    server_key = hmac.digest(key, b"Server Key", "sha256")
    stored, server, salted = (
        base64.b64encode(part).decode()
        for part in (hashlib.sha256(client_key).digest(), server_key, salt)
    )
    return f"SCRAM-SHA-256${SCRAM_ITERATIONS}:{salted}${stored}:{server}"


async def _prepare_role(connection: Connection, role: str, password: str) -> list[str]:
    done: list[str] = []
    found = await connection.fetchrow("SELECT * FROM pg_roles WHERE rolname = $1", role)
    if found is None:
        await connection.execute(f"CREATE ROLE {_name(role)} LOGIN")
        done.append(f"role {role}: made")
    else:
        wrong = [word for flag, word in _FORBIDDEN_ATTRIBUTES.items() if found[flag]]
        if not found["rolcanlogin"]:
            wrong.append("LOGIN")
        if wrong:
            await connection.execute(f"ALTER ROLE {_name(role)} {' '.join(wrong)}")
            done.append(f"role {role}: {', '.join(wrong)}")
        done += await _leave_other_roles(connection, role)
    verifier = scram_verifier(password, salt=secrets.token_bytes(16))
    await connection.execute(f"ALTER ROLE {_name(role)} PASSWORD '{verifier}'")
    return done


async def _leave_other_roles(connection: Connection, role: str) -> list[str]:
    """A room's role is a member of nothing: membership would carry another role's rights."""
    rows = await connection.fetch(
        """
        SELECT granted.rolname AS name FROM pg_auth_members AS membership
        JOIN pg_roles AS granted ON granted.oid = membership.roleid
        JOIN pg_roles AS member ON member.oid = membership.member
        WHERE member.rolname = $1
        """,
        role,
    )
    for row in rows:
        await connection.execute(f"REVOKE {_name(row['name'])} FROM {_name(role)}")
    return [f"role {role}: no member of {row['name']} any more" for row in rows]


async def _act_for_owners(connection: Connection, rooms: Sequence[str]) -> None:
    """Let a login that is no superuser (a managed server's) make schemas in the owners' names."""
    if await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user"):
        return
    for room in rooms:
        await connection.execute(f"GRANT {_name(owner_role(room))} TO CURRENT_USER")


async def _prepare_database(
    connection: Connection, database: str, rooms: Sequence[str]
) -> list[str]:
    done: list[str] = []
    if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", database):
        await connection.execute(
            f"CREATE DATABASE {_name(database)} TEMPLATE template0 ENCODING 'UTF8'"
        )
        done.append(f"database {database}: made")
    return done + await restrict_database(connection, database, rooms)


async def _prepare_schemas(connection: Connection, rooms: Sequence[str]) -> list[str]:
    done: list[str] = []
    roles = set(all_roles(rooms))
    if await connection.fetchval(_OPEN_TO_ALL, "public"):
        await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        done.append("schema public: closed")
    for room in rooms:
        owner, runtime = owner_role(room), runtime_role(room)
        found = await connection.fetchval(
            "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = $1", room
        )
        if found is None:
            await connection.execute(f"CREATE SCHEMA {_name(room)} AUTHORIZATION {_name(owner)}")
            done.append(f"schema {room}: made")
        elif found != owner:
            await connection.execute(f"ALTER SCHEMA {_name(room)} OWNER TO {_name(owner)}")
            done.append(f"schema {room}: given to {owner}")
        for stranger in await connection.fetch(_STRANGERS, room, sorted(roles - {owner, runtime})):
            await connection.execute(
                f"REVOKE ALL ON SCHEMA {_name(room)} FROM {_grantee(stranger['name'])}"
            )
            done.append(f"schema {room}: closed to {stranger['name'] or 'all'}")
        may = await connection.fetchrow(
            """
            SELECT has_schema_privilege($1, $2, 'USAGE') AS use,
                has_schema_privilege($1, $2, 'CREATE') AS make
            """,
            runtime,
            room,
        )
        if may is None or not may["use"] or may["make"]:
            await connection.execute(f"REVOKE ALL ON SCHEMA {_name(room)} FROM {_name(runtime)}")
            await connection.execute(f"GRANT USAGE ON SCHEMA {_name(room)} TO {_name(runtime)}")
            done.append(f"schema {room}: {runtime} may use it")
        done += await _prepare_shadow(connection, room)
    return done


async def _prepare_shadow(connection: Connection, room: str) -> list[str]:
    """A schema that the owner alone may enter: `rebuild` makes projections again there."""
    shadow, owner = f"{room}_shadow", owner_role(room)
    found = await connection.fetchval(
        "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = $1", shadow
    )
    if found is None:
        await connection.execute(f"CREATE SCHEMA {_name(shadow)} AUTHORIZATION {_name(owner)}")
        return [f"schema {shadow}: made"]
    if found != owner:
        await connection.execute(f"ALTER SCHEMA {_name(shadow)} OWNER TO {_name(owner)}")
        return [f"schema {shadow}: given to {owner}"]
    return []


_OPEN_TO_ALL: Final = """
    SELECT EXISTS (
        SELECT FROM pg_namespace AS schema, aclexplode(schema.nspacl) AS acl
        WHERE schema.nspname = $1 AND acl.grantee = 0
    )
"""
_STRANGERS: Final = """
    SELECT DISTINCT role.rolname AS name
    FROM pg_namespace AS schema
    CROSS JOIN aclexplode(schema.nspacl) AS acl
    LEFT JOIN pg_roles AS role ON role.oid = acl.grantee
    WHERE schema.nspname = $1 AND (acl.grantee = 0 OR role.rolname = ANY ($2))
"""
"""Who of the other rooms has a right on a schema; NULL is everybody."""


def _grantee(name: str | None) -> str:
    return "PUBLIC" if name is None else _name(name)


def _name(identifier: str) -> str:
    """Quote a name for SQL; statements that make things take no parameters."""
    return '"' + identifier.replace('"', '""') + '"'


@contextmanager
def _as_unusable() -> Iterator[None]:
    try:
        yield
    except (
        OSError,
        TimeoutError,
        asyncpg.ClientConfigurationError,
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InsufficientPrivilegeError,
        asyncpg.CannotConnectNowError,
        asyncpg.PostgresConnectionError,
    ) as error:
        said: Any = str(error) or type(error).__name__
        raise ServerUnusable("PostgreSQL", said, setting="RIENDA_BOOTSTRAP_POSTGRES_URL") from error
