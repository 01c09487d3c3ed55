"""How what belongs to no run is put beside what runs spent, in one window's breakdowns.

Pure. Runs are selected by their start, ingestion by when it occurred (design.md 3, *Windows*); a
breakdown is the sum of both, so that all of them add up to the same bill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TypeVar

from contracts.ledger import IngestionSpend

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Sum:
    """One row of a breakdown: nano-USD, and runs; ingestion adds no run."""

    cost_nanousd: int
    run_count: int
    is_partial: bool

    def __add__(self, other: Sum) -> Sum:
        return Sum(
            self.cost_nanousd + other.cost_nanousd,
            self.run_count + other.run_count,
            self.is_partial or other.is_partial,
        )


@dataclass(frozen=True, slots=True)
class IngestedSum:
    """What was ingested on one day with one provider and key."""

    provider: str | None
    key_id: str | None
    day: date
    """In the billing time zone."""
    cost_nanousd: int
    request_count: int
    floor_count: int

    @property
    def sum(self) -> Sum:
        """As a row of a breakdown."""
        return Sum(self.cost_nanousd, 0, self.floor_count > 0)


def merged(lines: Mapping[K, Sum], further: Iterable[tuple[K, Sum]]) -> dict[K, Sum]:
    """Add further amounts to the rows of a breakdown; a row of its own where there is none."""
    result = dict(lines)
    for key, amount in further:
        result[key] = result[key] + amount if key in result else amount
    return result


def costliest_first(lines: Mapping[str | None, Sum]) -> list[tuple[str | None, Sum]]:
    """Rows in the order in which they are shown; equals by name."""
    return sorted(lines.items(), key=lambda item: (-item[1].cost_nanousd, item[0] or ""))


def ingestion_spend(sums: Iterable[IngestedSum]) -> IngestionSpend:
    """Everything that was ingested in the window."""
    sums = list(sums)
    return IngestionSpend(
        cost_nanousd=sum(each.cost_nanousd for each in sums),
        request_count=sum(each.request_count for each in sums),
        is_partial=any(each.floor_count > 0 for each in sums),
    )
