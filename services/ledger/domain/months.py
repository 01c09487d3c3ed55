"""Months and days in an organization's billing time zone (design.md 3, *Months*).

Zones are dated: one holds from the first of its month on. Pure: the instant is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

ZONES_CACHED_MAX = 600
"""The tz database names about as many zones."""
FIRST_YEAR = 2
"""Earlier instants would leave the calendar in some zone; no run has started then."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone and the month, `YYYY-MM`, that it holds from."""

    from_month: str
    name: str


ZoneStarts = Sequence[tuple[datetime, str]]
"""Since when each zone holds, in order; the first one since ever."""
UTC_ALWAYS: tuple[Zone, ...] = (Zone("0001-01", "UTC"),)


@lru_cache(maxsize=ZONES_CACHED_MAX)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def zone_at(at: datetime, zones: Sequence[Zone]) -> str:
    """The zone that holds at an instant: the newest whose own month has begun there."""
    for zone in sorted(zones, key=lambda item: item.from_month, reverse=True):
        if _month(at.astimezone(_zone(zone.name))) >= zone.from_month:
            return zone.name
    return min(zones, key=lambda item: item.from_month).name if zones else "UTC"


def month_of(at: datetime, zones: Sequence[Zone]) -> str:
    """The month, `YYYY-MM`, that an instant is billed in."""
    if len(zones) == 1 and zones[0].name == "UTC":
        return _month(at if at.tzinfo is UTC else at.astimezone(UTC))
    return _month(at.astimezone(_zone(zone_at(at, zones))))


def _month(at: datetime) -> str:
    return f"{at.year:04d}-{at.month:02d}"


def month_begin(month: str, zones: Sequence[Zone]) -> datetime:
    """The first instant that is billed in a month: its midnight in the zone that holds then.

    On a change of zone that need not be the new one's: the month before ended in the old one.
    """
    midnight = datetime(int(month[:4]), int(month[5:7]), 1)  # noqa: DTZ001
    names = {zone.name for zone in zones} or {"UTC"}
    candidates = sorted(midnight.replace(tzinfo=_zone(name)).astimezone(UTC) for name in names)
    return next((at for at in candidates if month_of(at, zones) == month), candidates[-1])


def next_month(month: str) -> str:
    """The month after `YYYY-MM`."""
    year, number = int(month[:4]), int(month[5:7])
    return f"{year + number // 12:04d}-{number % 12 + 1:02d}"


def zone_starts(zones: Sequence[Zone]) -> ZoneStarts:
    """When each zone begins to hold, in UTC and in order; the same rule as `zone_at`.

    A zone holds from the instant at which its own month begins in it.
    """
    starts = []
    for zone in sorted(zones, key=lambda item: item.from_month):
        year, month = int(zone.from_month[:4]), int(zone.from_month[5:7])
        if year <= FIRST_YEAR:
            starts.append((datetime(FIRST_YEAR, 1, 1, tzinfo=UTC), zone.name))
            continue
        begins = datetime(year, month, 1, tzinfo=_zone(zone.name))
        starts.append((begins.astimezone(UTC), zone.name))
    return starts


def day_of(at: datetime, zones: Sequence[Zone]) -> date:
    """The calendar day of an instant in the zone that held then."""
    return at.astimezone(_zone(zone_at(at, zones))).date()
