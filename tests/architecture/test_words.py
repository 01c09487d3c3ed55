"""Words that no file of the repository holds: leftovers, and places of somebody's machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.tree import all_files, assert_only, relative


def apart(*parts: str) -> str:
    """Join what may not stand together in this file, which is looked at as well."""
    return "".join(parts)


TO_DO = apart("TO", "DO")
HOME = apart("/ho", "me/")
REGISTRY = apart("py", "pi.org")
LEFTOVERS = re.compile(
    rf"\b({TO_DO}|{apart('FIX', 'ME')}|{apart('X', 'XX')}|{apart('HA', 'CK')})\b"
)
MACHINE_FOLDERS = (
    HOME,
    apart("/wo", "rk/"),
    apart("/ro", "ot/"),
    apart("/Us", "ers/"),
    apart("/t", "mp/"),
)
MACHINE_PATHS = re.compile(rf"(?<![\w.:/*-])({'|'.join(MACHINE_FOLDERS)})")
REGISTRIES = re.compile(
    "|".join(
        re.escape(name)
        for name in (
            REGISTRY,
            apart("python", "hosted.org"),
            apart("registry.", "npmjs"),
            apart("--index", "-url"),
            apart("--extra", "-index-url"),
            apart("proxy.", "golang"),
        )
    )
)
LEFT: dict[str, str] = {
    "samples/generate.py": "a word of the invented sessions, not of the program",
}
MACHINES: dict[str, str] = {
    "tests/unit/host/test_rooms.py": "an invented environment, of which nothing is passed on",
}
SAMPLES_OF_SESSIONS = "samples/transcripts/"


def lines() -> Iterator[tuple[str, int, str]]:
    for path in all_files():
        for number, line in enumerate(_text(path).splitlines(), 1):
            yield relative(path), number, line


def _text(path: Path) -> str:
    # The sample sessions hold a damaged line on purpose.
    return path.read_text(errors="replace")


def test_nothing_is_left_for_later() -> None:
    """What is not done stands in an issue, where somebody sees it."""
    found = {
        name
        for name, _, line in lines()
        if LEFTOVERS.search(line) and not name.startswith(SAMPLES_OF_SESSIONS)
    }
    assert_only(found, LEFT)


def test_no_file_knows_a_machine() -> None:
    """A path of one machine works on no other, and tells who made the file."""
    found = {
        name
        for name, _, line in lines()
        if MACHINE_PATHS.search(line) and not name.startswith(SAMPLES_OF_SESSIONS)
    }
    assert_only(found, MACHINES)


def test_no_file_names_a_package_registry() -> None:
    """Where packages come from is the business of whoever installs them."""
    assert [f"{name}:{number}" for name, number, line in lines() if REGISTRIES.search(line)] == []


def test_the_patterns_find_what_they_are_for() -> None:
    assert LEFTOVERS.search(f"# {TO_DO}: later")
    assert not LEFTOVERS.search(f"{TO_DO}S")
    assert MACHINE_PATHS.search(f'"{HOME}somebody/file"')
    assert not MACHINE_PATHS.search(f"https://example.org{HOME}page")
    assert not MACHINE_PATHS.search(f"services{HOME}page")
    assert REGISTRIES.search(f"https://{REGISTRY}/simple")
