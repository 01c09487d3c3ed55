"""The time zone of an organization's months: dated rows, a change holds from the next month.

The one thing not to break: no change moves a month that has begun (design.md 3, *Months*).
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Sequence
from datetime import datetime

from contracts.directory import BillingZone
from contracts.errors import Invalid

FIRST_MONTH = "0001-01"
"""The first zone holds since ever."""
_OF_THE_MACHINE = ("localtime", "posixrules", "Factory", "posix/", "right/")
"""Files beside the zones: what they mean depends on the machine, or on leap seconds."""


def zone_of(name: str) -> zoneinfo.ZoneInfo:
    """Look an IANA time zone up.

    Raises:
        Invalid: `timezone_unknown`.
    """
    try:
        if name.startswith(_OF_THE_MACHINE):
            raise zoneinfo.ZoneInfoNotFoundError(name)
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Invalid(
            f"billing_timezone: {name[:64]!r} is no IANA time zone such as Europe/Madrid",
            reason="timezone_unknown",
        ) from error


def first_zones(timezone: str) -> tuple[BillingZone, ...]:
    """The zones of a new organization.

    Raises:
        Invalid: `timezone_unknown`.
    """
    zone_of(timezone)
    return (BillingZone(from_month=FIRST_MONTH, timezone=timezone),)


def change_zone(
    zones: Sequence[BillingZone], timezone: str, now: datetime
) -> tuple[BillingZone, ...]:
    """Let another zone hold from the next month on.

    "Next" is counted in the zone that holds and in the new one, and the later counts: on the last
    evening of a month the next one may have begun in the new zone. A change that has not begun is
    replaced; going back to the zone that holds removes it.

    Raises:
        Invalid: `timezone_unknown`.
    """
    begun = [zone for zone in zones if zone.from_month <= _month(now, zone.timezone)]
    holding = begun[-1].timezone
    this_month = max(_month(now, holding), _month(now, timezone))
    if timezone == holding:
        return tuple(begun)
    return (*begun, BillingZone(from_month=_after(this_month), timezone=timezone))


def _month(now: datetime, timezone: str) -> str:
    local = now.astimezone(zone_of(timezone))
    return f"{local.year:04d}-{local.month:02d}"


def _after(month: str) -> str:
    year, number = int(month[:4]), int(month[5:])
    return f"{year + number // 12:04d}-{number % 12 + 1:02d}"
