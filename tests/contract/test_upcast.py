"""An event of an older version comes to its handler in the newest shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts import catalog, upcast
from contracts.catalog import EventType
from contracts.errors import Invalid
from contracts.types import Instant, Wire
from contracts.upcast import read_event

NOON = "2026-11-20T12:00:00Z"


class LampLit(Wire):
    """The newest shape of an event that exists in these tests only."""

    lamp_id: str
    brightness_percent: int
    lit_at: Instant


LAMP_SUBJECT = "rienda.event.acme.ledger.lamp_lit.v{}"


@pytest.fixture
def lamp(monkeypatch: pytest.MonkeyPatch) -> EventType:
    event = EventType("lamp_lit", 3, "ledger", LampLit, "LEDGER", ())
    monkeypatch.setitem(catalog._BY_NAME, "lamp_lit", event)
    monkeypatch.setitem(
        upcast.UPCASTERS, ("lamp_lit", 1), lambda data: {**data, "brightness": data["level"] / 10}
    )
    monkeypatch.setitem(
        upcast.UPCASTERS,
        ("lamp_lit", 2),
        lambda data: {**data, "brightness_percent": round(data["brightness"] * 100)},
    )
    return event


def lit(version: int, **data: Any) -> dict[str, Any]:
    return {
        "id": "e1",
        "source": "ledger",
        "type": f"rienda.lamp_lit.v{version}",
        "time": NOON,
        "subject": "acme",
        "data": {"lamp_id": "l1", "lit_at": NOON} | data,
    }


def refusal(version: int, value: dict[str, Any] | bytes) -> str:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(Invalid) as refused:
        read_event(LAMP_SUBJECT.format(version), body)
    return refused.value.reason


@pytest.mark.parametrize(
    ("version", "data"), [(1, {"level": 4}), (2, {"brightness": 0.4}), (3, {})], ids=str
)
def test_handlers_see_the_newest_shape_of_every_version(
    lamp: EventType, version: int, data: dict[str, Any]
) -> None:
    value = lit(version, **({"brightness_percent": 40} if version == 3 else data))
    address, event = read_event(LAMP_SUBJECT.format(version), json.dumps(value).encode())
    assert (address.version, address.event) == (version, lamp)
    assert (event.type, event.data.brightness_percent) == ("rienda.lamp_lit.v3", 40)


def test_an_older_version_is_checked_like_the_newest(lamp: EventType) -> None:
    assert refusal(1, lit(2, brightness=0.4)) == "type_mismatch"
    assert refusal(1, lit(1, level=4) | {"subject": "other"}) == "wrong_organization"
    assert refusal(1, lit(1, level=4, lamp_id="\x00")) == "nul_character"
    assert refusal(1, lit(1, level=4, lit_at="2026-11-20T12:00:00")) == "naive_time"
    assert refusal(1, b"[]") == "not_json"
    assert refusal(4, lit(4)) == "unknown_event"


def test_a_version_that_is_no_longer_read_is_refused(
    lamp: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(upcast.UPCASTERS, ("lamp_lit", 2))
    assert refusal(1, lit(1, level=4)) == "unknown_event"


def test_every_older_version_has_its_upcaster() -> None:
    expected = {
        (event.name, version) for event in catalog.EVENTS for version in range(1, event.version)
    }
    assert set(upcast.UPCASTERS) == expected
