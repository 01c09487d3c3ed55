"""Billing time zones: a change never moves a month that has begun."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.directory import BillingZone
from contracts.errors import Invalid
from services.gateway.domain.zones import change_zone, first_zones

ZONES = ("UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Madrid", "America/New_York")


def pairs(zones: tuple[BillingZone, ...]) -> list[tuple[str, str]]:
    return [(zone.from_month, zone.timezone) for zone in zones]


def test_the_first_zone_holds_since_ever() -> None:
    assert pairs(first_zones("Europe/Madrid")) == [("0001-01", "Europe/Madrid")]


@pytest.mark.parametrize(
    ("now", "timezone", "month"),
    [
        ("2026-11-15T12:00:00Z", "Europe/Madrid", "2026-12"),
        ("2026-12-15T12:00:00Z", "Europe/Madrid", "2027-01"),
        # It is December there already: holding from December would move the rest of November.
        ("2026-11-30T20:00:00Z", "Pacific/Kiritimati", "2027-01"),
        # It is still November there: December has begun in the zone that holds.
        ("2026-12-01T01:00:00Z", "America/New_York", "2027-01"),
    ],
)
def test_another_zone_holds_from_the_next_month(now: str, timezone: str, month: str) -> None:
    changed = change_zone(first_zones("UTC"), timezone, datetime.fromisoformat(now))
    assert pairs(changed) == [("0001-01", "UTC"), (month, timezone)]


def test_a_change_that_has_not_begun_is_replaced_or_taken_back() -> None:
    now = datetime(2026, 11, 15, tzinfo=UTC)
    once = change_zone(first_zones("UTC"), "Europe/Madrid", now)
    twice = change_zone(once, "Asia/Tokyo", now)
    assert pairs(twice) == [("0001-01", "UTC"), ("2026-12", "Asia/Tokyo")]
    assert pairs(change_zone(twice, "UTC", now)) == [("0001-01", "UTC")]


def test_a_change_that_has_begun_stays() -> None:
    once = change_zone(first_zones("UTC"), "Asia/Tokyo", datetime(2026, 11, 15, tzinfo=UTC))
    later = change_zone(once, "Europe/Madrid", datetime(2027, 2, 3, tzinfo=UTC))
    assert [month for month, _ in pairs(later)] == ["0001-01", "2026-12", "2027-03"]


@given(
    st.lists(
        st.tuples(
            st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001
            st.sampled_from(ZONES),
        ),
        max_size=8,
    )
)
def test_months_grow_and_begun_zones_are_never_touched(
    steps: list[tuple[datetime, str]],
) -> None:
    zones = first_zones("UTC")
    for now, timezone in sorted(steps):
        changed = change_zone(zones, timezone, now)
        months = [zone.from_month for zone in changed]
        assert months == sorted(set(months))
        assert changed[-1].timezone == timezone
        begun = [zone for zone in zones if zone.from_month <= f"{now:%Y-%m}"]
        # A zone ahead of UTC may have begun before its month has in UTC, never the other way round
        # by more than one row.
        assert list(changed[: len(begun) - 1]) == begun[:-1]
        zones = changed


@pytest.mark.parametrize("name", ["Mars/Olympus", "../../etc/passwd", "", "UTC\x00"])
def test_refuses_what_is_no_zone(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        first_zones(name)
    assert refused.value.reason == "timezone_unknown"
