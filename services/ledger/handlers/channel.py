"""What channels report about runs and money.

A batch is one transaction. Runs are entered and locked first, in key order, then requests, then
sums: every process takes locks in this order, and every order of events leaves the same books.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from contracts.channel import (
    IngestionReported,
    RunDeleted,
    RunFinished,
    RunHeartbeat,
    RunParked,
    RunResumed,
    RunStarted,
    UsageReported,
)
from services.ledger.domain.books import RunKey, keys_of
from services.ledger.domain.life import apply_deletion, apply_move, deletion_of, move_of
from services.ledger.domain.merging import (
    CLAIMS_PER_CHANNEL_MAX,
    Claims,
    Draft,
    Report,
    claims_of_channel,
    draft_entries,
    make_report,
    merge,
)
from services.ledger.domain.pricing import NO_RATES, price_usage
from services.ledger.domain.runs import Run, apply_end, apply_start
from services.ledger.errors import TooManyClaims
from services.ledger.handlers.admitting import admit
from services.ledger.handlers.holding import hold_claimed_runs, hold_runs, recount
from services.ledger.handlers.ingestion import on_ingestion_reported
from services.ledger.handlers.limiting import note_set, set_caps
from services.ledger.handlers.saying import say_changed_runs
from services.ledger.handlers.settling import note_overruns, settle
from services.ledger.handlers.work import PAID, Work, circumstances_of, load_work, stored_at
from services.ledger.store import admissions, entries, runs, transitions
from services.ledger.store.entries import RequestKey
from services.ledger.store.notices import warn_of_caps
from services.ledger.store.slots import move_slots

if TYPE_CHECKING:
    from services.ledger.domain.pricing import Rates
    from services.ledger.domain.rate_cards import RateBook
    from services.ledger.store.admissions import Admitted
    from shared.consume import Batch, Received
    from shared.db import Connection


class ChannelReports:
    """Handles batches of the CHANNEL and PULSE streams."""

    def __init__(self, book: RateBook, rates: Rates = NO_RATES) -> None:
        """Price with this book, and convert what providers report at these rates."""
        self._book = book
        self._rates = rates

    async def on_batch(self, connection: Connection, batch: Batch) -> None:
        """Enter a batch into the books."""
        work = await load_work(connection, batch)
        items = await admit(connection, work)
        await set_caps(connection, work, items)
        items = await hold_runs(connection, work, items)
        for item in items:
            _note(work, item)
        await recount(connection, work)
        reports = [item for item in items if type(item.event.data) in PAID]
        drafts = await self.on_usage_reported(connection, work, reports)
        await _save(connection, work, drafts)

    async def on_usage_reported(
        self, connection: Connection, work: Work, items: Sequence[Received]
    ) -> list[tuple[RequestKey, Draft]]:
        """Price reports, merge them with what is known of their requests, draft the entries.

        Those of ingestion among them: both share one space of request ids.
        """
        if not items:
            return []
        keys = {(item.event.org, item.event.data.request_id) for item in items}
        admitted = await admissions.load_admitted(connection, keys)
        said = []
        for item in items:
            key = (item.event.org, item.event.data.request_id)
            said.append((key, item, self._report(work, item, admitted.get(key))))
        # Nearly every request is new: what is claimed of it is entered where it is made.
        claims, refused = _merge_all({}, said)
        new = await entries.enter_requests(connection, claims)
        known = await entries.lock_requests(connection, keys - new)
        refused = [each for each in refused if each[0] in new]
        if known:
            again, further = _merge_all(known, [each for each in said if each[0] in known])
            claims |= again
            refused += further
        for _, item, why in refused:
            work.batch.refuse(item, why)
        return await _enter(connection, work, known, claims)

    def _report(self, work: Work, item: Received, admitted: Admitted | None) -> Report:
        if isinstance(item.event.data, IngestionReported):
            priced = price_usage(self._book, item.event.data, self._rates)
            return on_ingestion_reported(work, item, admitted, priced)
        usage: UsageReported = item.event.data
        is_own = admitted is not None and admitted.is_of(
            item.address.channel_id or "", usage.run_id
        )
        if is_own:
            work.own.add((item.event.org, usage.request_id))
        known = circumstances_of(work, item, admitted.decided_at if admitted and is_own else None)
        return make_report(usage, price_usage(self._book, usage, self._rates), known)


def _merge_all(
    known: Mapping[RequestKey, Claims], said: Sequence[tuple[RequestKey, Received, Report]]
) -> tuple[dict[RequestKey, Claims], list[tuple[RequestKey, Received, TooManyClaims]]]:
    """Add reports to what is known of their requests; answer what is not taken in, too."""
    claims = dict(known)
    refused = []
    for key, item, report in said:
        merged = merge(claims.get(key, ()), report)
        if claims_of_channel(merged, report.channel_id) > CLAIMS_PER_CHANNEL_MAX:
            refused.append((key, item, TooManyClaims(key[1], CLAIMS_PER_CHANNEL_MAX)))
        else:
            claims[key] = merged
    return claims, refused


async def _enter(
    connection: Connection,
    work: Work,
    known: Mapping[RequestKey, Claims],
    claims: Mapping[RequestKey, Claims],
) -> list[tuple[RequestKey, Draft]]:
    """Draft what leads from what was known to what is claimed now; unknown requests are new."""
    drafts: list[tuple[RequestKey, Draft]] = []
    await hold_claimed_runs(connection, work, [*known.items(), *claims.items()])
    for key, merged in claims.items():
        for draft in draft_entries(known.get(key, ()), merged):
            drafts.append((key, draft))
            work.books.enter(key[0], draft)
    changed = {key: merged for key, merged in claims.items() if merged != known.get(key, merged)}
    await entries.save_claims(connection, changed)
    return drafts


def _note(work: Work, item: Received) -> None:
    """Take in what one report says of its run; money comes when the whole batch is known."""
    note = _NOTES.get(type(item.event.data))
    # Ingestion belongs to no run.
    if note is not None:
        note(work, item)


def on_run_started(work: Work, item: Received) -> None:
    """Let a start say what its run is."""
    started: RunStarted = item.event.data
    _change(work, item, started.started_at, lambda run: apply_start(run, started))


def on_run_parked(work: Work, item: Received) -> None:
    """Let a run wait for people, unless it went on later."""
    _move(work, item, item.event.data)


def on_run_resumed(work: Work, item: Received) -> None:
    """Let a run go on, unless it was parked again later."""
    _move(work, item, item.event.data)


def _move(work: Work, item: Received, said: RunParked | RunResumed) -> None:
    move = move_of(said)
    work.transitions.append((item.event.org, move))
    _change(work, item, said.at, lambda run: apply_move(run, move))


def on_run_finished(work: Work, item: Received) -> None:
    """Let an end replace an earlier one."""
    finished: RunFinished = item.event.data
    _change(work, item, finished.ended_at, lambda run: apply_end(run, finished))


def on_run_deleted(work: Work, item: Received) -> None:
    """Note that its platform deleted a run: that is no sign of life, and none undoes it."""
    key = (item.event.org, item.event.data.run_id)
    deletion = deletion_of(item.event.data)
    work.transitions.append((item.event.org, deletion))
    before = work.books.runs[key]
    work.books.runs[key] = apply_deletion(before, deletion)
    if work.books.runs[key] is not before:
        work.said_by[key] = item


def on_run_heartbeat(work: Work, item: Received) -> None:
    """Note a sign of life."""
    beat: RunHeartbeat = item.event.data
    _see(work, item, (item.event.org, beat.run_id), beat.at)


def on_usage_seen(work: Work, item: Received) -> None:
    """A paid request is a sign of life of the run that sent it, and of the row that bears it."""
    usage: UsageReported = item.event.data
    for key in keys_of(item.event.org, [usage.run_id, usage.billed_run_id]):
        _see(work, item, key, usage.occurred_at)


_NOTES: Final[Mapping[type, Callable[[Work, Received], None]]] = {
    RunStarted: on_run_started,
    RunParked: on_run_parked,
    RunResumed: on_run_resumed,
    RunFinished: on_run_finished,
    RunDeleted: on_run_deleted,
    RunHeartbeat: on_run_heartbeat,
    UsageReported: on_usage_seen,
}


def _see(work: Work, item: Received, key: RunKey, at: datetime) -> None:
    if work.books.runs[key].reaped_at is not None:
        work.said_by[key] = item
    work.books.see(key, at, stored_at(work, item))


def _change(work: Work, item: Received, at: datetime, apply: Callable[[Run], Run]) -> None:
    key = (item.event.org, item.event.data.run_id)
    before = work.books.runs[key]
    work.books.runs[key] = apply(before)
    if work.books.runs[key] is not before:
        work.said_by[key] = item
    work.books.see(key, at, stored_at(work, item))


async def _save(
    connection: Connection, work: Work, drafts: Sequence[tuple[RequestKey, Draft]]
) -> None:
    books = work.books
    settled = await settle(connection, work, drafts)
    reasons = books.settle()
    await runs.save_runs(connection, [(key[0], run) for key, run in books.changed()])
    await transitions.keep(connection, work.transitions, work.batch.now)
    await entries.save_entries(connection, drafts, work.batch.now)
    sums = runs.Sums(books.own, books.tree, books.signs, books.own_signs)
    await runs.add_to_runs(connection, sums, now=work.batch.now)
    flipped = await entries.add_to_lines(connection, books.lines)
    spent = await entries.add_to_months(connection, books.months)
    await move_slots(connection, books, flipped)
    await say_changed_runs(connection, books, reasons, work.said_by, now=work.batch.now)
    await warn_of_caps(connection, spent, work.months_now(spent), now=work.batch.now)
    await note_overruns(connection, work, drafts, settled)
    await note_set(connection, work)
