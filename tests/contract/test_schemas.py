"""The committed schemas are the code's, released ones only grow, and the checker knows a break."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from contracts.catalog import EVENTS, QUESTIONS
from contracts.ledger import TokenSums
from contracts.types import BIGINT_MAX, BIGINT_MIN
from tools import contracts, release, wire
from tools.compatibility import digest_of, find_breaks, find_question_breaks
from tools.release import Frozen, NotProven, freeze, sample_breaks

RELEASED: dict[str, Any] = {
    "type": "object",
    "title": "Order",
    "required": ["id", "lines", "note"],
    "$defs": {
        "Line": {
            "type": "object",
            "required": ["sku"],
            "properties": {
                "sku": {"type": "string", "pattern": "^[a-z]{1,8}$"},
                "count": {"type": "integer", "minimum": 0, "maximum": 10, "default": 1},
            },
        },
        "State": {"type": "string", "enum": ["open", "done"]},
        "Origin": {
            "type": "object",
            "properties": {"kind": {"const": "shop", "type": "string"}},
        },
    },
    "properties": {
        "id": {"type": "string", "title": "Id", "description": "of the shop"},
        "lines": {"type": "array", "maxItems": 9, "items": {"$ref": "#/$defs/Line"}},
        "note": {"anyOf": [{"type": "string", "maxLength": 99}, {"type": "null"}]},
        "state": {"$ref": "#/$defs/State", "default": "open"},
        "title": {"type": "string", "default": ""},
        "origin": {"$ref": "#/$defs/Origin", "default": {"kind": "shop"}},
        "first": {"anyOf": [{"$ref": "#/$defs/Line"}, {"type": "null"}], "default": None},
        "counts": {
            "type": "object",
            "maxProperties": 5,
            "additionalProperties": {"type": "integer"},
            "default": {},
        },
    },
}
SHELLS = ("$defs", "properties", "anyOf")
SUMS = {
    "overrun_noted.v1.OverrunNoted.amount_nanousd",
    "overrun_noted.v1.OverrunNoted.held_nanousd",
    "overrun_noted.v1.OverrunNoted.spent_nanousd",
    "run_changed.v1.Totals.cost_nanousd",
    *(f"run_changed.v1.TokenSums.{name}" for name in TokenSums.model_fields),
    *(
        f"{key}.{name}_nanousd"
        for key in ("cap_warned.v1.CapWarned", "cap_stopped.v1.CapStopped")
        for name in ("spent", "held")
    ),
}
"""Sums may pass 64 bits and are NUMERIC in tables (design.md 3, *Money*)."""
Edit = Callable[[dict[str, Any]], object]


def edited(edit: Edit) -> dict[str, Any]:
    schema = copy.deepcopy(RELEASED)
    edit(schema)
    return schema


def line(schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = schema["$defs"]["Line"]["properties"]
    return properties


GROWTH: dict[str, Edit] = {
    "nothing": lambda s: None,
    "a new optional property": lambda s: s["properties"].update(tax={"type": "integer"}),
    "a new optional property of a part": lambda s: line(s).update(
        color={"type": "string", "default": "red"}
    ),
    "a description": lambda s: s["properties"]["id"].update(description="of the whole shop"),
    "a title": lambda s: s.update(title="Purchase"),
    "a new word of an enumeration": lambda s: s["$defs"]["State"]["enum"].append("lost"),
    "a single word becomes an enumeration": lambda s: s["$defs"]["Origin"]["properties"].update(
        kind={"enum": ["shop", "fair"], "type": "string"}
    ),
    "a wider upper limit": lambda s: line(s)["count"].update(maximum=20),
    "a lower limit that is gone": lambda s: line(s)["count"].pop("minimum"),
    "longer texts among alternatives": lambda s: s["properties"]["note"]["anyOf"][0].update(
        maxLength=200
    ),
    "a default that grew with its model": lambda s: (
        s["$defs"]["Origin"]["properties"].update(place={"type": "string", "default": ""}),
        s["properties"]["origin"].update(default={"kind": "shop", "place": ""}),
    ),
    "alternatives in another order": lambda s: s["properties"]["note"]["anyOf"].reverse(),
    "a definition under another name": lambda s: (
        s["$defs"].update(Row=s["$defs"].pop("Line")),
        s["properties"]["lines"].update(items={"$ref": "#/$defs/Row"}),
        s["properties"]["first"]["anyOf"][0].update({"$ref": "#/$defs/Row"}),
    ),
}
BREAKS: dict[str, tuple[Edit, str]] = {
    "removed": (lambda s: s["properties"].pop("id"), "$.id: removed"),
    "renamed": (
        lambda s: s["properties"].update(number=s["properties"].pop("id")),
        "$.id: removed (or renamed)",
    ),
    "removed though it is called title": (lambda s: s["properties"].pop("title"), "$.title"),
    "retyped": (
        lambda s: s["properties"].update(id={"type": "integer"}),
        "$.id: retyped from string to integer",
    ),
    "newly required": (lambda s: s["required"].append("state"), "$.state: newly required"),
    "a new property that is required": (
        lambda s: (s["properties"].update(tax={"type": "integer"}), s["required"].append("tax")),
        "$.tax: newly required",
    ),
    "no longer required": (lambda s: s["required"].remove("note"), "$.note: no longer required"),
    "null is refused now": (
        lambda s: s["properties"]["note"]["anyOf"].pop(),
        "$.note: no longer takes null",
    ),
    "null is allowed now": (
        lambda s: s["properties"].update(id={"anyOf": [{"type": "string"}, {"type": "null"}]}),
        "$.id: retyped between one kind and several",
    ),
    "one more alternative": (
        lambda s: s["properties"]["note"]["anyOf"].append({"type": "integer"}),
        "$.note: newly takes integer",
    ),
    "a word is gone": (
        lambda s: s["$defs"]["State"]["enum"].remove("done"),
        '$.state: no longer takes "done"',
    ),
    "an enumeration became free text": (
        lambda s: s["$defs"]["State"].pop("enum"),
        "$.state: retyped from an enumeration",
    ),
    "free text became an enumeration": (
        lambda s: s["properties"]["id"].update(enum=["a"]),
        "$.id: tightened",
    ),
    "a lower maximum": (lambda s: line(s)["count"].update(maximum=9), "maximum from 10 to 9"),
    "a higher minimum": (lambda s: line(s)["count"].update(minimum=1), "minimum from 0 to 1"),
    "a limit where there was none": (
        lambda s: s["properties"]["id"].update(maxLength=10),
        "$.id: tightened, maxLength",
    ),
    "a shorter text among alternatives": (
        lambda s: s["properties"]["note"]["anyOf"][0].update(maxLength=98),
        "$.note: tightened",
    ),
    "another pattern": (lambda s: line(s)["sku"].update(pattern="^[a-z]{1,9}$"), "pattern"),
    "a format": (lambda s: s["properties"]["id"].update(format="uuid"), "format"),
    "fewer items": (lambda s: s["properties"]["lines"].update(maxItems=8), "maxItems"),
    "another default": (
        lambda s: line(s)["count"].update(default=2),
        "an absent key meant 1 and would mean 2",
    ),
    "a part of an alternative": (
        lambda s: s["properties"]["first"].update(
            anyOf=[{"type": "object", "properties": {}}, {"type": "null"}]
        ),
        "$.first.sku: removed",
    ),
    "other values of a map": (
        lambda s: s["properties"]["counts"].update(additionalProperties={"type": "string"}),
        "$.counts.additionalProperties: retyped",
    ),
    "unknown keys are refused now": (
        lambda s: s.update(additionalProperties=False),
        "$.additionalProperties",
    ),
    "a keyword without a rule": (
        lambda s: s["properties"]["lines"].update(uniqueItems=True),
        "keyword uniqueItems changed",
    ),
}


def test_the_committed_files_are_what_the_code_says() -> None:
    assert contracts.find_problems() == []


def test_every_event_and_question_has_its_schema_file() -> None:
    expected = {f"{event.name}.v{event.version}.json" for event in EVENTS}
    expected |= {f"ask/{question.room}.{question.name}.json" for question in QUESTIONS}
    found = {path.relative_to(wire.SCHEMAS).as_posix() for path in wire.SCHEMAS.rglob("*.json")}
    assert expected <= found


@pytest.mark.parametrize("name", GROWTH)
def test_a_version_may_grow_by(name: str) -> None:
    assert find_breaks(RELEASED, edited(GROWTH[name])) == []


@pytest.mark.parametrize("name", BREAKS)
def test_a_version_does_not_allow(name: str) -> None:
    edit, said = BREAKS[name]
    found = find_breaks(RELEASED, edited(edit))
    assert any(said in each for each in found), found


def test_a_question_is_compared_by_what_is_asked_and_by_its_answer() -> None:
    released = {"ask": RELEASED, "answer": RELEASED}
    grown, broken = edited(next(iter(GROWTH.values()))), edited(next(iter(BREAKS.values()))[0])
    assert find_question_breaks(released, {"ask": grown, "answer": grown}) == []
    for part in ("ask", "answer"):
        found = find_question_breaks(released, released | {part: broken})
        assert found, part
        assert all(each.startswith(f"$.{part}") for each in found), found
    assert find_question_breaks(released, {"ask": RELEASED})


def test_a_model_that_holds_itself_is_compared_once() -> None:
    tree = {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}},
        },
    }
    assert find_breaks(tree, copy.deepcopy(tree)) == []


def test_the_digest_leaves_out_what_only_people_read() -> None:
    told = edited(lambda s: (GROWTH["a title"](s), GROWTH["a description"](s)))
    assert digest_of(told) == digest_of(RELEASED)
    assert digest_of(edited(BREAKS["removed though it is called title"][0])) != digest_of(RELEASED)


def test_an_edited_or_missing_sample_is_named() -> None:
    released = {"a/full.json": "1", "b/full.json": "2", "c/full.json": "3"}
    found = sample_breaks(released, {"a/full.json": "1", "b/full.json": "9", "d/full.json": "4"})
    assert [each.partition(":")[0] for each in found] == ["b/full.json", "c/full.json"]


def integers(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every subschema of integers, with where it stands."""
    if isinstance(schema, dict):
        if schema.get("type") == "integer":
            yield path, schema
        for key, part in schema.items():
            yield from integers(part, path if key in SHELLS else f"{path}.{key}")
    elif isinstance(schema, list):
        for part in schema:
            yield from integers(part, path)


