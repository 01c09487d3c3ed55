"""Up to when everything is handled, from what the server says of a durable."""

from __future__ import annotations

from datetime import timedelta

from shared.watermark import Position, reached
from tests.factories import NOON


def position(
    after_s: float, *, pending: int = 0, unacknowledged: int = 0, delivered: int, handled: int
) -> Position:
    return Position(NOON + timedelta(seconds=after_s), pending, unacknowledged, delivered, handled)


def test_nothing_to_come_and_nothing_under_way_is_all_until_now() -> None:
    now = position(3, delivered=9, handled=9)
    assert reached(None, now) == now


def test_what_was_delivered_at_an_earlier_look_is_all_until_then_once_it_is_handled() -> None:
    first = position(1, unacknowledged=4, delivered=9, handled=5)
    assert reached(None, first) is None
    assert reached(first, position(2, unacknowledged=5, delivered=12, handled=8)) is None
    busy = position(3, pending=7, unacknowledged=5, delivered=14, handled=9)
    assert reached(first, busy) == first


def test_a_room_that_is_behind_has_reached_nothing() -> None:
    assert reached(None, position(1, pending=1, delivered=9, handled=9)) is None
