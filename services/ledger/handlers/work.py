"""A batch of reports under way, and what is asked of every report in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from contracts.channel import (
    RunFinished,
    RunHeartbeat,
    RunParked,
    RunResumed,
    RunStarted,
    UsageReported,
)
from services.ledger.domain.books import Books, RunKey
from services.ledger.store import directory

if TYPE_CHECKING:
    from services.ledger.domain.life import Transition
    from services.ledger.store.directory import Channel, Organization
    from shared.consume import Batch, Received
    from shared.db import Connection

ROOM = "ledger"
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

    def zones(self, org: str) -> Any:
        """An organization's dated time zones."""
        return self.organizations[org].zones


async def load_work(connection: Connection, batch: Batch) -> Work:
    """Load what decides about every report of a batch: organizations and channels."""
    orgs = {item.event.org for item in batch.received}
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
    usage: UsageReported = item.event.data
    return stored_at(work, item) - usage.occurred_at


def stored_at(work: Work, item: Received) -> datetime:
    """When a report's stream stored it."""
    return item.delivery.at or work.batch.now


def time_of(item: Received) -> datetime:
    """When what a report tells of happened, by its publisher's clock."""
    data = item.event.data
    match data:
        case RunStarted():
            at = data.started_at
        case RunFinished():
            at = data.ended_at
        case RunHeartbeat() | RunParked() | RunResumed():
            at = data.at
        case _:
            at = data.occurred_at
    moment: datetime = at
    return moment
