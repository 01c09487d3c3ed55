"""The rules of strict mode: grants, expiry, rates, and the invariant for any course of events."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contracts.ledger import Authorize
from contracts.types import CapMode, OnUnreachable, UnpricedPolicy
from services.ledger.domain.caps import Cap, Policy
from services.ledger.domain.holds import (
    GRACE,
    GRANT_TOKENS_MAX,
    GRANT_TOKENS_MIN,
    HELD_MAX,
    TIMEOUT_S_DEFAULT,
    CapKey,
    Estimate,
    Paid,
    cause_of,
    decide_strict,
    excess,
    expires_at,
    granted_tokens,
    prolonged,
)
from services.ledger.domain.request_rates import WINDOW_S, RequestRate
from tests.factories import NOON

POLICY = Policy(CapMode.STRICT, UnpricedPolicy.ALLOW_AS_FLOOR, OnUnreachable.ALLOW)
AMOUNTS = st.integers(min_value=0, max_value=1_000)


def asked(request_id: str = "a1") -> Authorize:
    return Authorize(
        request_id=request_id,
        run_id="r1",
        root_run_id="r1",
        agent_id="coder",
        root_agent_id="coder",
        user_id=None,
        started_by_user_id=None,
        model="m",
    )


def cap(scope: str, limit: int, spent: int = 0, held: int = 0) -> Cap:
    return Cap(
        scope=scope,  # type: ignore[arg-type]
        id=scope,
        name=scope,
        limit_nanousd=limit,
        spent_nanousd=spent,
        is_partial=False,
        month="2026-11",
        cap_revision=1,
        held_nanousd=held,
    )


def stated(most: int) -> Estimate:
    return Estimate(is_priced=True, is_free=False, most_nanousd=most, cost_of=None)


@given(price=st.integers(1, 10_000), base=st.integers(0, 10**6), room=st.integers(0, 10**9))
def test_a_grant_is_the_most_that_fits_into_its_share(price: int, base: int, room: int) -> None:
    def cost_of(tokens: int) -> int:
        return base + tokens * price

    tokens = granted_tokens(cost_of, room)
    assert GRANT_TOKENS_MIN <= tokens <= GRANT_TOKENS_MAX
    if tokens > GRANT_TOKENS_MIN:
        assert cost_of(tokens) * 8 <= room
    if tokens < GRANT_TOKENS_MAX:
        assert cost_of(tokens + 1) * 8 > room - 8


def test_the_least_grant_is_refused_where_it_does_not_fit() -> None:
    estimate = Estimate(is_priced=True, is_free=False, most_nanousd=None, cost_of=lambda n: n)
    caps = [cap("agent", GRANT_TOKENS_MIN), cap("organization", 10**9)]
    fits = decide_strict(asked=asked(), caps=caps, policy=POLICY, estimate=estimate, at=NOON)
    assert (fits.answer.output_tokens_max, fits.amount_nanousd) == (GRANT_TOKENS_MIN,) * 2
    caps[0] = cap("agent", GRANT_TOKENS_MIN - 1)
    refused = decide_strict(asked=asked(), caps=caps, policy=POLICY, estimate=estimate, at=NOON)
    assert refused.answer.refusal is not None
    assert refused.answer.refusal.scope == "agent"


def test_a_hold_lasts_as_long_as_its_request_may_take_and_as_its_run_speaks() -> None:
    assert expires_at(NOON, 30) == NOON + timedelta(seconds=30) + GRACE
    assert expires_at(NOON, None) == NOON + timedelta(seconds=TIMEOUT_S_DEFAULT) + GRACE
    until = NOON + timedelta(hours=1)
    assert prolonged(held_at=NOON, heard_at=None, until=until) is None
    assert prolonged(held_at=NOON, heard_at=until - GRACE, until=until) is None
    just = until - timedelta(seconds=1)
    assert prolonged(held_at=NOON, heard_at=just, until=until) == just + GRACE
    last = NOON + HELD_MAX
    assert prolonged(held_at=NOON, heard_at=last, until=last) is None


ORG = ("acme", "organization", "acme", "2026-11")
CODER = ("acme", "agent", "coder", "2026-11")


def cost(
    request_id: str,
    nanousd: int,
    held: int | None,
    *caps: CapKey,
    was_closed: bool = False,
    agent: str = "coder",
) -> Paid:
    scopes = frozenset({("organization", "acme"), ("agent", agent)})
    return Paid(request_id, nanousd, held, was_closed, scopes, caps)


def test_the_cause_is_that_of_the_request_that_exceeds_most() -> None:
    below = cost("a1", 5, 9, ORG)
    above = cost("a2", 20, 9, ORG)
    late = cost("a3", 12, None, ORG, was_closed=True)
    unheld = cost("a4", 13, None)
    assert cause_of([], ORG) == cause_of([below], ORG) == ("reattributed", None)
    assert cause_of([below, above], ORG) == ("actual_above_hold", "a2")
    assert cause_of([above, late], ORG) == ("settled_late", "a3")
    assert cause_of([late, unheld], ORG) == ("unheld_usage", "a4")


def test_a_cap_is_exceeded_by_what_counts_under_it_and_was_not_held_under_it() -> None:
    foreign = cost("b1", 99, None, agent="other")
    held = cost("a1", 5, 9, ORG, CODER)
    assert cause_of([foreign, held], CODER) == ("reattributed", None), "b1 is another agent's"
    before = cost("a2", 5, 9, ORG)
    assert cause_of([before, foreign], CODER) == ("unheld_usage", "a2"), "set while it was sent"
    of_other = cost("a3", 5, 9, ORG, ("acme", "agent", "other", "2026-11"))
    assert cause_of([of_other], CODER) == ("reattributed", "a3"), "held under another's cap"
    december = (*CODER[:3], "2026-12")
    assert cause_of([held], december) == ("settled_late", "a1"), "held in the month before"


@given(st.lists(st.integers(0, 7), max_size=200), st.integers(1, 20))
def test_no_minute_holds_more_requests_than_the_limit(steps: list[int], limit: int) -> None:
    rate, second, allowed = RequestRate(), 1_000, []
    for step in steps:
        second += step
        wait_s = rate.wait_s(second, limit)
        if wait_s == 0:
            rate = rate.allow(second)
            allowed.append(second)
        else:
            assert 0 < wait_s <= WINDOW_S
            assert rate.wait_s(second + wait_s - 1, limit) > 0
            assert rate.wait_s(second + wait_s, limit) == 0
    for begin in allowed:
        assert sum(begin <= each <= begin + 60 for each in allowed) <= limit


def test_a_clock_that_steps_back_frees_nothing() -> None:
    rate = RequestRate().allow(1_000).allow(1_000)
    assert rate.wait_s(900, 2) == WINDOW_S + 100
    assert rate.allow(900).counts[0] == 3


class Admission(RuleBasedStateMachine):
    """Two caps, one within the other, and everything that may happen to a request."""

    @initialize(inner=AMOUNTS, outer=AMOUNTS)
    def begin(self, inner: int, outer: int) -> None:
        self.caps = [cap("agent", inner), cap("organization", outer)]
        self.overruns = [0, 0]
        self.held: dict[str, int] = {}
        self.asked = 0

    def _move(self, spent: int, held: int) -> None:
        self.caps = [
            replace(
                each,
                spent_nanousd=each.spent_nanousd + spent,
                held_nanousd=(each.held_nanousd or 0) + held,
            )
            for each in self.caps
        ]

    def _note(self) -> None:
        for place, each in enumerate(self.caps):
            self.overruns[place] += excess(
                limit_nanousd=each.limit_nanousd,
                spent_nanousd=each.spent_nanousd,
                held_nanousd=each.held_nanousd or 0,
                overrun_nanousd=self.overruns[place],
            )

    @rule(most=AMOUNTS)
    def ask(self, most: int) -> None:
        self.asked += 1
        request_id = f"a{self.asked}"
        decided = decide_strict(
            asked=asked(request_id), caps=self.caps, policy=POLICY, estimate=stated(most), at=NOON
        )
        fits = all(
            each.spent_nanousd < each.limit_nanousd
            and each.spent_nanousd + (each.held_nanousd or 0) + most <= each.limit_nanousd
            for each in self.caps
        )
        assert decided.answer.allowed == fits
        if decided.answer.allowed:
            assert decided.amount_nanousd == most
            self.held[request_id] = most
            self._move(0, most)

    @rule(chance=st.randoms(use_true_random=False), actual=AMOUNTS)
    def settle(self, chance, actual: int) -> None:
        if self.held:
            held = self.held.pop(chance.choice(sorted(self.held)))
            self._move(actual, -held)
            if actual > held:
                self._note()

    @rule(chance=st.randoms(use_true_random=False))
    def expire(self, chance) -> None:
        if self.held:
            self._move(0, -self.held.pop(chance.choice(sorted(self.held))))

    @rule(actual=AMOUNTS)
    def report_unheld(self, actual: int) -> None:
        self._move(actual, 0)
        self._note()

    @rule(inner=AMOUNTS, outer=AMOUNTS)
    def change_caps(self, inner: int, outer: int) -> None:
        limits = (inner, outer)
        self.caps = [
            replace(each, limit_nanousd=limit)
            for each, limit in zip(self.caps, limits, strict=True)
        ]
        self._note()

    @invariant()
    def nothing_is_overspent(self) -> None:
        for each, overrun in zip(
            getattr(self, "caps", ()), getattr(self, "overruns", ()), strict=True
        ):
            used = each.spent_nanousd + (each.held_nanousd or 0)
            assert used <= each.limit_nanousd + overrun


TestAdmission = Admission.TestCase
