"""What trees spent by when they began: the sums that windows are put together from.

A window selects trees by their root's start, at any instant, and counts them whole. Sums are kept
by stretches of UTC, *slots*, which every window is made of but for its two ragged ends. Billing
days begin at multiples of a quarter of an hour in every zone, so days are put together from
quarters, and a zone that is told late moves nothing.

Pure: the books say what a batch moves, `Kept` what is in the tables afterwards; what comes out are
differences, which commute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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


@dataclass(slots=True)
class _Sums:
    """Differences under way, by slot."""

    found: dict[SlotKey, list[int]] = field(default_factory=dict)

    def add(self, key: SlotKey, amount: SlotSum, sign: int = 1) -> None:
        kept = self.found.get(key)
        if kept is None:
            self.found[key] = [sign * value for value in amount]
        else:
            for n, value in enumerate(amount):
                kept[n] += sign * value

    def moved(self) -> dict[SlotKey, SlotSum]:
        return {key: SlotSum(*values) for key, values in self.found.items() if any(values)}


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
        for key in tree_keys(place):
            sums.add(key, SlotSum(0, 1, 0, 1))
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
                for slot in tree_keys(place):
                    sums.add(slot, tree, sign)
    for key, amount in books.tree.items():
        place = place_of(key[0], books.runs.get(key))
        if key not in kept.trees and place is not None and amount.cost_nanousd:
            for slot in tree_keys(place):
                sums.add(slot, SlotSum(amount.cost_nanousd, 0, 0, 0))


def _move_lines(sums: _Sums, books: Books, kept: Kept) -> None:
    """Of runs that were there before, money and floors alone move."""
    lines: dict[tuple[str, datetime, str, str], list[int]] = {}
    for (org, line), amount in books.lines.items():
        key = (org, line.billed_run_id)
        root = books.runs.get((org, books.runs[key].root_run_id))
        if key in kept.runs or root is None or root.shown_start is None or not root.is_root:
            continue
        at = begin_of(root.shown_start, HOUR_S)
        found = lines.setdefault((org, at, line.provider, line.key_id), [0, 0])
        found[0] += amount.cost_nanousd
        found[1] += sum(_floors(amount))
    for (org, at, provider, key_id), (cost_nanousd, floors) in lines.items():
        for dimension, value in (("provider", provider), ("key", key_id)):
            for slot in line_keys(org, at, dimension, value):
                sums.add(slot, SlotSum(cost_nanousd, 0, floors, 0))


def _move_runs(sums: _Sums, books: Books, kept: Kept) -> None:
    """Of other runs everything is taken out where it was, and put in where it is."""
    added: dict[RunKey, dict[Line, Amount]] = {key: {} for key in kept.runs}
    for (org, line), amount in books.lines.items():
        if (org, line.billed_run_id) in added:
            added[(org, line.billed_run_id)][line] = amount
    for key, entered in kept.runs.items():
        before = {
            line: amount - added[key].get(line, NOTHING) for line, amount in entered.lines.items()
        }
        _add_run(sums, _began(books.before, key, entered.root), before, -1)
        _add_run(sums, _began(books.runs, key, entered.root), entered.lines, 1)


def _began(runs: Mapping[RunKey, Run], key: RunKey, root: RunKey) -> Place | None:
    """Where a run's tree counts; a run that the books do not hold is in the tree that it was in."""
    run = runs.get(key)
    root = (key[0], run.root_run_id) if run is not None else root
    return place_of(root[0], runs.get(root))


def _add_run(sums: _Sums, place: Place | None, lines: Mapping[Line, Amount], sign: int) -> None:
    if place is None:
        return
    parts: dict[tuple[str, str], SlotSum] = {}
    for line, amount in lines.items():
        counts, is_there = state_of(amount)
        for part in (("provider", line.provider), ("key", line.key_id)):
            known = parts.get(part, SlotSum(0, 0, 0, 0))
            parts[part] = SlotSum(
                known.cost_nanousd + amount.cost_nanousd,
                max(known.run_count, counts),
                known.floor_count + sum(_floors(amount)),
                max(known.present_count, is_there),
            )
    for (dimension, value), part_sum in parts.items():
        for slot in line_keys(place.org, place.at, dimension, value):
            sums.add(slot, part_sum, sign)
