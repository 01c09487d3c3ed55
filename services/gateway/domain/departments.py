"""Who belongs to a department since when: intervals that never overlap for one person.

The one thing not to break: the past is kept. A run that is heard of late belongs to the departments
that its starter had at its start.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from contracts.directory import DEPARTMENT_INTERVALS_MAX, Membership
from services.gateway.errors import DepartmentFull, MembershipOverlaps

Memberships = tuple[Membership, ...]


def begin_membership(members: Memberships, user_id: str, *, at: datetime) -> Memberships:
    """Let a person belong from `at` on, which may lie in the past or in the future.

    Raises:
        MembershipOverlaps: the person belongs at `at` or later already.
        DepartmentFull: beyond `DEPARTMENT_INTERVALS_MAX` intervals, past ones included.
    """
    if any(each.user_id == user_id and _lasts_beyond(each, at) for each in members):
        raise MembershipOverlaps(user_id)
    if len(members) >= DEPARTMENT_INTERVALS_MAX:
        raise DepartmentFull(DEPARTMENT_INTERVALS_MAX)
    return _in_order((*members, Membership(user_id=user_id, effective_at=at, ends_at=None)))


def end_membership(members: Memberships, user_id: str, *, at: datetime) -> Memberships:
    """Let a person belong no longer from `at` on; what had not begun by then never was."""
    kept: list[Membership] = []
    for each in members:
        if each.user_id != user_id or not _lasts_beyond(each, at):
            kept.append(each)
        elif each.effective_at < at:
            kept.append(each.model_copy(update={"ends_at": at}))
    return _in_order(kept)


def members_at(members: Memberships, moment: datetime) -> frozenset[str]:
    """Who belongs at a moment."""
    return frozenset(
        each.user_id
        for each in members
        if each.effective_at <= moment and _lasts_beyond(each, moment)
    )


def _lasts_beyond(membership: Membership, moment: datetime) -> bool:
    return membership.ends_at is None or membership.ends_at > moment


def _in_order(members: Iterable[Membership]) -> Memberships:
    return tuple(sorted(members, key=lambda each: (each.effective_at, each.user_id)))
