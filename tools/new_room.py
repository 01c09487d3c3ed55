"""`python tools/new_room.py NAME`, by `make room NAME=`: a room with every file that it must have.

The one thing not to break: what it writes passes `make check` as it is, so that the first thing
that fails in a new room is what somebody wrote into it.
"""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

ROOT: Final = Path(__file__).resolve().parents[1]
TEMPLATES: Final = Path(__file__).with_name("templates") / "room"
PLACES: Final = {
    "service": "services/{room}",
    "unit": "tests/unit/{room}",
    "integration": "tests/integration/{room}",
}
SUFFIX: Final = ".tmpl"
CATALOG: Final = "contracts/catalog.py"
IMPORT_RULES: Final = ".importlinter"
NAME: Final = re.compile(r"[a-z]{2,30}\Z")
"""One token of a subject, a schema, a role and a module (contracts/catalog.py)."""
TAKEN: Final = ("channel", "channels", "directory", "room", "host", "bootstrap", "dead", "public")
"""Names that mean something else in a subject, in `services` or in PostgreSQL."""
FIRST_PORT: Final = 8101
TOOL_S_MAX: Final = 120

LEFT_TO_DO: Final = """\
services/{room} is a room: it migrates, serves and says nothing yet. What is left to do:

1. services/{room}/README.md: what it owns and what it does not; its lists are compared.
2. contracts/{room}.py: what it says and answers; EVENTS, QUESTIONS and DURABLES in the catalogue
   (a durable per stream that it hears); then `make generate` and a minimal and a full sample each.
3. contracts/catalog.py: `asked_by` of the questions that it asks other rooms; its user and its
   subjects in tests/integration/bus/matrix.json.
4. services/host/rooms.py: PARTS, if it runs as more than one process.
5. compose.yaml and Dockerfile: containers that migrate and serve, a volume each (tests/e2e).
6. services/{room}/migrations: its tables, in 0001 as long as that is not released.
"""


class RoomRefused(Exception):
    """No such room can be made; the message says why."""


def check_name(name: str, root: Path = ROOT) -> None:
    """Refuse a name that could not be told apart.

    Raises:
        RoomRefused: the name is no token, means something else, or is taken.
    """
    if not NAME.match(name):
        raise RoomRefused(f"{name!r}: a room's name is 2 to 30 lower case letters")
    if name in TAKEN or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        raise RoomRefused(f"{name!r} means something else here: take another name")
    if (root / "services" / name).exists():
        raise RoomRefused(f"services/{name} is there already")


def rendered(name: str, *, port: int) -> dict[str, str]:
    """Every file of a new room by its path in the repository."""
    words = {"room": name, "Room": name.capitalize(), "ROOM": name.upper(), "port": str(port)}
    files: dict[str, str] = {}
    for kind, place in PLACES.items():
        folder = TEMPLATES / kind
        for path in sorted(folder.rglob(f"*{SUFFIX}")):
            below = path.relative_to(folder).as_posix().removesuffix(SUFFIX)
            target = f"{place.format(room=name)}/{_fill(below, words)}"
            files[target] = _fill(path.read_text(), words)
    return files


def _fill(text: str, words: Mapping[str, str]) -> str:
    return Template(text).substitute(words)


def rooms_of(catalog: str) -> list[str]:
    """The rooms that a text of the catalogue names, in order.

    Raises:
        RoomRefused: the catalogue does not look as expected.
    """
    found = re.search(r"^ROOMS: Final = \(([^)]*)\)$", catalog, flags=re.MULTILINE)
    if found is None:
        raise RoomRefused(f"{CATALOG} has no line `ROOMS: Final = (…)`")
    return re.findall(r'"([a-z]+)"', found[1])


def with_room_in_catalog(text: str, name: str) -> str:
    """Name a room in `ROOMS` and `Producer` and give it a stream.

    Raises:
        RoomRefused: the catalogue does not look as expected.
    """
    rooms = ", ".join(f'"{room}"' for room in (*rooms_of(text), name))
    text = _replace(text, r"^ROOMS: Final = \([^)]*\)$", f"ROOMS: Final = ({rooms})")
    text = _replace(text, r'^(Producer = Literal\[[^\]]*)"room"\]', rf'\g<1>"{name}", "room"]')
    stream = (
        f'    StreamSpec("{name.upper()}", ("rienda.event.*.{name}.>",), "file", ROOM_AGE_S, '
        "512 * _MIB),\n"
    )
    return _replace(text, r'^(?=    StreamSpec\(\s*"DEAD")', stream)


def with_room_in_import_rules(text: str, name: str) -> str:
    """Name a room wherever the import rules list rooms.

    Raises:
        RoomRefused: the rules do not look as expected.
    """
    text = _replace(text, r"^(    channels \| .*)$", rf"\1 | {name}")
    for section in ("host", "room"):
        pattern = (
            rf"^(\[importlinter:contract:{section}\]\n(?:(?!\[).*\n)*?"
            r"(?:forbidden_modules|containers) =\n(?:    services\.[a-z]+\n)+)"
        )
        text = _replace(text, pattern, rf"\g<1>    services.{name}\n")
    return text


def _replace(text: str, pattern: str, replacement: str) -> str:
    changed, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
    if count != 1:
        raise RoomRefused(f"the place for a new room is found {count} times: {pattern}")
    return changed


def make_room(name: str, root: Path = ROOT) -> list[str]:
    """Write a room's files and name it in the catalogue and the import rules; answer the paths.

    Raises:
        RoomRefused: nothing was written.
    """
    check_name(name, root)
    catalog, rules = (root / CATALOG).read_text(), (root / IMPORT_RULES).read_text()
    files = rendered(name, port=FIRST_PORT + len(rooms_of(catalog)))
    files[CATALOG] = with_room_in_catalog(catalog, name)
    files[IMPORT_RULES] = with_room_in_import_rules(rules, name)
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return sorted(files)


def finishing_steps() -> Iterator[list[str]]:
    """What the changed catalogue asks for: its own format, and the generated pages."""
    yield [sys.executable, "-m", "ruff", "format", "--quiet", CATALOG]
    yield [sys.executable, "tools/contracts.py"]


def main(name: Annotated[str, typer.Argument(help="Lower case letters, e.g. approvals.")]) -> None:
    """Make a new room."""
    try:
        paths = make_room(name)
    except RoomRefused as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    for command in finishing_steps():
        subprocess.run(command, cwd=ROOT, check=True, timeout=TOOL_S_MAX)  # noqa: S603 - our tools
    for path in paths:
        typer.echo(path)
    typer.echo(f"\n{LEFT_TO_DO.format(room=name)}")


if __name__ == "__main__":
    typer.run(main)
