"""Ingestion beside runs in one window's breakdowns."""

from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from services.ledger.domain.spend import (
    IngestedSum,
    Sum,
    costliest_first,
    ingestion_spend,
    merged,
)

names = st.sampled_from((None, "a", "b"))
sums = st.builds(Sum, st.integers(-5, 10**20), st.integers(0, 9), st.booleans())
ingested = st.lists(
    st.builds(
        IngestedSum,
        names,
        names,
        st.dates(date(2026, 11, 1), date(2026, 11, 4)),
        st.integers(-5, 10**20),
        st.integers(0, 9),
        st.integers(0, 2),
    ),
    max_size=9,
)


@given(lines=st.dictionaries(names, sums), further=ingested)
def test_every_breakdown_grows_by_what_was_ingested(lines, further):
    of_runs = sum(line.cost_nanousd for line in lines.values())
    apart = ingestion_spend(further)
    for field in ("provider", "key_id", "day"):
        both = merged(
            lines if field != "day" else {}, [(getattr(f, field), f.sum) for f in further]
        )
        expected = apart.cost_nanousd + (of_runs if field != "day" else 0)
        assert sum(line.cost_nanousd for line in both.values()) == expected
        assert any(line.is_partial for line in both.values()) == (
            apart.is_partial or (field != "day" and any(x.is_partial for x in lines.values()))
        )
        runs = sum(line.run_count for line in lines.values()) if field != "day" else 0
        assert sum(line.run_count for line in both.values()) == runs, "ingestion is no run"


@given(lines=st.dictionaries(names, sums))
def test_the_costliest_comes_first(lines):
    shown = costliest_first(lines)
    costs = [line.cost_nanousd for _, line in shown]
    assert costs == sorted(costs, reverse=True)
    assert dict(shown) == lines


def test_nothing_ingested_is_zero_and_exact():
    assert ingestion_spend([]).model_dump() == {
        "cost_nanousd": 0,
        "request_count": 0,
        "is_partial": False,
    }