def test_every_integer_of_an_event_fits_a_bigint_or_is_a_sum() -> None:
    unbounded = {
        f"{wire.event_key(event)}{path}"
        for event in EVENTS
        for path, schema in integers(wire.event_schema(event), "")
        if schema.get("maximum", math.inf) > BIGINT_MAX
        or schema.get("minimum", -math.inf) < BIGINT_MIN
    }
    assert unbounded == SUMS


class History:
    """One base commit with texts by path, in place of git."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, texts: dict[Any, str]) -> None:
        monkeypatch.setattr(release, "base_commits", lambda: ["base"])
        monkeypatch.setattr(release, "text_at", lambda commit, path: texts.get(path))


def with_schema(monkeypatch: pytest.MonkeyPatch, schema: dict[str, Any]) -> None:
    monkeypatch.setattr(release, "present_schemas", lambda: {"order.v1": schema})
    monkeypatch.setattr(release, "present_samples", dict)


def recorded(monkeypatch: pytest.MonkeyPatch, frozen: Frozen) -> None:
    monkeypatch.setattr(release, "read_frozen", lambda: frozen)


ORDER = wire.SCHEMAS / "order.v1.json"
FROZEN = Frozen({"order.v1": digest_of(RELEASED)})


def test_a_change_since_the_release_is_noticed_without_git(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_schema(monkeypatch, edited(GROWTH["a new optional property"]))
    assert release.changed_since_release(FROZEN) == [f"order.v1: {release.CHANGED}"]
    with_schema(monkeypatch, edited(GROWTH["a description"]))
    assert release.changed_since_release(FROZEN) == []


def test_growth_is_frozen_anew_and_a_break_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, FROZEN)
    History(monkeypatch, {ORDER: json.dumps(RELEASED), release.FROZEN_FILE: FROZEN.text()})
    grown = edited(GROWTH["a new optional property"])
    with_schema(monkeypatch, grown)
    assert release.breaks_with_bases() == []
    assert freeze() == Frozen({"order.v1": digest_of(grown)})
    with_schema(monkeypatch, edited(BREAKS["removed"][0]))
    assert release.breaks_with_bases() == ["order.v1: $.id: removed (or renamed)"]
    with pytest.raises(NotProven, match="removed"):
        freeze()


def test_a_new_digest_does_not_hide_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = edited(BREAKS["removed"][0])
    recorded(monkeypatch, Frozen({"order.v1": digest_of(broken)}))
    with_schema(monkeypatch, broken)
    History(monkeypatch, {ORDER: json.dumps(RELEASED), release.FROZEN_FILE: FROZEN.text()})
    assert release.breaks_with_bases() == ["order.v1: $.id: removed (or renamed)"]


def test_nothing_is_frozen_over_a_release_that_nobody_can_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded(monkeypatch, FROZEN)
    History(monkeypatch, {})
    with_schema(monkeypatch, edited(GROWTH["a new optional property"]))
    with pytest.raises(NotProven, match="no base commit holds"):
        freeze()


def test_what_was_never_released_may_still_change(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, Frozen())
    History(monkeypatch, {ORDER: json.dumps(RELEASED)})
    with_schema(monkeypatch, edited(BREAKS["removed"][0]))
    assert release.breaks_with_bases() == []


def test_freezing_can_be_limited_to_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, Frozen())
    History(monkeypatch, {})
    frozen = freeze(["channel"])
    assert set(frozen.schemas) == {
        f"{event.name}.v{event.version}" for event in EVENTS if event.producer == "channel"
    }
    assert {name.partition("/")[0] for name in frozen.samples} == set(frozen.schemas)
