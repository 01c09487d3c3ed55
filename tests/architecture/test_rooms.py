"""Every room has the same files, says in its README what it does, and does what it says."""

from __future__ import annotations

import ast
import configparser
import re

import pytest

from contracts.catalog import EVENTS, QUESTIONS, ROOMS
from tests.architecture.tree import (
    NO_ROOMS,
    PRODUCT,
    ROOT,
    assert_only,
    called_name,
    room_sources,
    sources,
)

SERVICES = ROOT / "services"
MODULES = (
    "app",
    "settings",
    "handlers",
    "requests",
    "domain",
    "store",
    "tables",
    "errors",
    "ops",
)
"""A file each, or a package of the same name where the file would pass 400 lines (design.md 1)."""
FURTHER = {"README.md", "__init__.py", "__main__.py", "migrations"}
DOORS = {"gateway": ({"http"}, {"console"})}
"""What a room has besides: required, and allowed."""
HEADINGS = ["Owns", "Does not own", "Hears", "Says", "Answers", "Invariants", "Runbook"]
SAID_THROUGH = {
    "shared.audit": "audit_recorded",
    "shared.noticing": "security_noticed",
    "shared.command": "audit_recorded",
}
"""Modules of the floor that say an event for the room that calls them."""
FURTHER_HANDLERS = {
    "services/ledger/handlers/channel.py: on_usage_seen": "a report's sign of life, before the "
    "whole batch is priced by on_usage_reported",
}
BATCH_HANDLER = "on_batch"


def said_by(room: str) -> set[str]:
    """What a room says: its own events, and those of any room that its code makes."""
    own = {"directory", "gateway"} if room == "gateway" else {room}
    any_room = {event.model.__name__: event.name for event in EVENTS if event.producer == "room"}
    said = {event.name for event in EVENTS if event.producer in own}
    for source in room_sources(room):
        said |= {
            any_room[name] for node in source.nodes() if (name := called_name(node)) in any_room
        }
        for imported in source.imports():
            said |= {event for module, event in SAID_THROUGH.items() if imported.startswith(module)}
    return said


def heard_by(room: str) -> set[str]:
    return {event.name for event in EVENTS if room in event.hearers}


def answered_by(room: str) -> set[str]:
    return {question.name for question in QUESTIONS if question.room == room}


def functions_of(room: str, module: str, prefix: str) -> dict[str, str]:
    """Functions and methods of a module whose name starts so, with where they stand."""
    return {
        function.name: source.path
        for source in room_sources(room, module)
        for _, function in source.functions()
        if function.name.startswith(prefix)
    }


