"""Sums on their way into a statement: only the columns that something is added to.

Most requests count four of twelve figures. A column that nothing moves is not sent, and one whose
figures fit 64 bits goes as such: both ends spend less on it than on a numeric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from contracts.types import BIGINT_MAX, BIGINT_MIN
from services.ledger.domain.amounts import COLUMNS, Amount


class Moved(NamedTuple):
    """One column of an array each: its name, its type, what is added to each row."""

    name: str
    type: str
    values: tuple[int, ...]


def moved(amounts: Sequence[Amount], prefix: str = "") -> list[Moved]:
    """The columns in which any of these amounts is not 0; an amount per row, in order."""
    columns = []
    by_column = zip(*(amount.values for amount in amounts), strict=True)
    for name, values in zip(COLUMNS, by_column, strict=bool(amounts)):
        if any(values):
            fits = min(values) >= BIGINT_MIN and max(values) <= BIGINT_MAX
            columns.append(Moved(prefix + name, "bigint" if fits else "numeric", values))
    return columns


def parameters(columns: Sequence[Moved], first: int) -> str:
    """Their places in a statement, from `$first` on."""
    return ", ".join(f"${n}::{column.type}[]" for n, column in enumerate(columns, start=first))
