"""Rules stay rules: no clock, chance, machine or database inside a domain; SQL in one place."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from contracts.catalog import ROOMS
from tests.architecture.tree import (
    PRODUCT,
    ROOT,
    Source,
    assert_only,
    called_name,
    relative,
    rooms_sources,
    sources,
)

IMPURE_MODULES = (
    "asyncio",
    "logging",
    "os",
    "pathlib",
    "random",
    "secrets",
    "shutil",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib.request",
)
IMPURE_CALLS = ("now", "utcnow", "today", "uuid1", "uuid4", "uuid7", "open", "input", "print")
SQL_CALLS = ("execute", "executemany", "fetch", "fetchrow", "fetchval", "copy_records_to_table")
SQL = re.compile(
    r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH|CREATE|ALTER|DROP|TRUNCATE|GRANT|REVOKE)\s+\S"
)
SQL_ELSEWHERE = {
    "services/host/bootstrap/database.py": "makes database, roles and schemas before a room starts",
}
ENVIRONMENT = {
    "services/channels/connection.py": "a channel's programs say there where Rienda is",
    "services/host/cli/commands.py": "the command line; passes it on to what it starts",
    "services/host/cli/up.py": "the command line",
    "services/host/embedded/account.py": "which account the servers run under",
    "services/host/embedded/nats.py": "what the server process inherits",
    "services/host/embedded/postgres.py": "what the server process inherits",
    "services/host/embedded/process.py": "what a process inherits",
    "services/host/rooms.py": "what a room's process inherits",
    "services/host/starting.py": "whether outside servers are given",
}
PRINTING = ("services/channels/", "services/host/")
CONTRACTS_MAY_IMPORT = {"pydantic", "contracts", "__future__"}


def called(source: Source, names: tuple[str, ...]) -> list[str]:
    return [
        f"{source.path}:{node.lineno} {name}"
        for node in source.nodes()
        if isinstance(node, ast.Call) and (name := called_name(node)) in names
    ]


def texts(source: Source) -> list[tuple[int, str]]:
    """String constants that are no docstrings; the parts of f-strings included."""
    spoken = {
        id(node.value)
        for node in source.nodes()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        (node.lineno, node.value)
        for node in source.nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken
    ]


def speaks_sql(source: Source) -> bool:
    return bool(called(source, SQL_CALLS)) or any(SQL.match(text) for _, text in texts(source))


def test_a_domain_reads_no_clock_and_draws_nothing() -> None:
    """Time and ids are passed in, so that a replay decides the same and a test can say when."""
    found = [call for source in rooms_sources("domain") for call in called(source, IMPURE_CALLS)]
    assert found == []


def test_a_domain_imports_nothing_that_reaches_outside() -> None:
    """A rule that opens a file or a socket can fail for reasons that are not in its arguments."""
    found = [
        f"{source.path}: {name}"
        for source in rooms_sources("domain", "errors")
        for name in source.imports()
        if any(name == module or name.startswith(f"{module}.") for module in IMPURE_MODULES)
    ]
    assert found == []


def test_a_domain_waits_for_nothing() -> None:
    """Whatever has to be waited for was loaded before the decision."""
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncWith, ast.AsyncFor, ast.Global)
    found = [
        f"{source.path}:{node.lineno}"
        for source in rooms_sources("domain")
        for node in source.nodes()
        if isinstance(node, waiting)
    ]
    assert found == []


def test_sql_is_written_in_store_and_tables_only() -> None:
    """Who reads or changes a table is found in one file; no handler hides a statement."""
    found = set()
    for source in sources("services"):
        _, folder, *rest = source.path.split("/")
        inside = rest[0].removesuffix(".py") if rest else ""
        if folder in ROOMS and inside in ("store", "tables", "migrations"):
            continue
        if speaks_sql(source):
            found.add(source.path)
    assert_only(found, SQL_ELSEWHERE)


def test_the_contracts_import_pydantic_only() -> None:
    """Whoever speaks with Rienda takes the contracts along; they may not bring a driver."""
    standard = set(sys.stdlib_module_names)
    found = {
        f"{source.path}: {name}"
        for source in sources("contracts")
        for name in source.imports()
        if name.partition(".")[0] not in CONTRACTS_MAY_IMPORT | standard
    }
    assert found == set()


def test_the_environment_is_read_at_the_edge() -> None:
    """A room is configured by its settings alone; what is read elsewhere nobody can list."""
    found = {
        source.path
        for source in sources(*PRODUCT)
        for node in source.nodes()
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert_only(found, ENVIRONMENT)


def test_only_command_lines_print() -> None:
    """A room's words are log lines; a print is lost among them and has no fields."""
    found = [
        call
        for source in sources(*PRODUCT)
        if not source.path.startswith(PRINTING)
        for call in called(source, ("print",))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_sql"),
    [
        ("SELECT 1", True),
        ("\n        WITH a AS (SELECT 1) SELECT * FROM a", True),
        ("DELETE FROM t", True),
        ("UPDATE t SET a = 1", True),
        ("Select one of them", False),
        ("UPDATED", False),
        ("with care", False),
    ],
)
def test_knows_sql_when_it_sees_it(text: str, is_sql: bool) -> None:
    assert bool(SQL.match(text)) is is_sql


def test_these_rules_look_at_files() -> None:
    """A rule over no file holds always."""
    for room in ROOMS:
        assert (ROOT / "services" / room).is_dir()
    assert rooms_sources("domain")
    assert all(relative(ROOT / source.path) == source.path for source in sources("contracts"))