def sections(room: str) -> dict[str, str]:
    """A README's parts by their heading of the second level."""
    path = SERVICES / room / "README.md"
    if not path.exists():
        pytest.fail(f"services/{room}/README.md is missing")
    parts = re.split(r"^## (.+)$", path.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


NAMES_FIRST = re.compile(r"(?:[-*|] )?((?:`[a-z_]+`(?:, |,$)?)+)")


def listed(text: str) -> set[str]:
    """The names that the lines of a section begin with: a list, a table, or names and commas."""
    lines = [match[1] for line in text.splitlines() if (match := NAMES_FIRST.match(line))]
    return {name for line in lines for name in re.findall(r"`([a-z_]+)`", line)}


def test_names_are_found_however_they_are_listed() -> None:
    assert listed("- `run_started`: its first word\n* `a`") == {"run_started", "a"}
    assert listed("| event | when |\n|---|---|\n| `run_started` | `never` |") == {"run_started"}
    assert listed("`run_started`, `run_finished`,\n`a`") == {"run_started", "run_finished", "a"}
    assert listed("Nothing yet. Over HTTP: see `docs`.") == set()


def test_the_services_are_the_rooms_and_what_runs_and_feeds_them() -> None:
    """A folder that is no room would escape every rule about rooms."""
    found = {path.name for path in SERVICES.iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert found == {*ROOMS, *NO_ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_the_files_of_every_room(room: str) -> None:
    """Knowing one room is knowing all: an empty file costs nothing, a strange one a search."""
    required, allowed = DOORS.get(room, (set(), set()))
    found = {path.name for path in (SERVICES / room).iterdir() if path.name != "__pycache__"}
    modules = {name for name in MODULES if f"{name}.py" in found or name in found}
    both = {name for name in MODULES if f"{name}.py" in found and name in found}
    names = {name for name in found if name.removesuffix(".py") not in MODULES}
    assert modules == set(MODULES)
    assert both == set(), "a module is a file or a package"
    assert FURTHER | required <= names, "missing"
    assert names <= FURTHER | required | allowed, "no file of a room"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_carries_its_migrations(room: str) -> None:
    """Without an env.py Alembic does not take the folder; without a version nothing is served."""
    folder = SERVICES / room / "migrations"
    assert (folder / "env.py").exists()
    assert any((folder / "versions").glob("0001_*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_readme_has_the_seven_headings(room: str) -> None:
    """Whoever operates a room at night looks for the same words in every one."""
    assert list(sections(room)) == HEADINGS
    assert [name for name, text in sections(room).items() if not text.strip()] == []


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize(
    ("heading", "names"), [("Hears", heard_by), ("Says", said_by), ("Answers", answered_by)]
)
def test_a_readme_lists_what_the_catalogue_says(room: str, heading: str, names: object) -> None:
    """A list that nobody compares describes last year's room."""
    assert callable(names)
    assert listed(sections(room).get(heading, "")) == names(room)


@pytest.mark.parametrize("room", ROOMS)
def test_every_event_that_is_heard_has_its_function(room: str) -> None:
    """`on_<event>` is how a reader finds who hears an event: one search, one answer each."""
    found = functions_of(room, "handlers", "on_")
    expected = {f"on_{name}" for name in heard_by(room)}
    assert expected <= set(found)
    further = {
        f"{path}: {name}"
        for name, path in found.items()
        if name not in expected and name != BATCH_HANDLER
    }
    own = f"services/{room}/"
    assert_only(further, {key: why for key, why in FURTHER_HANDLERS.items() if key.startswith(own)})


@pytest.mark.parametrize("room", ROOMS)
def test_every_question_has_its_function(room: str) -> None:
    """As for events: `answer_<question>`, in `requests`, and nothing that is never asked."""
    found = functions_of(room, "requests", "answer_")
    assert set(found) == {f"answer_{name}" for name in answered_by(room)}


def test_only_the_producer_makes_an_event() -> None:
    """A second maker of the same event would say other words about the same thing."""
    owners = {"channel": ("channels", "gateway"), "directory": ("gateway",), "room": ROOMS}
    allowed = {
        event.model.__name__: owners.get(event.producer, (event.producer,)) for event in EVENTS
    }
    strangers = [
        f"{source.path}: {name}"
        for source in sources("services")
        for node in source.nodes()
        if (name := called_name(node)) in allowed
        and source.path.split("/")[1] not in allowed[name or ""]
    ]
    assert strangers == []


def test_every_event_of_a_producer_is_made_by_it() -> None:
    """An event in the catalogue that no code says is a promise that nobody keeps."""
    made = {called_name(node) for source in sources(*PRODUCT) for node in source.nodes()}
    imported = {name for source in sources("services") for name in source.imports()}
    unsaid = [
        event.name
        for event in EVENTS
        if event.model.__name__ not in made
        and not any(f".{event.model.__name__}" in name for name in imported)
    ]
    assert unsaid == []


def test_the_import_rules_name_every_room() -> None:
    """`.importlinter` lists rooms by name; one that is missing there obeys no rule."""
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter")
    containers = rules["importlinter:contract:room"]["containers"].split()
    assert containers == [f"services.{room}" for room in ROOMS]


def test_settings_are_read_by_the_assembly_alone() -> None:
    """A rule that reads configuration cannot be called with other values; it is passed in."""
    readers = {
        source.path
        for room in ROOMS
        for source in room_sources(room)
        if any(name.startswith(f"services.{room}.settings") for name in source.imports())
    }
    assembly = {f"services/{room}/{name}.py" for room in ROOMS for name in ("app", "ops")}
    assert readers <= assembly


def test_a_package_of_a_room_keeps_its_first_file_empty() -> None:
    """A name that is exported twice has two places to be looked for."""
    filled = [
        source.path
        for room in ROOMS
        for source in room_sources(room)
        if source.path.endswith("__init__.py")
        and any(not _is_docstring(node) for node in source.tree.body)
    ]
    assert filled == []


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
