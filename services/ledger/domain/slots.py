"""What trees spent by when they began: the sums that windows are put together from.

A window selects trees by their root's start, at any instant, and counts them whole. Sums are kept
by stretches of UTC, *slots*, which every window is made of but for its two ragged ends. Billing
days begin at multiples of a quarter of an hour in every zone, so days are put together from
quarters, and a zone that is told late moves nothing.

Pure: the books say what a batch moves, `Kept` what is in the tables afterwards; what comes out are
differences, which commute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from services.ledger.domain.amounts import NOTHING, Amount

if TYPE_CHECKING:
    from services.ledger.domain.books import Books, RunKey
    from services.ledger.domain.merging import Line
    from services.ledger.domain.runs import Run

QUARTER_S: Final = 900
HOUR_S: Final = 3_600
DAY_S: Final = 86_400
_STEPS: Final = {seconds: timedelta(seconds=seconds) for seconds in (QUARTER_S, HOUR_S, DAY_S)}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
BEGINS_CACHED_MAX: Final = 10_000


class SlotKey(NamedTuple):
    """What a sum is named by, in the order in which sums are locked."""

    org: str
    grain_s: int
    """How long the slot is: quarters for whole trees, hours and days for each dimension."""
    begins_at: datetime
    dimension: str
    """`all`, `agent` and `person` sum trees; `provider` and `key` sum the lines of their runs."""
    value: str
    """Empty: nobody, or not recorded."""


class SlotSum(NamedTuple):
    """What is added to a slot."""

    cost_nanousd: int
    run_count: int
    """Trees; of lines, runs that a request is entered for."""
    floor_count: int
    """Trees whose money is a floor; of lines, what is missing from them."""
    present_count: int
    """Trees; of lines, runs of which anything is entered: where there is none, there is no row."""


class Place(NamedTuple):
    """Where a tree counts."""

    org: str
    at: datetime
    """The quarter of an hour that it began in."""
    agent_id: str
    user_id: str


@dataclass(frozen=True, slots=True)
class RunLines:
    """Everything that is entered for a run, and the root of its tree."""

    root: RunKey
    lines: Mapping[Line, Amount]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is in the tables after a batch was written; money, requests and floors alone."""

    trees: Mapping[RunKey, Amount]
    """Of those that `trees_to_load` names."""
    runs: Mapping[RunKey, RunLines]
    """Of flipped runs, of runs in another tree than before, and of trees that began elsewhere."""


_LinePlace = tuple[str, datetime, str, str]
"""Organization, hour that the tree began in, dimension, value."""


@dataclass(slots=True)
class _Sums:
    """Differences under way, by what leads to slots: fewer of them than slots."""

    trees: dict[Place, list[int]] = field(default_factory=dict)
    lines: dict[_LinePlace, list[int]] = field(default_factory=dict)

    def add_tree(self, place: Place, amount: SlotSum, sign: int = 1) -> None:
        _add(self.trees.setdefault(place, [0, 0, 0, 0]), amount, sign)

    def add_line(self, place: _LinePlace, amount: SlotSum, sign: int = 1) -> None:
        _add(self.lines.setdefault(place, [0, 0, 0, 0]), amount, sign)

    def moved(self) -> dict[SlotKey, SlotSum]:
        found: dict[SlotKey, list[int]] = {}
        for place, values in self.trees.items():
            for key in tree_keys(place):
                _add(found.setdefault(key, [0, 0, 0, 0]), values)
        for (org, at, dimension, value), values in self.lines.items():
            for key in line_keys(org, at, dimension, value):
                _add(found.setdefault(key, [0, 0, 0, 0]), values)
        return {key: SlotSum(*values) for key, values in found.items() if any(values)}


def _add(kept: list[int], amount: Sequence[int], sign: int = 1) -> None:
    cost_nanousd, run_count, floor_count, present_count = amount
    kept[0] += sign * cost_nanousd
    kept[1] += sign * run_count
    kept[2] += sign * floor_count
    kept[3] += sign * present_count


@lru_cache(maxsize=BEGINS_CACHED_MAX)
def begin_of(at: datetime, grain_s: int) -> datetime:
    """When the slot began that an instant lies in."""
    return at - (at - _EPOCH) % _STEPS[grain_s]


def place_of(org: str, run: Run | None) -> Place | None:
    """Where a tree counts; nowhere unless it has begun, or where the run is no root."""
    if run is None or not run.is_root or run.shown_start is None:
        return None
    began = begin_of(run.shown_start, QUARTER_S)
    return Place(org, began, run.agent_id or "", run.started_by_user_id or "")


def tree_keys(place: Place) -> Iterator[SlotKey]:
    """The slots that a whole tree is summed in."""
    yield SlotKey(place.org, QUARTER_S, place.at, "all", "")
    for grain_s in (HOUR_S, DAY_S):
        begins_at = begin_of(place.at, grain_s)
        yield SlotKey(place.org, grain_s, begins_at, "agent", place.agent_id)
        yield SlotKey(place.org, grain_s, begins_at, "person", place.user_id)


def line_keys(org: str, at: datetime, dimension: str, value: str) -> Iterator[SlotKey]:
    """The slots that a line is summed in; `at` is when its tree began."""
    for grain_s in (HOUR_S, DAY_S):
        yield SlotKey(org, grain_s, begin_of(at, grain_s), dimension, value)


def trees_entered(places: Collection[Place]) -> dict[SlotKey, SlotSum]:
    """Trees that nothing is spent in yet."""
    sums = _Sums()
    for place in places:
        sums.add_tree(place, SlotSum(0, 1, 0, 1))
    return sums.moved()


