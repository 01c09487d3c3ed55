"""Sums travel by the columns that move, and nothing is left behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contracts.types import BIGINT_MAX
from services.ledger.domain.amounts import COLUMNS, Amount
from services.ledger.store.sums import moved, parameters

FIGURES = st.one_of(st.just(0), st.integers(-(2**70), 2**70))
AMOUNTS = st.builds(Amount, *(FIGURES for _ in COLUMNS))


@given(st.lists(AMOUNTS))
def test_what_is_sent_adds_up_to_what_was_moved(amounts: list[Amount]) -> None:
    sent = {column.name: column.values for column in moved(amounts)}
    for name in COLUMNS:
        figures = tuple(getattr(amount, name) for amount in amounts)
        assert sent.get(name, (0,) * len(amounts)) == figures


@given(st.lists(AMOUNTS, min_size=1))
def test_only_what_fits_goes_as_64_bits(amounts: list[Amount]) -> None:
    for column in moved(amounts):
        assert any(column.values)
        fits = all(-BIGINT_MAX - 1 <= value <= BIGINT_MAX for value in column.values)
        assert (column.type == "bigint") == fits


def test_their_places_in_a_statement() -> None:
    columns = moved([Amount(cost_nanousd=2**70, output=3)], "own_")
    assert [column.name for column in columns] == ["own_cost_nanousd", "own_output"]
    assert parameters(columns, 8) == "$8::numeric[], $9::bigint[]"
    assert parameters(moved([]), 8) == ""
