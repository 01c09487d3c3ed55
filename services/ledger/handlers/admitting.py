"""Which reports of a batch are taken in: not too early, not forbidden, not seen before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contracts.channel import (
    GoalStarted,
    RoutineChanged,
    RunDeleted,
    RunFinished,
    RunParked,
    RunResumed,
    RunStarted,
)
from contracts.errors import Invalid
from contracts.types import ChannelRight
from services.ledger.errors import ChannelRevoked, DirectoryBehind, TimeInFuture, UsageTooOld
from services.ledger.handlers.work import (
    AHEAD_MAX,
    PAID,
    ROOM,
    USAGE_AGE_MAX,
    Work,
    age_of,
    time_of,
)
from shared.inbox import InboxKey, body_digest, sort_out
from shared.noticing import refuse_changed

if TYPE_CHECKING:
    from shared.consume import Received
    from shared.db import Connection

KEYED = frozenset(
    {RunStarted, RunParked, RunResumed, RunFinished, RunDeleted, RoutineChanged, GoalStarted}
)
"""Events that are told apart by their ids: a changed body under one of them is refused."""


async def admit(connection: Connection, work: Work) -> list[Received]:
    """Leave out what came too early, what may not be said, and what was handled before."""
    admitted: list[Received] = []
    for item in work.batch.received:
        if item.event.org not in work.organizations or _needs_its_channel(work, item):
            work.batch.postpone(item, DirectoryBehind(item.event.org))
            continue
        why = _refusal(work, item)
        if why is None:
            admitted.append(item)
        else:
            work.batch.refuse(item, why)
    return await _without_repeated(connection, work, admitted)


def _needs_its_channel(work: Work, item: Received) -> bool:
    """Whether a right decides and the directory has not told of the channel yet: too early."""
    if (item.event.org, item.address.channel_id or "") in work.channels:
        return False
    return _is_paid(item) and age_of(work, item) > USAGE_AGE_MAX


def _is_paid(item: Received) -> bool:
    return type(item.event.data) in PAID


def _refusal(work: Work, item: Received) -> Invalid | None:
    channel_id = item.address.channel_id or ""
    channel = work.channels.get((item.event.org, channel_id))
    # What its stream stored before the revocation was said by a channel in good standing.
    stored_at = item.delivery.at or work.batch.now
    if channel is not None and channel.revoked_at is not None and stored_at > channel.revoked_at:
        return ChannelRevoked(channel_id)
    at = time_of(item)
    if at - stored_at > AHEAD_MAX:
        return TimeInFuture(int(AHEAD_MAX.total_seconds() // 60))
    if _is_paid(item):
        rights = channel.rights if channel is not None else frozenset()
        if age_of(work, item) > USAGE_AGE_MAX and ChannelRight.BACKFILL not in rights:
            return UsageTooOld(int(USAGE_AGE_MAX.total_seconds() // 3600))
    return None


async def _without_repeated(
    connection: Connection, work: Work, items: Sequence[Received]
) -> list[Received]:
    """What is keyed has inbox rows; usage has its request and a pulse needs none."""
    kept = [item for item in items if type(item.event.data) not in KEYED]
    keyed = [item for item in items if type(item.event.data) in KEYED]
    found = await sort_out(
        connection,
        [
            InboxKey(
                item.event.org,
                item.address.producer_key,
                item.event.source,
                item.event.id,
                body_digest(item.delivery.body),
            )
            for item in keyed
        ],
        work.batch.now,
    )
    for position in found.changed:
        await refuse_changed(connection, work.batch, keyed[position], room=ROOM)
    return [keyed[position] for position in found.fresh] + kept