def state_of(amount: Amount) -> tuple[bool, bool]:
    """Whether a line counts its run, and whether there is anything on it at all."""
    counts = amount.request_count > 0 or amount.unpriced_count > 0
    there = (
        amount.cost_nanousd,
        amount.request_count,
        amount.unpriced_count,
        amount.missing_delegate_count,
    )
    return counts, any(there)


def trees_placed_anew(books: Books) -> set[RunKey]:
    """Trees that count elsewhere than before, for the first time, or no more."""
    return {
        key
        for key, run in books.runs.items()
        if run is not books.before[key]
        and place_of(key[0], run) != place_of(key[0], books.before[key])
    }


def trees_to_load(books: Books, placed_anew: Collection[RunKey]) -> set[RunKey]:
    """Trees of which more moves than the cost: their sums are needed."""
    with_floors = {key for key, amount in books.tree.items() if _floors(amount) != (0, 0)}
    return (with_floors & books.runs.keys()) | set(placed_anew)


def new_runs(books: Books) -> set[RunKey]:
    """Runs of which nothing was heard before: what they and their trees sum is in the books.

    Whoever enters a run in the books also sees a sign of it, and of its root.
    """
    return {key for key, run in books.before.items() if run.shown_start is None}


def kept_of_new(books: Books, trees: Collection[RunKey], runs: Collection[RunKey]) -> Kept:
    """What is in the tables of new trees and runs."""
    lines: dict[RunKey, dict[Line, Amount]] = {key: {} for key in runs}
    for (org, line), amount in books.lines.items():
        found = lines.get((org, line.billed_run_id))
        if found is not None:
            found[line] = amount
    return Kept(
        {key: books.tree.get(key, NOTHING) for key in trees},
        {key: RunLines((key[0], books.runs[key].root_run_id), lines[key]) for key in runs},
    )


def slots_moved(books: Books, kept: Kept) -> dict[SlotKey, SlotSum]:
    """What a batch adds to every slot."""
    sums = _Sums()
    _move_trees(sums, books, kept)
    _move_lines(sums, books, kept)
    _move_runs(sums, books, kept)
    return sums.moved()


def _floors(amount: Amount) -> tuple[int, int]:
    return amount.unpriced_count, amount.missing_delegate_count


def _move_trees(sums: _Sums, books: Books, kept: Kept) -> None:
    for key, after in kept.trees.items():
        before = after - books.tree.get(key, NOTHING)
        for run, amount, sign in ((books.before[key], before, -1), (books.runs[key], after, 1)):
            place = place_of(key[0], run)
            if place is not None:
                tree = SlotSum(amount.cost_nanousd, 1, int(amount.is_partial), 1)
                sums.add_tree(place, tree, sign)
    for key, amount in books.tree.items():
        place = place_of(key[0], books.runs.get(key))
        if key not in kept.trees and place is not None and amount.cost_nanousd:
            sums.add_tree(place, SlotSum(amount.cost_nanousd, 0, 0, 0))


def _move_lines(sums: _Sums, books: Books, kept: Kept) -> None:
    """Of runs that were there before, money and floors alone move."""
    hours: dict[RunKey, datetime | None] = {}
    for (org, line), amount in books.lines.items():
        key = (org, line.billed_run_id)
        if key in kept.runs:
            continue
        if key not in hours:
            place = place_of(org, books.runs.get((org, books.runs[key].root_run_id)))
            hours[key] = None if place is None else begin_of(place.at, HOUR_S)
        at = hours[key]
        if at is not None:
            part = SlotSum(amount.cost_nanousd, 0, sum(_floors(amount)), 0)
            sums.add_line((org, at, "provider", line.provider), part)
            sums.add_line((org, at, "key", line.key_id), part)


def _move_runs(sums: _Sums, books: Books, kept: Kept) -> None:
    """Of other runs everything is taken out where it was, and put in where it is."""
    added: dict[RunKey, dict[Line, Amount]] = {key: {} for key in kept.runs}
    for (org, line), amount in books.lines.items():
        found = added.get((org, line.billed_run_id))
        if found is not None:
            found[line] = amount
    for key, entered in kept.runs.items():
        place = _began(books.before, key, entered.root)
        if place is not None:
            lines, now = entered.lines.items(), added[key]
            before = {line: amount - now.get(line, NOTHING) for line, amount in lines}
            _add_run(sums, place, before, -1)
        place = _began(books.runs, key, entered.root)
        if place is not None:
            _add_run(sums, place, entered.lines, 1)


def _began(runs: Mapping[RunKey, Run], key: RunKey, root: RunKey) -> Place | None:
    """Where a run's tree counts; a run that the books do not hold is in the tree that it was in."""
    run = runs.get(key)
    root = (key[0], run.root_run_id) if run is not None else root
    return place_of(root[0], runs.get(root))


def _add_run(sums: _Sums, place: Place, lines: Mapping[Line, Amount], sign: int) -> None:
    parts: dict[tuple[str, str], list[int]] = {}
    for line, amount in lines.items():
        counts, is_there = state_of(amount)
        for part in (("provider", line.provider), ("key", line.key_id)):
            known = parts.setdefault(part, [0, 0, 0, 0])
            known[0] += amount.cost_nanousd
            known[1] = max(known[1], counts)
            known[2] += sum(_floors(amount))
            known[3] = max(known[3], is_there)
    at = begin_of(place.at, HOUR_S)
    for (dimension, value), values in parts.items():
        sums.add_line((place.org, at, dimension, value), SlotSum(*values), sign)
