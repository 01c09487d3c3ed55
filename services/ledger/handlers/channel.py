"""What channels report about runs and money.

A batch is one transaction. Runs are entered and locked first, in key order, then requests, then
sums: every process takes locks in this order, and every order of events leaves the same books.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from contracts.channel import RunFinished, RunHeartbeat, RunStarted, UsageReported
from contracts.errors import Invalid
from contracts.types import ChannelRight
from services.ledger.domain.books import Books, RunKey, keys_of
from services.ledger.domain.merging import (
    CLAIMS_PER_CHANNEL_MAX,
    Circumstances,
    Claims,
    Draft,
    Report,
    claims_of_channel,
    draft_entries,
    make_report,
    merge,
)
from services.ledger.domain.months import month_of
from services.ledger.domain.pricing import price_usage
from services.ledger.domain.runs import Run, apply_end, apply_start, unheard
from services.ledger.errors import (
    ChannelRevoked,
    DirectoryBehind,
    RunOfOtherChannel,
    TimeInFuture,
    TooManyClaims,
    UsageTooOld,
)
from services.ledger.handlers.saying import say_changed_runs
from services.ledger.store import admissions, directory, entries, runs
from shared.inbox import InboxKey, body_digest, sort_out
from shared.noticing import refuse_changed

if TYPE_CHECKING:
    from services.ledger.domain.rate_cards import RateBook
    from services.ledger.store.admissions import Admitted
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

    def zones(self, org: str) -> Any:
        """An organization's dated time zones."""
        return self.organizations[org].zones


class ChannelReports:
    """Handles batches of the CHANNEL and PULSE streams."""

    def __init__(self, book: RateBook) -> None:
        """Price with this book."""
        self._book = book

    async def on_batch(self, connection: Connection, batch: Batch) -> None:
        """Enter a batch into the books."""
        work = await _load(connection, batch)
        items = await _admit(connection, work)
        items = await _hold_runs(connection, work, items)
        for item in items:
            if isinstance(item.event.data, RunStarted):
                on_run_started(work, item)
            elif isinstance(item.event.data, RunFinished):
                on_run_finished(work, item)
            elif isinstance(item.event.data, RunHeartbeat):
                on_run_heartbeat(work, item)
            else:
                on_usage_seen(work, item)
        await _recount(connection, work)
        usage = [item for item in items if isinstance(item.event.data, UsageReported)]
        drafts = await self.on_usage_reported(connection, work, usage)
        await _save(connection, work, drafts)

    async def on_usage_reported(
        self, connection: Connection, work: Work, items: Sequence[Received]
    ) -> list[tuple[tuple[str, str], Draft]]:
        """Price reports, merge them with what is known of their requests, draft the entries."""
        if not items:
            return []
        keys = {(item.event.org, item.event.data.request_id) for item in items}
        known = await entries.lock_requests(connection, keys)
        admitted = await admissions.load_admitted(connection, keys)
        claims = dict(known)
        for item in items:
            usage: UsageReported = item.event.data
            key = (item.event.org, usage.request_id)
            report = self._report(work, item, admitted.get(key))
            merged = merge(claims[key], report)
            if claims_of_channel(merged, report.channel_id) > CLAIMS_PER_CHANNEL_MAX:
                why = TooManyClaims(usage.request_id, CLAIMS_PER_CHANNEL_MAX)
                work.batch.refuse(item, why)
                continue
            claims[key] = merged
        return await _enter(connection, work, known, claims)

    def _report(self, work: Work, item: Received, admitted: Admitted | None) -> Report:
        usage: UsageReported = item.event.data
        channel_id = item.address.channel_id or ""
        authorized = admitted is not None and admitted.is_of(channel_id, usage.run_id)
        billed_at = admitted.decided_at if admitted and authorized else usage.occurred_at
        month = month_of(billed_at, work.zones(item.event.org))
        this_month = month_of(work.batch.now, work.zones(item.event.org))
        is_history = _age(work, item) > USAGE_AGE_MAX
        known = Circumstances(
            channel_id=channel_id,
            month=month,
            late_month=this_month if month < this_month and not is_history else "",
            billed_at=billed_at,
            authorized=authorized,
        )
        return make_report(usage, price_usage(self._book, usage), known)


