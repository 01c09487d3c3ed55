"""A run's own signs of life, and those that a root shows of its tree."""

from __future__ import annotations

import random
from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from services.ledger.domain.runs import saw_sign, showed_sign, shows_itself, unheard
from tests.factories import NOON, minutes

SIGNS = st.lists(st.tuples(st.booleans(), st.integers(-9, 9), st.integers(0, 9)), max_size=8)


def seen(signs):
    def note(run, sign):
        is_own, at, later = sign
        heard = NOON + minutes(at + later)
        return (saw_sign if is_own else showed_sign)(run, NOON + minutes(at), heard)

    return reduce(note, signs, unheard("r", "c1"))


@given(SIGNS, st.integers(0, 2**32))
def test_every_order_and_repetition_shows_the_same(signs, seed):
    chance = random.Random(seed)
    again = signs + chance.choices(signs, k=len(signs))
    chance.shuffle(again)
    assert seen(again) == seen(signs)


@given(SIGNS)
def test_it_shows_itself_as_if_its_tree_had_never_been_alive(signs):
    assert shows_itself(seen(signs)) == seen([sign for sign in signs if sign[0]])


def test_a_tree_is_no_sign_of_its_roots_own():
    run = showed_sign(unheard("r", "c1"), NOON, NOON)
    assert (run.first_sign_at, run.own_first_sign_at) == (NOON, None)
    assert shows_itself(run).last_sign_at is None
