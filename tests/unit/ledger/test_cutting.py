"""Where trees are cut off by deletions: whatever is said first, the same runs are roots."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from services.ledger.domain.books import Books
from services.ledger.domain.runs import Run, unheard

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
ORG = "acme"
RUNS = 7


@st.composite
def forests(draw) -> tuple[dict[str, str | None], set[str]]:
    """Each run's parent, circles among them, and who is deleted."""
    parents = {
        f"r{number}": draw(
            st.none()
            | st.integers(0, RUNS - 1)
            .filter(lambda other, number=number: other != number)
            .map(lambda other: f"r{other}")
        )
        for number in range(RUNS)
    }
    return parents, draw(st.sets(st.sampled_from(sorted(parents)), max_size=4))


def told(parents: dict[str, str | None], gone: set[str], order: list[tuple[str, str]]) -> Books:
    """Everything one after the other, as batches of one would."""
    known = {(ORG, run_id): unheard(run_id, "c1") for run_id in parents}
    for run_id, what in order:
        books = Books()
        books.load(known)
        key = (ORG, run_id)
        if what == "start":
            books.runs[key] = replace(known[key], parent_run_id=parents[run_id])
        elif run_id in gone:
            books.runs[key] = replace(known[key], deleted_at=AT)
        books.cut(books.to_cut())
        known = books.runs
    result = Books()
    result.load(known)
    result.reroot()
    return result


def roots_by_the_rule(parents: dict[str, str | None], gone: set[str]) -> dict[str, str | None]:
    """Going up, the first run whose parent is deleted; None: nobody above was deleted."""
    found: dict[str, str | None] = {}
    for run_id in parents:
        place, path = run_id, [run_id]
        while (parent := parents[place]) is not None and parent not in gone:
            if parent in path:
                break
            path.append(parent)
            place = parent
        found[run_id] = place if parents[place] in gone else None
    return found


@given(forest=forests(), chance=st.randoms())
def test_every_order_cuts_the_same(forest, chance: random.Random) -> None:
    parents, gone = forest
    order = [(run_id, what) for run_id in parents for what in ("start", "deletion")]
    first = told(parents, gone, order)
    chance.shuffle(order)
    again = told(parents, gone, [*order, *chance.choices(order, k=3)])
    assert again.runs == first.runs
    for run_id, root in roots_by_the_rule(parents, gone).items():
        run = first.runs[(ORG, run_id)]
        assert run.cut_run_ids[:1] == (() if root is None else (root,))
        assert run.is_cut == (parents[run_id] in gone)
        assert run.root_run_id == (run_id if root is None else root)
        assert run.shown_parent_run_id == (None if run.is_cut else parents[run_id])


def test_a_run_named_as_root_that_was_cut_off_itself_is_the_root() -> None:
    """A delegate of an unheard parent hangs under the root that it names, wherever that is."""

    def run(run_id: str, said_root: str, **known: object) -> Run:
        made = replace(unheard(run_id, "c1"), said_root_run_id=said_root)
        return replace(made, **known)

    books = Books()
    books.load(
        {
            (ORG, "old"): run("old", "old", deleted_at=AT),
            (ORG, "root"): run("root", "old", parent_run_id="old"),
            (ORG, "child"): run("child", "root", parent_run_id="unheard"),
        }
    )
    books.cut(list(books.runs))
    books.reroot()
    assert {key[1]: found.root_run_id for key, found in books.runs.items()} == {
        "old": "old",
        "root": "root",
        "child": "root",
    }