async def _enter(
    connection: Connection,
    work: Work,
    known: dict[tuple[str, str], Claims],
    claims: dict[tuple[str, str], Claims],
) -> list[tuple[tuple[str, str], Draft]]:
    drafts: list[tuple[tuple[str, str], Draft]] = []
    await _hold_claimed_runs(connection, work, [*known.items(), *claims.items()])
    for key, merged in claims.items():
        for draft in draft_entries(known[key], merged):
            drafts.append((key, draft))
            work.books.enter(key[0], draft)
    changed = {key: merged for key, merged in claims.items() if merged != known[key]}
    await entries.save_claims(connection, changed)
    return drafts


async def _hold_claimed_runs(
    connection: Connection, work: Work, claims: Sequence[tuple[tuple[str, str], Claims]]
) -> None:
    """Hold every run that a claim was or is billed to; they need not be named in this batch."""
    billed = {(org, claim.best.billed_run_id) for (org, _), merged in claims for claim in merged}
    missing = billed - work.books.runs.keys()
    if missing:
        work.books.load(await runs.lock_runs(connection, missing))


def on_run_started(work: Work, item: Received) -> None:
    """Let a start say what its run is."""
    started: RunStarted = item.event.data
    _change(work, item, started.run_id, lambda run: apply_start(run, started))


def on_run_finished(work: Work, item: Received) -> None:
    """Let an end replace an earlier one."""
    finished: RunFinished = item.event.data
    _change(work, item, finished.run_id, lambda run: apply_end(run, finished))


def on_run_heartbeat(work: Work, item: Received) -> None:
    """Note a sign of life."""
    beat: RunHeartbeat = item.event.data
    work.books.see((item.event.org, beat.run_id), beat.at)


def on_usage_seen(work: Work, item: Received) -> None:
    """A paid request is a sign of life of the run that sent it, and of the row that bears it."""
    usage: UsageReported = item.event.data
    for key in keys_of(item.event.org, [usage.run_id, usage.billed_run_id]):
        work.books.see(key, usage.occurred_at)


def _change(work: Work, item: Received, run_id: str, apply: Any) -> None:
    key = (item.event.org, run_id)
    before: Run = work.books.runs[key]
    after: Run = apply(before)
    work.books.runs[key] = after
    if after.revision != before.revision:
        work.said_by[key] = item


async def _load(connection: Connection, batch: Batch) -> Work:
    orgs = {item.event.org for item in batch.received}
    channels = {(item.event.org, item.address.channel_id or "") for item in batch.received}
    return Work(
        batch=batch,
        organizations=await directory.load_organizations(connection, orgs),
        channels=await directory.load_channels(connection, channels),
    )


async def _admit(connection: Connection, work: Work) -> list[Received]:
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
    return isinstance(item.event.data, UsageReported) and _age(work, item) > USAGE_AGE_MAX


