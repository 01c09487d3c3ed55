"""Corrections beside reports that come in any order: what a request amounts to, and its floors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.types import EntryKind, UsageKind
from services.ledger.domain.amounts import NOTHING
from services.ledger.domain.claims import claims_from_json, claims_to_json
from services.ledger.domain.correcting import Correctable, correct
from services.ledger.domain.merging import (
    Line,
    Report,
    draft_entries,
    line_of,
    merge,
    owner_of,
)
from services.ledger.errors import CorrectionChangesNothing

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)


def report(run: str, output: int, *, priced: bool, minute: int) -> Report:
    return Report(
        channel_id="c1",
        run_id=run,
        model="m",
        billed_run_id=run,
        kind="model",
        provider="p",
        key_id="",
        delegation_id=None,
        turn_id=None,
        month="2026-11",
        late_month="",
        authorized=False,
        interrupted=False,
        tokens=(0, output, 0, 0, 0, 0, 0, 0),
        cost_nanousd=output * 10 if priced else 0,
        priced=priced,
        reason=None if priced else "unknown_model",
        price_source="catalogue" if priced else "unpriced",
        price_set="s",
        provider_amount=None,
        provider_currency=None,
        occurred_at=AT + timedelta(minutes=minute),
        billed_at=AT,
        digest=f"{run}-{output}-{priced}-{minute}",
    )


reports = st.builds(
    report,
    st.sampled_from(("r1", "r2")),
    st.integers(1, 4),
    priced=st.booleans(),
    minute=st.integers(0, 3),
)
acts = st.lists(
    st.one_of(reports, st.tuples(st.integers(0, 20), st.integers(0, 60))), min_size=1, max_size=14
)


@given(acts=acts)
def test_an_entry_amounts_to_what_was_said_last_and_no_floor_is_counted_below_zero(acts):
    claims, entered, moved, following = (), [], [], 0
    for act in acts:
        if isinstance(act, Report):
            after = merge(claims, act)
            entered += [
                [draft.line, draft.report.run_id, draft.amount, [], draft.reason]
                for draft in draft_entries(claims, after)
                if not draft.is_correction
            ]
            moved += [draft for draft in draft_entries(claims, after) if draft.is_correction]
            claims = claims_from_json(claims_to_json(after))
            assert claims == after, "what is kept says the same"
        elif entered:
            position, target = act
            line, run_id, amount, corrections, reason = entered[position % len(entered)]
            so_far = amount.cost_nanousd + sum(each.cost_nanousd for each in corrections)
            is_conflict = reason == "request_conflict"
            standing = Correctable(run_id, line, amount.unpriced_count, so_far, is_conflict)
            try:
                made = correct(standing, target, claims, "2026-11")
            except CorrectionChangesNothing:
                assert so_far == target
                continue
            corrections.append(made.amount)
            moved += made.moved
            following += 0 if is_conflict else made.amount.cost_nanousd
            claims = made.claims
            assert so_far + made.amount.cost_nanousd == target
            assert made.line == line
            assert made.amount.request_count == 0
            claims = claims_from_json(claims_to_json(claims))
        _assert_what_was_said_lies_with_the_request(claims, entered, moved, following)
        floors: dict[Line, int] = {}
        for line, _, amount, corrections, _ in entered:
            total = sum((each for each in corrections), amount)
            floors[line] = floors.get(line, 0) + total.unpriced_count
        assert all(count in (0, 1) for count in floors.values())
        unsettled = [
            claim
            for claim in claims
            if not claim.is_settled and (not claim.best.priced or claim is not owner_of(claims))
        ]
        assert sum(floors.values()) == len(unsettled)
    requests = sum(amount.request_count for _, _, amount, _, _ in entered)
    assert requests == (1 if claims else 0)


def _assert_what_was_said_lies_with_the_request(claims, entered, moved, following):
    """On the line of whoever owns it now, and with nobody who owned it before."""
    assert sum(draft.amount.cost_nanousd for draft in moved) == 0
    lines: dict[Line, int] = {}
    for line, _, amount, corrections, reason in entered:
        total = amount.cost_nanousd
        if reason != "request_conflict":
            total += sum(each.cost_nanousd for each in corrections)
        lines[line] = lines.get(line, 0) + total
    for draft in moved:
        lines[draft.line] = lines.get(draft.line, 0) + draft.amount.cost_nanousd
    owner = owner_of(claims).best if claims else None
    for line, total in lines.items():
        is_owner = owner is not None and line == line_of(owner)
        assert total == (owner.cost_nanousd + following if is_owner else 0)


def test_an_entry_is_of_a_kind_of_request_or_a_correction():
    assert {kind.value for kind in EntryKind} == {*(kind.value for kind in UsageKind), "correction"}


def test_corrections_do_not_change_what_further_reports_add():
    small, grown = report("r1", 1, priced=True, minute=0), report("r1", 4, priced=True, minute=0)
    claims = merge((), small)
    entry = Correctable("r1", Line("r1", "2026-11", "p", "m", "", "model"), 0, 10)
    corrected = correct(entry, 99, claims, "2026-11")
    (draft,) = draft_entries(corrected.claims, merge(corrected.claims, grown))
    assert draft.amount.cost_nanousd == 30


@pytest.mark.parametrize(
    ("this_month", "late"), [("2026-11", ""), ("2026-12", "2026-12"), ("2026-10", "")]
)
def test_a_month_that_is_over_is_borne_by_the_month_of_the_correction(this_month, late):
    entry = Correctable("r1", Line("r1", "2026-11", "p", "m", "", "model"), 0, 10)
    claims = merge((), report("r1", 1, priced=True, minute=0))
    made = correct(entry, 5, claims, this_month)
    assert (made.line.month, made.line.late_month) == ("2026-11", late)
    assert made.amount - NOTHING == made.amount
    assert made.amount.cost_nanousd == -5


def test_the_order_of_corrections_is_that_of_their_making():
    entry = Correctable("r1", Line("r1", "2026-11", "p", "m", "", "model"), 0, 10)
    claims = merge((), report("r1", 1, priced=True, minute=0))
    amounts = [10, 7, 7_000, 0]
    for before, after in pairwise(amounts):
        standing = Correctable("r1", entry.line, 0, before)
        assert correct(standing, after, claims, "2026-11").amount.cost_nanousd == after - before
    with pytest.raises(CorrectionChangesNothing):
        correct(entry, 10, claims, "2026-11")
