"""Which departments a run counts in, when a change of them matters, and when a month begins."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from services.ledger.domain.departments import (
    FOREVER,
    Interval,
    changed_spans,
    departments_at,
    departments_of,
)
from services.ledger.domain.months import UTC_ALWAYS, Zone, month_begin, month_of, next_month
from services.ledger.domain.runs import Run, unheard

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
INSTANTS = st.integers(0, 8).map(lambda minute: AT + timedelta(minutes=minute))
INTERVALS = st.tuples(INSTANTS, INSTANTS | st.just(FOREVER)).map(
    lambda pair: Interval("sales", min(pair), max(pair))
)
PEOPLE = st.dictionaries(st.sampled_from(("ana", "bea")), st.lists(INTERVALS, max_size=3))
ZONES = ("UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Madrid", "Asia/Beirut")


def root(**changes: object) -> Run:
    return replace(unheard("r1", "c1"), **changes)  # type: ignore[arg-type]


def test_an_interval_holds_from_its_begin_and_before_its_end() -> None:
    ends = AT + timedelta(minutes=1)
    intervals = (Interval("sales", AT, ends), Interval("finance", ends))
    instants = (AT - timedelta(microseconds=1), AT, ends - timedelta(microseconds=1), ends)
    assert [departments_at(intervals, at) for at in instants] == [
        (),
        ("sales",),
        ("sales",),
        ("finance",),
    ]


def test_a_tree_is_of_who_started_it_by_the_best_known_begin() -> None:
    belongs = {("acme", "ana"): (Interval("sales", AT),)}
    begun = root(started_by_user_id="ana", started_at=AT)
    seen = root(started_by_user_id="ana", first_sign_at=AT)
    for run in (begun, seen, replace(begun, first_sign_at=AT - timedelta(days=1))):
        assert departments_of("acme", run, belongs) == ("sales",)
    early = replace(seen, first_sign_at=AT - timedelta(seconds=1))
    for run in (None, root(started_at=AT), root(started_by_user_id="ana"), early):
        assert departments_of("acme", run, belongs) == ()
    assert departments_of("other", begun, belongs) == ()


@given(before=PEOPLE, after=PEOPLE, at=INSTANTS)
def test_a_span_holds_every_instant_that_differs_and_there_is_none_without(
    before: dict[str, list[Interval]], after: dict[str, list[Interval]], at: datetime
) -> None:
    key = ("acme", "sales")
    spans = {span.user_id: span for span in changed_spans({key: before}, {key: after})}
    for user_id in ("ana", "bea"):
        old = departments_at(before.get(user_id, ()), at)
        new = departments_at(after.get(user_id, ()), at)
        if old != new:
            assert spans[user_id].since <= at < spans[user_id].until
        if user_id in spans:
            begin = spans[user_id].since
            assert departments_at(before.get(user_id, ()), begin) != departments_at(
                after.get(user_id, ()), begin
            )


def test_whoever_joins_now_concerns_nothing_of_before() -> None:
    """The span is what bounds the work: a long history is not read for a new member."""
    long_ago = Interval("sales", AT - timedelta(days=900), AT)
    key = ("acme", "sales")
    (span,) = changed_spans(
        {key: {"ana": [long_ago]}}, {key: {"ana": [long_ago, Interval("sales", AT)]}}
    )
    assert (span.since, span.until) == (AT, FOREVER)
    assert changed_spans({key: {"ana": [long_ago]}}, {key: {"ana": [long_ago]}}) == []


@given(
    month=st.integers(2010 * 12, 2090 * 12).map(lambda n: f"{n // 12:04d}-{n % 12 + 1:02d}"),
    names=st.lists(st.sampled_from(ZONES), min_size=1, max_size=3),
    froms=st.lists(st.integers(2010, 2090), min_size=2, max_size=2, unique=True),
)
def test_a_month_begins_at_its_first_instant(
    month: str, names: list[str], froms: list[int]
) -> None:
    begins = ("0001-01", *(f"{year}-05" for year in sorted(froms)))
    zones = tuple(Zone(begin, name) for begin, name in zip(begins, names, strict=False))
    at = month_begin(month, zones)
    assert month_of(at, zones) == month
    assert month_of(at - timedelta(microseconds=1), zones) < month
    assert at < month_begin(next_month(month), zones)


def test_a_month_of_utc_begins_at_midnight() -> None:
    assert month_begin("2026-11", UTC_ALWAYS) == datetime(2026, 11, 1, tzinfo=UTC)
    assert month_begin("2026-11", ()) == datetime(2026, 11, 1, tzinfo=UTC)