def _refusal(work: Work, item: Received) -> Invalid | None:
    channel_id = item.address.channel_id or ""
    channel = work.channels.get((item.event.org, channel_id))
    # What its stream stored before the revocation was said by a channel in good standing.
    stored_at = item.delivery.at or work.batch.now
    if channel is not None and channel.revoked_at is not None and stored_at > channel.revoked_at:
        return ChannelRevoked(channel_id)
    at = _time_of(item)
    if at - work.batch.now > AHEAD_MAX:
        return TimeInFuture(int(AHEAD_MAX.total_seconds() // 60))
    if isinstance(item.event.data, UsageReported):
        rights = channel.rights if channel is not None else frozenset()
        if _age(work, item) > USAGE_AGE_MAX and ChannelRight.BACKFILL not in rights:
            return UsageTooOld(int(USAGE_AGE_MAX.total_seconds() // 3600))
    return None


def _age(work: Work, item: Received) -> timedelta:
    """How old a report was when its stream stored it.

    Not when it is handled: what waited here grew old here. Nor by the publisher's own `time`,
    which proves nothing.
    """
    usage: UsageReported = item.event.data
    return (item.delivery.at or work.batch.now) - usage.occurred_at


def _time_of(item: Received) -> datetime:
    data = item.event.data
    match data:
        case RunStarted():
            at = data.started_at
        case RunFinished():
            at = data.ended_at
        case RunHeartbeat():
            at = data.at
        case _:
            at = data.occurred_at
    moment: datetime = at
    return moment


async def _without_repeated(
    connection: Connection, work: Work, items: Sequence[Received]
) -> list[Received]:
    """Starts and ends have inbox rows; usage has its request and a pulse needs none."""
    kept = [item for item in items if not isinstance(item.event.data, RunStarted | RunFinished)]
    keyed = [item for item in items if isinstance(item.event.data, RunStarted | RunFinished)]
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


def _runs_named(item: Received) -> set[RunKey]:
    data = item.event.data
    org = item.event.org
    match data:
        case RunStarted():
            return keys_of(org, [data.run_id, data.root_run_id])
        case UsageReported():
            return keys_of(org, [data.run_id, data.billed_run_id])
        case _:
            return keys_of(org, [data.run_id])


def _parent_of(item: Received) -> set[RunKey]:
    data = item.event.data
    if isinstance(data, RunStarted):
        return keys_of(item.event.org, [data.parent_run_id])
    return set()


async def _hold_runs(
    connection: Connection, work: Work, items: Sequence[Received]
) -> list[Received]:
    """Lock the runs that are spoken of, enter new ones, refuse what is another channel's.

    A refused event enters no run: its ids would stay behind as runs that nobody started.
    """
    looked_at = {key for item in items for key in _runs_named(item) | _parent_of(item)}
    work.books.load(await runs.lock_runs(connection, looked_at))
    kept = _own(work, items)
    new: dict[RunKey, Run] = {}
    for item in kept:
        for org, run_id in _runs_named(item) - work.books.runs.keys():
            new.setdefault((org, run_id), unheard(run_id, item.address.channel_id or ""))
    if new:
        await runs.create_missing(connection, ((key[0], run) for key, run in new.items()))
        work.books.load(await runs.lock_runs(connection, new.keys()))
        # Somebody else may have entered the same id meanwhile, or earlier in this batch.
        kept = _own(work, kept)
    return kept


def _own(work: Work, items: Sequence[Received]) -> list[Received]:
    kept = []
    for item in items:
        channel_id = item.address.channel_id or ""
        foreign = [
            key[1]
            for key in sorted((_runs_named(item) | _parent_of(item)) & work.books.runs.keys())
            if work.books.runs[key].channel_id != channel_id
        ]
        if foreign:
            work.batch.refuse(item, RunOfOtherChannel(foreign[0], channel_id))
        else:
            kept.append(item)
    return kept


async def _recount(connection: Connection, work: Work) -> None:
    """Move what was entered before to the trees and months that it turns out to belong to."""
    books = work.books
    if trees := books.trees_to_reroot():
        books.load(await runs.lock_members(connection, trees))
    while missing := books.roots_missing():
        held = await runs.lock_runs(connection, missing)
        books.load(held)
        if not held:
            break
    books.reroot()
    if roots := books.roots_with_new_agent():
        books.load(await runs.lock_members(connection, roots))
    if moved := books.moved():
        books.move(await runs.load_own_amounts(connection, moved))
    books.show_roots()
    if recount := books.to_recount():
        entered = await entries.load_month_amounts(connection, recount.keys())
        books.recount(recount, entered)
    books.note_missing_delegates(lambda org, at: month_of(at, work.zones(org)))


async def _save(
    connection: Connection, work: Work, drafts: Sequence[tuple[tuple[str, str], Draft]]
) -> None:
    books = work.books
    await runs.save_runs(connection, [(key[0], run) for key, run in books.changed()])
    await entries.save_entries(connection, drafts, work.batch.now)
    await runs.add_to_runs(connection, books.own, books.tree, books.signs)
    await entries.add_to_lines(connection, books.lines)
    await entries.add_to_months(connection, books.months)
    await say_changed_runs(connection, books, work.said_by, now=work.batch.now)
