"""Which caps a batch of amounts may have exceeded, worked out before anything is locked.

Whoever enters amounts locks the row of a cap only where more came in than was let go with it: what
stays within its holds can exceed nothing. Pure; all amounts nano-USD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contracts.holds import OverrunCause
from services.ledger.domain.amounts import NOTHING
from services.ledger.domain.books import MONTHLESS, Books, RunKey
from services.ledger.domain.holds import NO_MONTH, CapKey, Paid, cause_of


@dataclass(frozen=True, slots=True)
class Moved:
    """What a transaction entered or moved, and what it let go."""

    books: Books
    strict: Mapping[str, str]
    """Organizations in strict mode, each with the month that it is in."""
    released: Mapping[CapKey, int] = field(default_factory=dict)
    paid: Mapping[str, Sequence[Paid]] = field(default_factory=dict)
    """By organization."""
    cause: OverrunCause | None = None
    """Where it is known beforehand."""

    def why(self, key: CapKey) -> tuple[OverrunCause, str | None]:
        """The cause of what a cap is exceeded by, and the request that did it.

        A run's own cap may be learned of only when more than it is spent: nothing came in then.
        """
        run_key = (key[0], key[2])
        if key[1] == "run" and run_key in self.books.runs and not _came_in(self, run_key):
            before, run = self.books.before[run_key], self.books.runs[run_key]
            if before.budget_nanousd != run.budget_nanousd:
                return "cap_lowered", None
        if self.cause is not None:
            return self.cause, None
        return cause_of(self.paid.get(key[0], ()), key)


def risen_months(moved: Moved) -> set[CapKey]:
    """Months under scopes that more came into than was let go; those that are over bind nobody."""
    return {
        key
        for key, amount in moved.books.months.items()
        if key[0] in moved.strict
        and (key[1] in MONTHLESS or key[3] >= moved.strict[key[0]])
        and amount.cost_nanousd + amount.late_nanousd > moved.released.get(key, 0)
    }


def risen_runs(moved: Moved) -> dict[CapKey, int]:
    """Runs with a cap of their own that is lower now, or that more came into than was let go."""
    books = moved.books
    return {
        run_cap(key): run.budget_nanousd
        for key, run in books.runs.items()
        if key[0] in moved.strict and run.budget_nanousd is not None and _has_risen(moved, key)
    }


def run_cap(key: RunKey) -> CapKey:
    """The row that a run's own cap is decided under."""
    return (key[0], "run", key[1], NO_MONTH)


def _has_risen(moved: Moved, key: RunKey) -> bool:
    books = moved.books
    run, before = books.runs[key], books.before[key]
    if (run.budget_nanousd, run.is_root) != (before.budget_nanousd, before.is_root):
        return True
    return _came_in(moved, key)


def _came_in(moved: Moved, key: RunKey) -> bool:
    """Whether more came into what a run's cap measures than was let go."""
    books = moved.books
    amounts = books.tree if books.runs[key].is_root else books.own
    return amounts.get(key, NOTHING).cost_nanousd > moved.released.get(run_cap(key), 0)
