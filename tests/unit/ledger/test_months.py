"""Months in billing time zones: edges, daylight saving, dated zones, both ends of the world."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ledger.domain.months import (
    UTC_ALWAYS,
    Zone,
    month_begin,
    month_of,
    next_month,
    zone_at,
    zone_starts,
)

KIRITIMATI, NIUE = "Pacific/Kiritimati", "Pacific/Niue"
"""UTC+14 and UTC-11: where a month begins first and where it ends last."""
NAMES = ("UTC", KIRITIMATI, NIUE, "Europe/Madrid", "America/New_York", "Asia/Kathmandu")


def always(name: str) -> tuple[Zone, ...]:
    return (Zone("0001-01", name),)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "first_instant"),
    [
        ("UTC", utc(2026, 12, 1)),
        (KIRITIMATI, utc(2026, 11, 30, 10)),
        (NIUE, utc(2026, 12, 1, 11)),
        ("Europe/Madrid", utc(2026, 11, 30, 23)),
        ("Asia/Kathmandu", utc(2026, 11, 30, 18, 15)),
    ],
)
def test_a_month_begins_at_its_first_instant(name: str, first_instant: datetime) -> None:
    zones = always(name)
    assert month_of(first_instant, zones) == "2026-12"
    assert month_of(first_instant - timedelta(microseconds=1), zones) == "2026-11"


def test_one_instant_is_in_three_months() -> None:
    """Where it is already tomorrow, where it is today, and where it is still yesterday."""
    at = utc(2026, 10, 31, 10, 30)
    shown = [month_of(at, always(name)) for name in (KIRITIMATI, "UTC", NIUE)]
    assert shown == ["2026-11", "2026-10", "2026-10"]
    later = utc(2026, 11, 1, 10, 30)
    assert [month_of(later, always(name)) for name in (KIRITIMATI, "UTC", NIUE)] == [
        "2026-11",
        "2026-11",
        "2026-10",
    ]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        # New York goes back on the 1st of November 2026 at two: the month is an hour longer.
        ("America/New_York", utc(2026, 11, 1, 3, 59), utc(2026, 11, 1, 4)),
        # Madrid's went forward on Sunday the 29th of March 2026; April begins at 22:00 UTC, not 23.
        ("Europe/Madrid", utc(2026, 3, 31, 21, 59), utc(2026, 3, 31, 22)),
    ],
)
def test_daylight_saving_moves_the_edge(name: str, before: datetime, after: datetime) -> None:
    assert next_month(month_of(before, always(name))) == month_of(after, always(name))


def test_a_new_zone_holds_from_the_month_that_it_names() -> None:
    zones = (Zone("0001-01", "UTC"), Zone("2026-12", KIRITIMATI))
    assert zone_at(utc(2026, 11, 30, 9, 59), zones) == "UTC"
    assert month_of(utc(2026, 11, 30, 9, 59), zones) == "2026-11"
    assert zone_at(utc(2026, 11, 30, 10), zones) == KIRITIMATI
    assert month_of(utc(2026, 11, 30, 10), zones) == "2026-12"


def test_a_new_zone_further_west_leaves_no_hole() -> None:
    """While the new month has begun in the old zone only, its hours are the new month's."""
    zones = (Zone("0001-01", KIRITIMATI), Zone("2026-12", NIUE))
    assert month_of(utc(2026, 11, 30, 9, 59), zones) == "2026-11"
    assert month_of(utc(2026, 11, 30, 10), zones) == "2026-12"
    assert zone_at(utc(2026, 12, 1, 10, 59), zones) == KIRITIMATI
    assert zone_at(utc(2026, 12, 1, 11), zones) == NIUE
    assert month_of(utc(2026, 12, 1, 11), zones) == "2026-12"


INSTANTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001


@st.composite
def dated_zones(draw: st.DrawFn) -> tuple[Zone, ...]:
    first = Zone("0001-01", draw(st.sampled_from(NAMES)))
    months = draw(
        st.sets(st.tuples(st.integers(2020, 2030), st.integers(1, 12)), max_size=4).map(sorted)
    )
    return (
        first,
        *(Zone(f"{y:04d}-{m:02d}", draw(st.sampled_from(NAMES))) for y, m in months),
    )


@given(dated_zones(), INSTANTS, INSTANTS)
def test_months_only_go_forward(zones: tuple[Zone, ...], one: datetime, other: datetime) -> None:
    """No change of zone bills a later instant in an earlier month."""
    earlier, later = sorted((one, other))
    assert month_of(earlier, zones) <= month_of(later, zones)


@given(dated_zones(), INSTANTS)
def test_the_starts_of_zones_are_the_rule_itself(zones: tuple[Zone, ...], at: datetime) -> None:
    held = [name for start, name in zone_starts(zones) if start <= at]
    # Of several that begin at one instant or out of order the newest month's holds.
    assert zone_at(at, zones) == held[-1]


def test_an_instant_just_around_every_start_agrees() -> None:
    zones = (Zone("0001-01", "UTC"), Zone("2026-03", "Europe/Madrid"), Zone("2026-11", NIUE))
    for start, name in zone_starts(zones)[1:]:
        assert zone_at(start, zones) == name
        assert zone_at(start - timedelta(microseconds=1), zones) != name


def test_utc_needs_no_zone_and_agrees_with_one() -> None:
    at = utc(2026, 11, 30, 23, 59, 59)
    assert month_of(at, UTC_ALWAYS) == f"{at.astimezone(ZoneInfo('UTC')):%Y-%m}" == "2026-11"


@given(dated_zones(), st.integers(2020, 2029), st.integers(1, 12))
def test_a_month_begins_where_the_one_before_ends(
    zones: tuple[Zone, ...], year: int, month: int
) -> None:
    wanted = f"{year:04d}-{month:02d}"
    begins = month_begin(wanted, zones)
    assert month_of(begins, zones) == wanted
    assert month_of(begins - timedelta(microseconds=1), zones) < wanted
