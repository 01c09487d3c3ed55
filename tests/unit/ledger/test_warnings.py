"""When a cap is near, and what counts as a stop."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from contracts.ledger import Authorization, CapLeft, CapScope, Refusal
from contracts.types import OnUnreachable
from services.ledger.domain.books import MonthAmount
from services.ledger.domain.warnings import SetCap, is_near, stop_of, warnings_of

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
SALES = SetCap("department", "sales", "Sales", "lea", 100, 3)


@given(limit=st.integers(1, 2**63 - 1), spent=st.integers(-(10**30), 10**30))
def test_near_is_four_fifths_exactly(limit: int, spent: int) -> None:
    assert is_near(limit_nanousd=limit, spent_nanousd=spent) == (5 * spent >= 4 * limit)


def test_a_cap_of_nothing_is_not_near_before_something_is_spent() -> None:
    assert not is_near(limit_nanousd=0, spent_nanousd=0)
    assert is_near(limit_nanousd=0, spent_nanousd=1)


def test_warns_of_this_month_and_the_next_with_what_came_late() -> None:
    caps = {("acme", "department", "sales"): SALES}
    spent = {
        ("acme", "department", "sales", "2026-10"): MonthAmount(500, 0, 0),
        ("acme", "department", "sales", "2026-11"): MonthAmount(50, 1, 30),
        ("acme", "department", "sales", "2026-12"): MonthAmount(80, 0, 0),
        ("acme", "agent", "coder", "2026-11"): MonthAmount(500, 0, 0),
    }
    found = warnings_of(spent, caps, {"acme": "2026-11"})
    assert [(each.month, each.spent_nanousd, each.is_partial) for each in found] == [
        ("2026-11", 80, True),
        ("2026-12", 80, False),
    ]


def answer(scope: CapScope, spent: int, revision: int | None = 3) -> Authorization:
    cap = CapLeft(
        scope=scope,
        id="x",
        name="X",
        limit_nanousd=100,
        spent_nanousd=spent,
        remaining_nanousd=max(100 - spent, 0),
        is_partial=False,
        cap_revision=revision,
    )
    refusal = Refusal(code="budget_exceeded", scope=scope, id="x", name="X")
    return Authorization(
        request_id="a1",
        allowed=False,
        refusal=refusal,
        sentence="No.",
        remaining=(cap,),
        on_unreachable=OnUnreachable.REFUSE,
        decided_at=AT,
    )


def test_a_stop_is_a_refusal_by_a_months_cap_that_is_used_up() -> None:
    stop = stop_of("acme", answer("agent", 100), "2026-11", "r1")
    assert stop is not None
    assert stop.key == ("acme", "agent", "x", 3, "2026-11", 100)
    assert stop_of("acme", answer("agent", 99), "2026-11", "r1") is None
    assert stop_of("acme", answer("run", 100, None), "2026-11", "r1") is None
    allowed = answer("agent", 100).model_copy(update={"refusal": None, "allowed": True})
    assert stop_of("acme", allowed, "2026-11", "r1") is None
