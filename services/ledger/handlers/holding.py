"""The runs of a batch: locked in key order, entered where they are new, moved where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contracts.channel import IngestionReported, RunStarted, UsageReported
from services.ledger.domain.books import RunKey, keys_of
from services.ledger.domain.merging import Claims
from services.ledger.domain.months import month_of
from services.ledger.domain.runs import Run, unheard
from services.ledger.errors import RunOfOtherChannel
from services.ledger.handlers.work import Work
from services.ledger.store import runs
from services.ledger.store.placing import place

if TYPE_CHECKING:
    from shared.consume import Received
    from shared.db import Connection


async def hold_runs(
    connection: Connection, work: Work, items: Sequence[Received]
) -> list[Received]:
    """Lock the runs that are spoken of, enter new ones, refuse what is another channel's.

    A refused event enters no run: its ids would stay behind as runs that nobody started.
    """
    looked_at = {key for item in items for key in _runs_named(item) | _parent_of(item)}
    work.books.load(await runs.lock_with_roots(connection, looked_at))
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


def _runs_named(item: Received) -> set[RunKey]:
    data = item.event.data
    org = item.event.org
    match data:
        case RunStarted():
            return keys_of(org, [data.run_id, data.root_run_id])
        case UsageReported():
            return keys_of(org, [data.run_id, data.billed_run_id])
        case IngestionReported():
            return set()
        case _:
            return keys_of(org, [data.run_id])


def _parent_of(item: Received) -> set[RunKey]:
    data = item.event.data
    if isinstance(data, RunStarted):
        return keys_of(item.event.org, [data.parent_run_id])
    return set()


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


async def hold_claimed_runs(
    connection: Connection, work: Work, claims: Sequence[tuple[tuple[str, str], Claims]]
) -> None:
    """Hold every run that a claim was or is billed to; they need not be named in this batch."""
    billed = {
        (org, claim.best.billed_run_id)
        for (org, _), merged in claims
        for claim in merged
        if claim.best.ingested is None
    }
    missing = billed - work.books.runs.keys()
    if missing:
        work.books.load(await runs.lock_runs(connection, missing))


async def recount(connection: Connection, work: Work) -> None:
    """Put a batch's runs where they belong, and enter what their ends say is missing."""
    await place(connection, work.books)
    work.books.note_missing_delegates(lambda org, at: month_of(at, work.zones(org)))
