"""Where a run stands: every order and repetition of the same facts leaves the same run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.channel import ParkedCall, RunDeleted, RunParked, RunResumed
from contracts.types import RunStatus, Surface
from services.ledger.domain.life import (
    REAPED_SENTENCE,
    Transition,
    apply_deletion,
    apply_move,
    apply_verdict,
    deletion_of,
    is_reaped,
    move_of,
    reason_of,
    settle,
    verdict_on,
)
from services.ledger.domain.runs import Run, apply_end, apply_start, saw_sign, unheard
from tests.factories import NOON, finished, minutes, started

CALL = ParkedCall(call_id="call", tool_id="mail", tool_name="mail", arguments="{}")
Fact = Callable[[Run], Run]


def start(at: int = 0, **said: object) -> Fact:
    data = started("r", started_at=NOON + minutes(at), **said)
    return lambda run: saw_sign(apply_start(run, data), data.started_at, data.started_at)


def park(at: int, state: str = "s") -> Fact:
    move = move_of(RunParked(run_id="r", at=NOON + minutes(at), calls=(CALL,), state_ref=state))
    return lambda run: saw_sign(apply_move(run, move), move.at, move.at)


def resume(at: int, claim: str = "c") -> Fact:
    move = move_of(RunResumed(run_id="r", at=NOON + minutes(at), claim_id=claim))
    return lambda run: saw_sign(apply_move(run, move), move.at, move.at)


def end(at: int, status: RunStatus = RunStatus.COMPLETED, error: str | None = None) -> Fact:
    data = finished("r", status=status, ended_at=NOON + minutes(at), error=error)
    return lambda run: saw_sign(apply_end(run, data), data.ended_at, data.ended_at)


def sign(at: int) -> Fact:
    return lambda run: saw_sign(run, NOON + minutes(at), NOON + minutes(at))


def deletion(at: int) -> Fact:
    fact = deletion_of(RunDeleted(run_id="r", deleted_at=NOON + minutes(at)))
    return lambda run: apply_deletion(run, fact)


def verdict(sign_at: int, at: int = 60) -> Fact:
    fact = Transition(
        "r", "reaped", NOON + minutes(at), f"v{sign_at}", sign_at=NOON + minutes(sign_at)
    )
    return lambda run: apply_verdict(run, fact)


def after(*facts: Fact) -> Run:
    run = unheard("r", "c1")
    for fact in facts:
        run = settle(fact(run))
    return run


INSTANTS = st.integers(0, 4)
FACTS = st.one_of(
    st.builds(
        start,
        INSTANTS,
        surface=st.sampled_from((Surface.CLI, Surface.VOICE)),
        agent_id=st.sampled_from(("a", "b")),
    ),
    st.builds(park, INSTANTS, st.sampled_from(("s", "t"))),
    st.builds(resume, INSTANTS, st.sampled_from(("c", "d"))),
    st.builds(
        end, INSTANTS, st.sampled_from((RunStatus.FAILED, RunStatus.COMPLETED)), st.just("e")
    ),
    st.builds(sign, INSTANTS),
    st.builds(deletion, INSTANTS),
    st.builds(verdict, INSTANTS, st.sampled_from((60, 61))),
)


@given(facts=st.lists(FACTS, max_size=8), chance=st.randoms())
def test_every_order_and_repetition_of_facts_leaves_the_same_run(
    facts: Sequence[Fact], chance: random.Random
) -> None:
    known = after(*facts)
    for _ in range(3):
        again = [*facts, *(chance.choices(list(facts), k=3) if facts else [])]
        chance.shuffle(again)
        assert after(*again) == known


@given(facts=st.lists(FACTS, max_size=6), instant=INSTANTS)
def test_a_real_end_holds_over_every_verdict_park_and_sign(
    facts: Sequence[Fact], instant: int
) -> None:
    run = after(*facts, end(instant, RunStatus.CANCELLED))
    assert run.end_digest is not None
    assert run.error != REAPED_SENTENCE
    assert run.status in (RunStatus.CANCELLED, RunStatus.FAILED, RunStatus.COMPLETED)


@given(facts=st.lists(FACTS, max_size=8))
def test_a_parked_run_is_never_reaped(facts: Sequence[Fact]) -> None:
    run = after(*facts, park(9))
    assert run.status == RunStatus.AWAITING_APPROVAL or run.end_digest is not None


@given(facts=st.lists(FACTS, max_size=8))
def test_a_sign_after_every_verdict_reopens(facts: Sequence[Fact]) -> None:
    run = after(*facts, sign(9))
    assert not is_reaped(run)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ((start(),), "running"),
        ((start(), park(1)), "awaiting_approval"),
        ((start(), park(1), resume(2)), "running"),
        ((start(), park(1), resume(2), park(3)), "awaiting_approval"),
        ((resume(2), park(2)), "awaiting_approval"),
        ((start(), verdict(0)), "failed"),
        ((verdict(0), start()), "failed"),
        ((start(surface=Surface.VOICE), verdict(0)), "running"),
        ((start(), verdict(0), sign(1)), "running"),
        ((start(), sign(1), verdict(0)), "running"),
        ((start(), verdict(0), sign(1), verdict(1)), "failed"),
        ((start(), verdict(1), park(1)), "awaiting_approval"),
        ((start(), park(0), resume(1), verdict(1)), "failed"),
        ((start(), verdict(1), end(0)), "completed"),
        ((start(), end(0), verdict(1)), "completed"),
        ((start(), end(1), resume(2)), "completed"),
        ((start(), end(1), end(2, RunStatus.CANCELLED)), "cancelled"),
    ],
)
def test_the_status_that_facts_amount_to(facts: Sequence[Fact], status: str) -> None:
    assert after(*facts).status == status


def test_a_verdict_says_a_fixed_sentence_and_the_last_sign_as_the_end() -> None:
    run = after(start(), sign(3), verdict(3))
    assert (run.error, run.ended_at) == (REAPED_SENTENCE, NOON + minutes(3))
    reopened = after(start(), sign(3), verdict(3), sign(4))
    assert (reopened.error, reopened.ended_at) == (None, None)


def test_a_verdict_on_what_turns_out_to_be_delegated_is_void() -> None:
    run = after(verdict(0), start(root_run_id="root", parent_run_id="root"))
    assert settle(replace(run, root_run_id="root")).status == "running"


def test_nothing_is_said_of_a_run_without_a_sign() -> None:
    assert verdict_on(unheard("r", "c1"), at=NOON, watermark_at=NOON) is None


@pytest.mark.parametrize(
    ("before", "fact", "reason"),
    [
        ((), start(), "started"),
        ((), sign(0), None),
        ((start(),), sign(1), None),
        ((start(),), park(1), "parked"),
        ((start(), park(1)), resume(2), "resumed"),
        ((start(), park(1)), resume(0), None),
        ((start(),), verdict(0), "reaped"),
        ((start(), verdict(0)), sign(1), "reopened"),
        ((start(), verdict(0)), park(1), "parked"),
        ((start(), verdict(0)), resume(1), "resumed"),
        ((start(), verdict(0)), end(0), "finished"),
        ((start(), end(2)), end(1), None),
        ((start(), end(2)), sign(9), None),
        ((), deletion(0), "deleted"),
        ((start(), end(2)), deletion(1), "deleted"),
        ((start(), deletion(2)), deletion(1), None),
        ((start(), deletion(2)), sign(9), None),
    ],
)
def test_the_reason_for_which_a_change_is_said(
    before: Sequence[Fact], fact: Fact, reason: str | None
) -> None:
    known = after(*before)
    assert reason_of(known, settle(fact(known))) == reason


def test_another_tree_is_said_of_a_run_that_was_told_of() -> None:
    known = replace(after(start()), revision=1)
    assert reason_of(known, replace(known, root_run_id="other")) == "reattributed"
    assert reason_of(replace(known, revision=0), replace(known, root_run_id="other")) is None
