"""Which departments a run counts in: those that its starter belonged to when it began.

The seed, *El tope de un departamento*: a department measures the runs that its members started, on
any agent; somebody in two departments counts in full in both; a run that nobody started counts in
none. Who started a tree is said by its root, and so is when (design.md 4).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from services.ledger.domain.runs import Run

FOREVER = datetime.max.replace(tzinfo=UTC)
PersonKey = tuple[str, str]
"""Organization and user id."""
DepartmentKey = tuple[str, str]
"""Organization and department id."""


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """That a person belongs to a department: from `since` on, before `until`."""

    department_id: str
    since: datetime
    until: datetime = FOREVER

    def holds_at(self, at: datetime) -> bool:
        """Whether it holds at an instant."""
        return self.since <= at < self.until


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """When somebody's departments are other ones than before; runs begun then are recounted."""

    org: str
    user_id: str
    since: datetime
    until: datetime


def departments_at(intervals: Collection[Interval], at: datetime) -> tuple[str, ...]:
    """The departments that somebody belongs to at an instant, by id."""
    return tuple(sorted({each.department_id for each in intervals if each.holds_at(at)}))


def departments_of(
    org: str, root: Run | None, belongs: Mapping[PersonKey, Sequence[Interval]]
) -> tuple[str, ...]:
    """Whose months the entries of a tree count in; none where nobody is known to have started it.

    A provisional root has begun at the earliest sign of it so far.
    """
    if root is None or root.started_by_user_id is None or root.shown_start is None:
        return ()
    return departments_at(belongs.get((org, root.started_by_user_id), ()), root.shown_start)


def changed_spans(
    before: Mapping[DepartmentKey, Mapping[str, Sequence[Interval]]],
    after: Mapping[DepartmentKey, Mapping[str, Sequence[Interval]]],
) -> list[Span]:
    """For whom departments changed, and when: the hull of all instants that differ.

    Both sides: a department's people with their intervals in it.
    """
    spans = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, {}), after.get(key, {})
        for user_id in sorted(old.keys() | new.keys()):
            found = _difference(old.get(user_id, ()), new.get(user_id, ()))
            if found is not None:
                spans.append(Span(key[0], user_id, *found))
    return spans


def _difference(
    old: Sequence[Interval], new: Sequence[Interval]
) -> tuple[datetime, datetime] | None:
    edges = sorted({edge for each in (*old, *new) for edge in (each.since, each.until)})
    unlike = [
        (begin, end) for begin, end in pairwise(edges) if _holds(old, begin) != _holds(new, begin)
    ]
    return (unlike[0][0], unlike[-1][1]) if unlike else None


def _holds(intervals: Sequence[Interval], at: datetime) -> bool:
    return any(each.holds_at(at) for each in intervals)
