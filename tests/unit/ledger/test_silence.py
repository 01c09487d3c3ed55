"""When silence proves something: never while signs of life could not come through."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import assume, given
from hypothesis import strategies as st

from services.ledger.domain.silence import SLOW_MAX, STEP_MAX, Look, Vigil
from tests.factories import NOON

THRESHOLD = timedelta(seconds=120)


def look(seconds: float, *, server: float = 0, room: float = 0, connections: int = 0) -> Look:
    """What is seen after so many seconds, with clocks that were set by so many."""
    return Look(
        watermark_at=NOON + timedelta(seconds=seconds + server),
        clock_at=NOON + timedelta(seconds=seconds + room),
        passed=timedelta(seconds=seconds),
        connections=connections,
    )


def vigil(*looks: Look) -> Vigil:
    kept = Vigil()
    for one in looks:
        kept = kept.after(one)
    return kept


def test_nobody_is_judged_within_one_threshold_of_the_start() -> None:
    assert not vigil().may_judge(THRESHOLD)
    assert not vigil(look(0), look(60), look(120)).may_judge(THRESHOLD)
    assert vigil(look(0), look(60), look(121)).may_judge(THRESHOLD)
    assert vigil(look(121)).may_judge(THRESHOLD), "a first look that comes late is no shorter vigil"
    assert not vigil(look(121, connections=1)).may_judge(THRESHOLD)


def test_a_lost_connection_begins_the_vigil_anew() -> None:
    lost = vigil(look(0), look(300), look(360, connections=1))
    assert not lost.may_judge(THRESHOLD)
    assert not lost.after(look(420, connections=1)).may_judge(THRESHOLD)
    assert lost.after(look(481, connections=1)).may_judge(THRESHOLD)


@given(
    step=st.floats(-1e6, 1e6).filter(lambda step: abs(step) > STEP_MAX.total_seconds() + 1),
    of_the_server=st.booleans(),
)
def test_a_step_of_either_clock_begins_the_vigil_anew(step: float, of_the_server: bool) -> None:
    stepped = {"server": step} if of_the_server else {"room": step}
    after = vigil(look(0), look(300), look(360, **stepped))
    assert not after.may_judge(THRESHOLD)
    later = after.after(look(481, **stepped))
    signs_are_refused = look(0, **stepped).watermark_at - look(0, **stepped).clock_at > SLOW_MAX
    assert later.may_judge(THRESHOLD) != signs_are_refused, "and it goes on from there"


@given(drift=st.floats(-9, 9), looks=st.integers(2, 30))
def test_clocks_that_drift_are_no_step(drift: float, looks: int) -> None:
    # As far back as that, a clock refuses signs of life: that is another rule.
    assume(-drift * (looks + 1) < SLOW_MAX.total_seconds())
    seen = [look(60 * n, room=drift * n) for n in range(looks + 2)]
    assert vigil(*seen).may_judge(THRESHOLD)
