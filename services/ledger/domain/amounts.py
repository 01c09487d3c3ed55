"""Sums of entries as one value: what is added to a run, its tree, a month.

One vector for all of them, so that moving a run's spend elsewhere is one subtraction and one
addition and no figure can be forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add, sub

from contracts.ledger import TokenSums, Totals


@dataclass(frozen=True, slots=True)
class Amount:
    """Money in nano-USD, counts, and tokens; every field is a sum and may be negative."""

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

    def __add__(self, other: Amount) -> Amount:
        if self is NOTHING:
            return other
        return Amount(*map(add, self.values, other.values))

    def __sub__(self, other: Amount) -> Amount:
        return Amount(*map(sub, self.values, other.values))

    def __bool__(self) -> bool:
        return any(self.values)

    @property
    def values(self) -> tuple[int, ...]:
        """The fields in their order; `COLUMNS` names them."""
        return (
            self.cost_nanousd,
            self.request_count,
            self.unpriced_count,
            self.missing_delegate_count,
            self.input,
            self.output,
            self.cache_read,
            self.cache_write_5m,
            self.cache_write_1h,
            self.reasoning,
            self.audio_input,
            self.audio_output,
        )

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


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Amount))
NOTHING = Amount()
