"""A new room passes every check as it is made."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.catalog import ROOMS
from tools.new_room import (
    CATALOG,
    IMPORT_RULES,
    ROOT,
    RoomRefused,
    check_name,
    make_room,
    rendered,
    rooms_of,
    with_room_in_catalog,
    with_room_in_import_rules,
)

COPIED = ("contracts", "shared", "services", "tools", "tests", "samples", "docs")
COPIED_FILES = ("pyproject.toml", IMPORT_RULES)
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".*cache", "*.egg-info")
TYPES_KNOWN = ".mypy_cache"
TOOL_S_MAX = 180
"""Generous: a machine may be shared. It decides no verdict but "it never ended"."""
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the repository in which the room `sample` was made."""
    root = tmp_path_factory.mktemp("tree") / "rienda"
    root.mkdir()
    for folder in COPIED:
        shutil.copytree(ROOT / folder, root / folder, ignore=NOT_COPIED)
    for name in COPIED_FILES:
        shutil.copy2(ROOT / name, root / name)
    if (ROOT / TYPES_KNOWN).is_dir():  # What mypy has read of the packages, it need not again.
        shutil.copytree(ROOT / TYPES_KNOWN, root / TYPES_KNOWN)
    run(root, sys.executable, "tools/new_room.py", "sample")
    yield root
    shutil.rmtree(root)


def run(root: Path, *command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=TOOL_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


NEW = ("services/sample", "tests/unit/sample", "tests/integration/sample", "contracts")


def test_its_style_is_the_houses(tree: Path) -> None:
    run(tree, sys.executable, "-m", "ruff", "check", "--no-cache", *NEW)
    run(tree, sys.executable, "-m", "ruff", "format", "--no-cache", "--check", *NEW)


def test_its_types_hold(tree: Path) -> None:
    run(tree, sys.executable, "-m", "mypy", "-p", "services.sample")


def test_its_imports_obey_the_rules(tree: Path) -> None:
    run(tree, BIN / "lint-imports", "--no-cache")


def test_it_obeys_the_architecture(tree: Path) -> None:
    """The room's own verdicts, and those that look at all rooms together."""
    tests = ("tests/architecture", "tests/contract/test_catalog.py", "tests/unit/sample")
    chosen = "sample or not ledger and not gateway"
    run(tree, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *tests, "-k", chosen)


def test_its_pages_are_generated(tree: Path) -> None:
    run(tree, sys.executable, "tools/contracts.py", "--check")
    assert "`rienda.event.*.sample.>`" in (tree / "docs" / "events.md").read_text()


def test_it_has_the_words_of_every_room(tree: Path) -> None:
    said = run(tree, sys.executable, "-m", "services.sample", "--help")
    assert all(command in said for command in ("serve", "migrate", "health"))


def test_a_second_one_of_the_same_name_is_refused(tree: Path) -> None:
    with pytest.raises(RoomRefused, match="there already"):
        make_room("sample", tree)


def test_a_further_one_is_made_beside_it(tree: Path) -> None:
    catalog = with_room_in_catalog((tree / CATALOG).read_text(), "further")
    assert rooms_of(catalog) == [*ROOMS, "sample", "further"]
    rules = with_room_in_import_rules((tree / IMPORT_RULES).read_text(), "further")
    assert rules.count("services.further") == 2
    assert " | sample | further\n" in rules


@pytest.mark.parametrize(
    "name", ["", "a", "Room", "my_room", "my-room", "room1", "channel", "host", "class", "json"]
)
def test_a_name_that_could_be_mistaken_is_refused(name: str) -> None:
    with pytest.raises(RoomRefused):
        check_name(name)


def test_an_existing_room_is_never_overwritten() -> None:
    with pytest.raises(RoomRefused, match="there already"):
        check_name(ROOMS[0])


def test_nothing_of_a_template_is_left_over() -> None:
    for path, text in rendered("sample", port=8199).items():
        assert "$" not in path + text, path
        assert "Sample" not in path


def test_a_catalogue_that_looks_otherwise_is_left_alone() -> None:
    with pytest.raises(RoomRefused, match="ROOMS"):
        with_room_in_catalog("ROOMS = []\n", "sample")
    with pytest.raises(RoomRefused, match="0 times"):
        with_room_in_import_rules("[importlinter]\n", "sample")
