"""A batch of reports under way, and what is asked of every report in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from contracts.channel import (
    GoalStarted,
    IngestionReported,
    RoutineChanged,
    RunDeleted,
    RunFinished,
    RunStarted,
    UsageReported,
)
from services.ledger.domain.asking import authorized_at
from services.ledger.domain.books import Books, MonthKey, RunKey
from services.ledger.domain.merging import Circumstances
from services.ledger.domain.months import month_of
from services.ledger.store import directory
from services.ledger.store.departments import share_directories

if TYPE_CHECKING:
    from services.ledger.domain.life import Transition
    from services.ledger.store.directory import Channel, Organization
    from services.ledger.store.notices import CapKey
    from shared.consume import Batch, Received
    from shared.db import Connection

ROOM = "ledger"
PAID = frozenset({UsageReported, IngestionReported})
"""Reports of money. By exact type: nearly every event is one, and asking a model's class whether
something is its instance costs as much as a dictionary of them."""
ALONE = frozenset({RunDeleted, RoutineChanged, GoalStarted})
"""Events for which an organization's directory is held alone."""
AHEAD_MAX = timedelta(minutes=5)
"""How far ahead a publisher's clock may be (design.md 3, *Time*)."""
USAGE_AGE_MAX = timedelta(hours=72)
"""Older usage needs the right `backfill` (design.md 3, *Time*)."""


@dataclass(slots=True)
class Work:
    """A batch under way."""

    batch: Batch
    organizations: dict[str, Organization]
    channels: dict[tuple[str, str], Channel]
    books: Books = field(default_factory=Books)
    said_by: dict[RunKey, Received] = field(default_factory=dict)
    """The newest event that changed a run's status: the cause of what is said about it."""
    transitions: list[tuple[str, Transition]] = field(default_factory=list)
    """Parks and resumes to keep as facts, with their organizations."""

    caps_set: set[CapKey] = field(default_factory=set)
    """Caps that the batch sets anew."""
    own: set[tuple[str, str]] = field(default_factory=set)
    """Requests that were reported by who was allowed to send them, before or after: their holds are
    settled."""

    def zones(self, org: str) -> Any:
        """An organization's dated time zones."""
        return self.organizations[org].zones

    def months_now(self, keys: Iterable[MonthKey]) -> dict[str, str]:
        """The month that the organizations of these sums are in."""
        return {org: month_of(self.batch.now, self.zones(org)) for org in {key[0] for key in keys}}


async def load_work(connection: Connection, batch: Batch) -> Work:
    """Load what decides about every report of a batch: organizations and channels."""
    orgs = {item.event.org for item in batch.received}
    # Alone: a delegate that is said meanwhile would see no deletion of its parent, nor be seen; nor
    # would sums and a cap that is set.
    alone = {item.event.org for item in batch.received if type(item.event.data) in ALONE}
    await share_directories(connection, orgs, alone=alone)
    channels = {(item.event.org, item.address.channel_id or "") for item in batch.received}
    return Work(
        batch=batch,
        organizations=await directory.load_organizations(connection, orgs),
        channels=await directory.load_channels(connection, channels),
    )


def age_of(work: Work, item: Received) -> timedelta:
    """How old a report was when its stream stored it.

    Not when it is handled: what waited here grew old here. Nor by the publisher's own `time`,
    which proves nothing.
    """
    said: UsageReported | IngestionReported = item.event.data
    return stored_at(work, item) - said.occurred_at


def stored_at(work: Work, item: Received) -> datetime:
    """When a report's stream stored it."""
    return item.delivery.at or work.batch.now


def circumstances_of(work: Work, item: Received, allowed_at: datetime | None) -> Circumstances:
    """Where a report is billed: by its authorization, else by when it occurred (ADR 0010).

    `allowed_at`: when who reports was allowed to send the request, if ever.
    """
    said: UsageReported | IngestionReported = item.event.data
    authorized = authorized_at(allowed_at, stored_at(work, item))
    billed_at = authorized or said.occurred_at
    month = month_of(billed_at, work.zones(item.event.org))
    # When it was stored, not when it is handled: a ledger that is behind charges the same caps.
    stored_in = month_of(stored_at(work, item), work.zones(item.event.org))
    is_history = age_of(work, item) > USAGE_AGE_MAX
    return Circumstances(
        channel_id=item.address.channel_id or "",
        month=month,
        late_month=stored_in if month < stored_in and not is_history else "",
        billed_at=billed_at,
        authorized=authorized is not None,
    )


def time_of(item: Received) -> datetime:
    """When what a report tells of happened, by its publisher's clock."""
    data = item.event.data
    if type(data) in PAID:
        return data.occurred_at  # type: ignore[no-any-return]
    match data:
        case RunStarted():
            at = data.started_at
        case RunFinished():
            at = data.ended_at
        case RunDeleted():
            at = data.deleted_at
        case RoutineChanged() | GoalStarted():
            # A state tells of no instant: when it was said.
            at = item.event.time
        case _:
            at = data.at
    moment: datetime = at
    return moment
