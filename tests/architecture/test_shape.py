"""Sizes, names and the handling of errors: what keeps every file readable at one sitting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.tree import EVERYTHING, PRODUCT, Function, Source, assert_only, sources

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 6
NAMES_OF_NOTHING = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}
MORE_PARAMETERS = "PLR0913"
BLIND_HANDLERS = {
    "shared/consume.py: Consumer.read_ahead": "logs it; the same reading fails again when handled",
    "shared/group.py: Group._decide_group": "hands the error to everybody who waits for the group",
    "shared/together.py: Together._serve": "hands the error to everybody who waits for the lookup",
    "shared/questions.py: Responder._respond": "logs it with its stack and answers a typed error",
}
MONEY = re.compile(r"(usd|cost|price|amount|money|spend|spent|budget)", re.IGNORECASE)
MONEY_AS_FLOAT: dict[str, str] = {}
FLOOR_NOUNS = (
    "entry",
    "entries",
    "spend",
    "budget",
    "approval",
    "milestone",
    "notification",
    "retention",
)
FLOOR_WORDS = {
    "shared/audit.py: entry": "an audit entry: the floor numbers it for every room alike",
    "shared/repair.py: entry": "an operator's repair is an audit entry, too",
}


@pytest.mark.parametrize("folder", EVERYTHING)
def test_a_file_has_at_most_400_lines(folder: str) -> None:
    """A longer file is a package that was not made yet."""
    long = {source.path: len(source.lines) for source in sources(folder)}
    assert {path: lines for path, lines in long.items() if lines > FILE_LINES_MAX} == {}


@pytest.mark.parametrize("folder", EVERYTHING)
def test_a_function_has_at_most_60_lines(folder: str) -> None:
    """A screen is a screen."""
    found = [
        f"{source.path}: {name} has {lines}"
        for source in sources(folder)
        for name, function in source.functions()
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert found == []


def parameters_of(function: Function) -> list[str]:
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


@pytest.mark.parametrize("folder", PRODUCT)
def test_a_function_takes_at_most_six_parameters(folder: str) -> None:
    """Seven values that go together are a value of their own; an exception says why in place."""
    found = [
        f"{source.path}: {name} takes {count}"
        for source in sources(folder)
        for name, function in source.functions()
        if (count := len(parameters_of(function))) > PARAMETERS_MAX
        and MORE_PARAMETERS not in head_of(source, function)
    ]
    assert found == []


def head_of(source: Source, function: Function) -> str:
    """The text from `def` to the first line of the body."""
    return "\n".join(source.lines[function.lineno - 1 : function.body[0].lineno])


def test_no_module_is_named_after_nothing() -> None:
    """`utils` is where things go that nobody could find again."""
    found = [
        source.path
        for source in sources(*EVERYTHING)
        if NAMES_OF_NOTHING & {part.removesuffix(".py") for part in source.path.split("/")}
    ]
    assert found == []


def blind_handlers(
    node: ast.AST, place: str = "(module)"
) -> Iterator[tuple[str, ast.ExceptHandler]]:
    """Handlers of everything, with the function that they stand in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ExceptHandler) and _is_blind(child):
            yield place, child
        inner = place
        if isinstance(child, Function | ast.ClassDef):
            inner = child.name if place == "(module)" else f"{place}.{child.name}"
        yield from blind_handlers(child, inner)


def _is_blind(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))
        for kind in kinds
    )


def test_whoever_catches_everything_lets_the_unknown_go_on() -> None:
    """An error that is swallowed is found weeks later in the figures."""
    found = {
        f"{source.path}: {name}"
        for source in sources(*PRODUCT)
        for name, handler in blind_handlers(source.tree)
        if not any(isinstance(node, ast.Raise) for part in handler.body for node in ast.walk(part))
    }
    assert_only(found, BLIND_HANDLERS)


def test_sees_a_blind_handler_wherever_it_stands() -> None:
    text = """
try: pass
except Exception: pass
class A:
    def b(self):
        try: pass
        except (ValueError, BaseException): pass
        def c():
            try: pass
            except: pass
        try: pass
        except ValueError: pass
"""
    assert [place for place, _ in blind_handlers(ast.parse(text))] == ["(module)", "A.b", "A.b.c"]


def annotated(source: Source) -> Iterator[tuple[str, ast.expr]]:
    """Names with the annotation that they carry: fields, variables, parameters, results."""
    for node in source.nodes():
        if isinstance(node, ast.AnnAssign):
            target = node.target
            name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
            yield name, node.annotation
        elif isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, node.annotation
        elif isinstance(node, Function) and node.returns is not None:
            yield node.name, node.returns


def test_no_float_comes_near_money() -> None:
    """0.1 + 0.2 is not 0.3: an exact bill is made of integers and decimals (design.md 3)."""
    found = {
        f"{source.path}: {name}"
        for source in sources(*PRODUCT)
        for name, annotation in annotated(source)
        if MONEY.search(name)
        and any(isinstance(node, ast.Name) and node.id == "float" for node in ast.walk(annotation))
    }
    assert_only(found, MONEY_AS_FLOAT)


def test_nothing_about_money_is_made_a_float() -> None:
    """The same, for a value that is turned into one on its way."""
    found = [
        f"{source.path}:{node.lineno}"
        for source in sources(*PRODUCT)
        for node in source.nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "float"
        and any(MONEY.search(ast.unparse(argument)) for argument in node.args)
    ]
    assert found == []


def identifiers(source: Source) -> Iterator[str]:
    for node in source.nodes():
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, Function | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.alias):
            yield from (node.asname or node.name).split(".")


def words_of(identifier: str) -> set[str]:
    """`AuditEntry` and `audit_entry` are the words audit and entry."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def test_the_floor_knows_no_business() -> None:
    """A shared module that learns what an entry is has to change with every room."""
    found = {
        f"{source.path}: {noun}"
        for source in sources("shared")
        for identifier in identifiers(source)
        for noun in words_of(identifier) & set(FLOOR_NOUNS)
    }
    assert_only(found, FLOOR_WORDS)


def test_an_identifier_falls_into_words() -> None:
    assert words_of("AuditEntry") == words_of("audit_entry") == {"audit", "entry"}
    assert words_of("_HTTPEntry") >= {"entry"}
    assert words_of("reentry") == {"reentry"}
