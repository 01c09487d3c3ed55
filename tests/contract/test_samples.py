"""Every event has a minimal and a full sample; both are read, written back and fit their schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from contracts.catalog import EVENTS, EventType, find_event
from contracts.envelope import Event, decode, encode
from contracts.errors import Invalid
from contracts.subjects import event_subject
from contracts.types import Wire
from contracts.upcast import read_event
from tools import release, wire

EVENT_KEYS = [wire.event_key(event) for event in EVENTS]
SAMPLES = sorted(path.relative_to(wire.SAMPLES).as_posix() for path in wire.SAMPLES.rglob("*.json"))
REQUIRED_AND_NULLABLE = {
    "run_started": ("user_id", "started_by_user_id"),
    "audit_recorded": ("entry.actor",),
    "organization_changed": ("monthly_budget_nanousd",),
    "cap_stopped": ("run_id",),
    "department_changed": ("lead_user_id", "monthly_budget_nanousd"),
}
"""The *(n)* of events.md: a null is a statement, a key that is left out is a mistake."""


def sample(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((wire.SAMPLES / name).read_text())
    return value


def subject_of(event: EventType, value: Mapping[str, Any]) -> str:
    return event_subject(event, value["subject"], channel_id="c1", token="t1", room="ledger")


def event_of_sample(name: str) -> EventType:
    return find_event(name.partition(".")[0])


def read(name: str) -> Event[Any]:
    value = sample(name)
    _, event = read_event(subject_of(event_of_sample(name), value), json.dumps(value).encode())
    return event


def newest_full(event: EventType) -> str:
    """`full.json`, or the newest `full_<n>.json` that shows a field added since."""
    folder = wire.SAMPLES / wire.event_key(event)
    later = sorted(folder.glob("full_*.json"), key=lambda path: int(path.stem.partition("_")[2]))
    path = later[-1] if later else folder / "full.json"
    return path.relative_to(wire.SAMPLES).as_posix()


def parts(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Every model and every container inside a value, with its path."""
    if isinstance(value, Wire):
        yield path, value
        for name in type(value).model_fields:
            yield from parts(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, Mapping):
        yield path, value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield path, value
        for position, item in enumerate(value):
            yield from parts(item, f"{path}[{position}]")


def required_of(model: type[Wire]) -> set[str]:
    return {name for name, field in model.model_fields.items() if field.is_required()}


@pytest.mark.parametrize("key", EVENT_KEYS)
def test_every_event_has_both_samples(key: str) -> None:
    names = {path.name for path in (wire.SAMPLES / key).iterdir()}
    assert {"minimal.json", "full.json"} <= names


def test_no_sample_is_of_an_unknown_event() -> None:
    known = {f"{event.name}.v{n}" for event in EVENTS for n in range(1, event.version + 1)}
    assert {Path(name).parts[0] for name in SAMPLES} <= known


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_read_and_written_back_the_same(name: str) -> None:
    event = read(name)
    again = decode(encode(event), type(event))
    assert again == event
    _, heard = read_event(subject_of(event_of_sample(name), sample(name)), encode(event))
    assert heard == event


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_fits_its_schema(name: str) -> None:
    schema = json.loads((wire.SCHEMAS / f"{Path(name).parts[0]}.json").read_text())
    Draft202012Validator.check_schema(schema)
    assert [error.message for error in Draft202012Validator(schema).iter_errors(sample(name))] == []


@pytest.mark.parametrize("name", SAMPLES)
def test_an_older_hearer_takes_a_sample(name: str) -> None:
    """A new producer's event is understood by whoever was released before its fields came."""
    path = wire.SCHEMAS / f"{Path(name).parts[0]}.json"
    for commit in release.base_commits():
        released = release.Frozen.read(release.text_at(commit, release.FROZEN_FILE))
        text = release.text_at(commit, path)
        if text is not None and Path(name).parts[0] in released.schemas:
            assert list(Draft202012Validator(json.loads(text)).iter_errors(sample(name))) == []


@pytest.mark.parametrize("event", EVENTS, ids=EVENT_KEYS)
def test_the_minimal_sample_has_required_keys_only(event: EventType) -> None:
    said = read(f"{wire.event_key(event)}/minimal.json")
    for path, part in parts(said, "$"):
        if isinstance(part, Wire) and (path == "$" or path in _stated(said)):
            assert part.model_fields_set == required_of(type(part)), path


def _stated(said: Event[Any]) -> set[str]:
    """Paths of the models that the text itself holds; a default's inside was never written."""
    stated: set[str] = set()
    waiting: list[tuple[str, object]] = [("$", said)]
    while waiting:
        path, value = waiting.pop()
        stated.add(path)
        if isinstance(value, Wire):
            waiting += [(f"{path}.{name}", getattr(value, name)) for name in value.model_fields_set]
        elif isinstance(value, tuple):
            waiting += [(f"{path}[{position}]", item) for position, item in enumerate(value)]
    return stated


@pytest.mark.parametrize("event", EVENTS, ids=EVENT_KEYS)
def test_the_newest_full_sample_sets_every_field(event: EventType) -> None:
    said = read(newest_full(event))
    for path, part in parts(said, "$"):
        if isinstance(part, Wire):
            fields = set(type(part).model_fields)
            assert part.model_fields_set == fields, f"{path} lacks a field"
            empty = {name for name in fields if getattr(part, name) is None}
            assert not empty, f"{path} shows nothing for {empty}"
        else:
            assert part, f"{path} is empty"


@pytest.mark.parametrize("event", EVENTS, ids=EVENT_KEYS)
def test_the_newest_full_sample_is_written_back_to_the_letter(event: EventType) -> None:
    name = newest_full(event)
    assert json.loads(encode(read(name))) == sample(name)


@pytest.mark.parametrize(
    ("name", "field"),
    [(name, field) for name, fields in REQUIRED_AND_NULLABLE.items() for field in fields],
)
def test_a_null_is_a_statement_and_has_to_be_made(name: str, field: str) -> None:
    event = find_event(name)
    value = sample(f"{wire.event_key(event)}/minimal.json")
    *way, last = field.split(".")
    holder = value["data"]
    for step in way:
        holder = holder[step]
    assert holder[last] is None
    del holder[last]
    with pytest.raises(Invalid) as refused:
        read_event(subject_of(event, value), json.dumps(value).encode())
    assert refused.value.reason == "invalid_field"
    assert [item["field"] for item in refused.value.details["fields"]] == [f"data.{field}"]


@pytest.mark.parametrize("event", EVENTS, ids=EVENT_KEYS)
def test_no_required_key_may_be_left_out(event: EventType) -> None:
    original = sample(f"{wire.event_key(event)}/minimal.json")
    for key in original["data"]:
        value = {**original, "data": {k: v for k, v in original["data"].items() if k != key}}
        with pytest.raises(Invalid, match=key):
            read_event(subject_of(event, value), json.dumps(value).encode())
