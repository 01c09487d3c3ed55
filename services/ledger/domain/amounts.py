"""Sums of entries as one value: what is added to a run, its tree, a month.

One vector for all of them, so that moving a run's spend elsewhere is one subtraction and one
addition and no figure can be forgotten.
"""

from __future__ import annotations

from operator import add, sub
from typing import NamedTuple

from contracts.ledger import TokenSums, Totals


class Amount(NamedTuple):
    """Money in nano-USD, counts, and tokens; every field is a sum and may be negative.

    A tuple for its speed: every entry makes several of them.
    """

    cost_nanousd: int = 0
    request_count: int = 0
    unpriced_count: int = 0
    missing_delegate_count: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    reasoning: int = 0
    audio_input: int = 0
    audio_output: int = 0

    def __add__(self, other: Amount) -> Amount:  # type: ignore[override]
        """Field by field, not one tuple after the other."""
        if self is NOTHING:
            return other
        return Amount._make(map(add, self, other))

    def __sub__(self, other: Amount) -> Amount:
        return Amount._make(map(sub, self, other))

    def __bool__(self) -> bool:
        return any(tuple(self))

    @property
    def values(self) -> tuple[int, ...]:
        """The fields in their order; `COLUMNS` names them."""
        return tuple(self)

    @property
    def is_partial(self) -> bool:
        """Whether the money is a floor (design.md 3, *Unknown is not zero*)."""
        return self.unpriced_count > 0 or self.missing_delegate_count > 0

    @property
    def totals(self) -> Totals:
        """The same on the wire."""
        return Totals(
            cost_nanousd=self.cost_nanousd,
            request_count=self.request_count,
            unpriced_count=self.unpriced_count,
            missing_delegate_count=self.missing_delegate_count,
            tokens=TokenSums(
                input=self.input,
                output=self.output,
                cache_read=self.cache_read,
                cache_write_5m=self.cache_write_5m,
                cache_write_1h=self.cache_write_1h,
                reasoning=self.reasoning,
                audio_input=self.audio_input,
                audio_output=self.audio_output,
            ),
        )


COLUMNS: tuple[str, ...] = Amount._fields
NOTHING = Amount()
