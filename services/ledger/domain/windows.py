"""How a window is put together from slots, and from single trees at its ragged ends. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from services.ledger.domain.slots import DAY_S, HOUR_S, QUARTER_S, begin_of

SLOTS_SINCE: Final = datetime(2012, 1, 1, tzinfo=UTC)
"""Since then every zone's days begin with a quarter of an hour. Earlier trees are read one by one:
some clock says so, no agent ran then."""
SINGLE_TREES: Final = 0
"""Instead of a slot's length: the trees themselves."""
FIGURE_GRAINS: Final = (DAY_S, HOUR_S)
DAY_GRAINS: Final = (QUARTER_S,)
_INSTANT: Final = timedelta(microseconds=1)


class Stretch(NamedTuple):
    """A part of a window, and what it is read from."""

    grain_s: int
    since: datetime
    before: datetime | None
    """Null: without end."""


def stretches(start: datetime, end: datetime | None, grains: Sequence[int]) -> list[Stretch]:
    """Cut a window, both ends inclusive, into slots of these lengths, the longest first."""
    before = None if end is None else end + _INSTANT
    first = SLOTS_SINCE if before is None else min(before, SLOTS_SINCE)
    found = [Stretch(SINGLE_TREES, start, first)] if start < first else []
    return [*found, *_cut(max(start, SLOTS_SINCE), before, grains)]


def _cut(since: datetime, before: datetime | None, grains: Sequence[int]) -> Iterator[Stretch]:
    if before is not None and since >= before:
        return
    if not grains:
        yield Stretch(SINGLE_TREES, since, before)
        return
    grain_s, *finer = grains
    begin = begin_of(since, grain_s)
    low = since if begin == since else begin + timedelta(seconds=grain_s)
    high = None if before is None else begin_of(before, grain_s)
    if high is not None and low >= high:
        yield from _cut(since, before, finer)
        return
    yield from _cut(since, low, finer)
    yield Stretch(grain_s, low, high)
    if high is not None:
        yield from _cut(high, before, finer)
