"""Slots and windows: nothing is left out, nothing counts twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import given
from hypothesis import strategies as st

from services.ledger.domain.amounts import Amount
from services.ledger.domain.books import Books
from services.ledger.domain.merging import Line
from services.ledger.domain.runs import Run
from services.ledger.domain.slots import (
    DAY_S,
    HOUR_S,
    QUARTER_S,
    Kept,
    Place,
    RunLines,
    SlotKey,
    SlotSum,
    begin_of,
    slots_moved,
    trees_entered,
    trees_placed_anew,
    trees_to_load,
)
from services.ledger.domain.windows import (
    DAY_GRAINS,
    FIGURE_GRAINS,
    SINGLE_TREES,
    SLOTS_SINCE,
    stretches,
)

AT = datetime(2026, 11, 3, 10, 37, 12, 345_678, tzinfo=UTC)
LAST = datetime(9000, 1, 1, tzinfo=UTC)
"""Later ones, and those before 2000, are no instants (contracts/types.py)."""


def instants(first: datetime, last: datetime) -> st.SearchStrategy[datetime]:
    naive = (first.replace(tzinfo=None), last.replace(tzinfo=None))
    return st.datetimes(*naive, timezones=st.just(UTC))


NARROW = instants(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 4, tzinfo=UTC))
INSTANTS = NARROW | instants(datetime(2000, 1, 1, tzinfo=UTC), LAST)
GRAINS = st.sampled_from((FIGURE_GRAINS, DAY_GRAINS))


@given(INSTANTS, st.sampled_from((QUARTER_S, HOUR_S, DAY_S)))
def test_an_instant_lies_in_its_slot(at: datetime, grain_s: int) -> None:
    begin = begin_of(at, grain_s)
    assert timedelta() <= at - begin < timedelta(seconds=grain_s)
    assert begin_of(begin, grain_s) == begin
    assert begin.timestamp() % grain_s == 0


@given(INSTANTS, st.none() | INSTANTS, GRAINS, st.lists(INSTANTS, max_size=5))
def test_a_window_is_cut_into_whole_slots_and_single_trees(
    start: datetime, end: datetime | None, grains: tuple[int, ...], further: list[datetime]
) -> None:
    cut = stretches(start, end, grains)
    for at in (start, end or LAST, *further):
        holding = [
            part for part in cut if part.since <= at and (part.before is None or at < part.before)
        ]
        inside = start <= at and (end is None or at <= end)
        assert len(holding) == inside
    for part in cut:
        if part.grain_s == SINGLE_TREES:
            continue
        for edge in (part.since, part.before):
            assert edge is None or begin_of(edge, part.grain_s) == edge
        assert part.since >= SLOTS_SINCE


@given(INSTANTS.filter(lambda at: at >= SLOTS_SINCE), st.none() | INSTANTS)
def test_single_trees_are_those_of_less_than_a_slot(start: datetime, end: datetime | None) -> None:
    for grains in (FIGURE_GRAINS, DAY_GRAINS):
        single = [part for part in stretches(start, end, grains) if part.grain_s == SINGLE_TREES]
        assert len(single) <= 2
        for part in single:
            slot = timedelta(seconds=2 * grains[-1])
            assert part.before is None or part.before - part.since < slot


def test_no_zone_begins_a_day_within_a_quarter_of_an_hour() -> None:
    """What lets days be put together from slots; `SLOTS_SINCE` says since when."""
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        for change in changes_of(zone, datetime(2037, 12, 1, tzinfo=UTC)):
            begin = begin_of(change, QUARTER_S)
            seconds = (begin + timedelta(seconds=n) for n in range(0, QUARTER_S, 20))
            assert len({each.astimezone(zone).date() for each in seconds}) == 1, (name, change)


def changes_of(zone: ZoneInfo, until: datetime) -> list[datetime]:
    """When a zone's offset changes, to the second; every offset is of whole quarters."""
    week = timedelta(days=7)
    at, changes = SLOTS_SINCE, []
    while at < until:
        low, high = at, at + week
        before = low.astimezone(zone).utcoffset()
        assert before is not None
        assert before % timedelta(seconds=QUARTER_S) == timedelta()
        if before != high.astimezone(zone).utcoffset():
            while high - low > timedelta(seconds=1):
                middle = (low + (high - low) // 2).replace(microsecond=0)
                same = middle.astimezone(zone).utcoffset() == before
                low, high = (middle, high) if same else (low, middle)
            changes.append(high)
        at += week
    return changes


def run(run_id: str, root: str = "r1", **changes: object) -> Run:
    values = {"provisional": False, "agent_id": "coder", "started_at": AT} | changes
    return Run(run_id, "c1", root, root, **values)  # type: ignore[arg-type]


def keys(dimension: str, value: str, at: datetime = AT) -> list[SlotKey]:
    grains = (QUARTER_S,) if dimension == "all" else (HOUR_S, DAY_S)
    return [SlotKey("acme", each, begin_of(at, each), dimension, value) for each in grains]


def test_a_tree_that_begins_counts_in_five_slots() -> None:
    entered = trees_entered([Place("acme", begin_of(AT, QUARTER_S), "coder", "")])
    expected = [*keys("all", ""), *keys("agent", "coder"), *keys("person", "")]
    assert entered == dict.fromkeys(expected, SlotSum(0, 1, 0, 1))


def test_more_of_the_same_adds_money_alone() -> None:
    books = Books()
    books.load({("acme", "r1"): run("r1")})
    line = Line("r1", "2026-11", "openai", "gpt-5", "", "model")
    books.enter_line("acme", line, Amount(cost_nanousd=7, request_count=1))
    assert trees_placed_anew(books) == set()
    assert trees_to_load(books, set()) == set()
    moved = slots_moved(books, Kept({}, {}))
    values = [("all", ""), ("agent", "coder"), ("person", ""), ("provider", "openai"), ("key", "")]
    expected = [key for value in values for key in keys(*value)]
    assert moved == dict.fromkeys(expected, SlotSum(7, 0, 0, 0))


def test_a_tree_that_began_earlier_moves_with_everything_in_it() -> None:
    earlier = AT - timedelta(days=2)
    books = Books()
    books.load({("acme", "r1"): run("r1"), ("acme", "r2"): run("r2")})
    books.runs[("acme", "r1")] = run("r1", started_at=earlier)
    (placed,) = trees_placed_anew(books)
    assert trees_to_load(books, {placed}) == {("acme", "r1")}
    line = Line("r3", "2026-11", "openai", "gpt-5", "key-1", "model")
    amount = Amount(cost_nanousd=7, request_count=2, unpriced_count=1)
    kept = Kept(
        {("acme", "r1"): amount}, {("acme", "r3"): RunLines(("acme", "r1"), {line: amount})}
    )
    expected = {}
    for at, sign in ((AT, -1), (earlier, 1)):
        for value in (("all", ""), ("agent", "coder"), ("person", "")):
            counted = SlotSum(7 * sign, sign, sign, sign)
            expected |= dict.fromkeys(keys(*value, at), counted)
        for value in (("provider", "openai"), ("key", "key-1")):
            expected |= dict.fromkeys(keys(*value, at), SlotSum(7 * sign, sign, sign, sign))
    assert slots_moved(books, kept) == expected


def test_a_run_counts_once_for_a_provider_however_many_lines_it_has() -> None:
    books = Books()
    books.load({("acme", "r1"): run("r1")})
    lines = {}
    for model in ("gpt-5", "gpt-5-mini"):
        line = Line("r1", "2026-11", "openai", model, "", "model")
        books.enter_line("acme", line, Amount(cost_nanousd=1, request_count=1))
        lines[line] = Amount(cost_nanousd=1, request_count=1)
    moved = slots_moved(books, Kept({}, {("acme", "r1"): RunLines(("acme", "r1"), lines)}))
    assert [moved[key] for key in keys("provider", "openai")] == [SlotSum(2, 1, 0, 1)] * 2
