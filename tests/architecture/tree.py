"""The repository as the architecture tests see it: its files, parsed once.

The one thing not to break: what is ignored here is looked at by no rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from contracts.catalog import ROOMS

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("contracts", "shared", "services")
EVERYTHING = (*PRODUCT, "tools", "tests", "samples")
NO_ROOMS = ("channels", "host")
"""Folders of `services` that are no rooms (design.md 1)."""
NOT_OURS = ("__pycache__", "build", "dist", "node_modules")
BINARY = (".png", ".ico", ".woff2", ".pyc")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: str
    """Relative to the repository, with slashes."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def nodes(self) -> Iterator[ast.AST]:
        return ast.walk(self.tree)

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function with its dotted name, methods and inner ones included."""
        return _functions(self.tree, "")

    def imports(self) -> Iterator[str]:
        """Dotted names that are imported; `from a import b` gives `a.b`."""
        for node in self.nodes():
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _functions(node: ast.AST, outer: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        name = outer
        if isinstance(child, Function | ast.ClassDef):
            name = f"{outer}.{child.name}" if outer else child.name
        if isinstance(child, Function):
            yield name, child
        yield from _functions(child, name)


def files(*folders: str) -> list[Path]:
    """Every file of these folders that is ours."""
    return [path for folder in folders for path in _walk(ROOT / folder)]


def all_files() -> list[Path]:
    """Every file of the repository that is ours, hidden folders of tools left out."""
    return list(_walk(ROOT))


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            hidden = path.name.startswith(".") and path.name != ".ci"
            if not hidden and path.name not in NOT_OURS and path.suffix != ".egg-info":
                yield from _walk(path)
        elif path.suffix not in BINARY and path.name != ".git":  # A file in a further work tree.
            yield path


@cache
def sources(*folders: str) -> tuple[Source, ...]:
    """The Python files of these folders, parsed on demand and only once."""
    return tuple(_read(path) for path in files(*folders) if path.suffix == ".py")


@cache
def _read(path: Path) -> Source:
    return Source(relative(path), path.read_text())


def relative(path: Path) -> str:
    """A path as these tests name it."""
    return path.relative_to(ROOT).as_posix()


def room_sources(room: str, *modules: str) -> list[Source]:
    """The files of a room, or those of some of its modules, whether file or package."""
    found = sources(f"services/{room}")
    if not modules:
        return list(found)
    stems = [f"services/{room}/{module}" for module in modules]
    return [
        source
        for source in found
        if any(source.path == f"{stem}.py" or source.path.startswith(f"{stem}/") for stem in stems)
    ]


def rooms_sources(*modules: str) -> list[Source]:
    """As `room_sources`, of every room."""
    return [source for room in ROOMS for source in room_sources(room, *modules)]


def called_name(node: ast.AST) -> str | None:
    """The last name of what a call calls: `f` of `f(…)` and of `a.b.f(…)`."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id
        if isinstance(node.func, ast.Attribute):
            return node.func.attr
    return None


def assert_only(found: Iterable[str], allowed: Mapping[str, str]) -> None:
    """Fail for what is not allowed, and for what is allowed and does not occur any more."""
    seen = set(found)
    assert sorted(seen - set(allowed)) == [], "against the rule"
    assert sorted(set(allowed) - seen) == [], "allowed, but there is no such thing: take it out"
