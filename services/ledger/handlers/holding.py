"""The runs of a batch: locked in key order, entered where they are new, moved where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contracts.channel import (
    GoalStarted,
    IngestionReported,
    RoutineChanged,
    RunStarted,
    UsageReported,
)
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

    SpokenOf = tuple[Received, set[RunKey], set[RunKey]]
    """A report, the runs that it names, and the parent that it names."""


async def hold_runs(
    connection: Connection, work: Work, items: Sequence[Received]
) -> list[Received]:
    """Lock the runs that are spoken of, enter new ones, refuse what is another channel's.

    A refused event enters no run: its ids would stay behind as runs that nobody started.
    """
    spoken_of = [(item, _runs_named(item), _parent_of(item)) for item in items]
    looked_at = {key for _, named, parent in spoken_of for key in (*named, *parent)}
    work.books.load(await runs.lock_with_roots(connection, looked_at))
    kept = _own(work, spoken_of)
    new: dict[RunKey, Run] = {}
    for item, named, _ in kept:
        for key in named:
            if key not in work.books.runs:
                new.setdefault(key, unheard(key[1], item.address.channel_id or ""))
    if new:
        await runs.create_missing(connection, ((key[0], run) for key, run in new.items()))
        work.books.load(await runs.lock_runs(connection, new.keys()))
        # Somebody else may have entered the same id meanwhile, or earlier in this batch.
        kept = _own(work, kept)
    return [item for item, *_ in kept]


def _runs_named(item: Received) -> set[RunKey]:
    data = item.event.data
    org = item.event.org
    match data:
        case RunStarted():
            return keys_of(org, [data.run_id, data.root_run_id])
        case UsageReported():
            return keys_of(org, [data.run_id, data.billed_run_id])
        case IngestionReported() | RoutineChanged() | GoalStarted():
            return set()
        case _:
            return keys_of(org, [data.run_id])


def _parent_of(item: Received) -> set[RunKey]:
    data = item.event.data
    if isinstance(data, RunStarted):
        return keys_of(item.event.org, [data.parent_run_id])
    return set()


def _own(work: Work, spoken_of: Sequence[SpokenOf]) -> list[SpokenOf]:
    kept = []
    for item, named, parent in spoken_of:
        channel_id = item.address.channel_id or ""
        foreign = [
            key[1]
            for key in (*named, *parent)
            if (run := work.books.runs.get(key)) is not None and run.channel_id != channel_id
        ]
        if foreign:
            work.batch.refuse(item, RunOfOtherChannel(min(foreign), channel_id))
        else:
            kept.append((item, named, parent))
    return kept


async def hold_claimed_runs(
    connection: Connection, work: Work, claims: Sequence[tuple[tuple[str, str], Claims]]
) -> None:
    """Hold every run that a claim was or is billed to, and its root: nobody need have named it."""
    billed = {
        (org, claim.best.billed_run_id)
        for (org, _), merged in claims
        for claim in merged
        if claim.best.ingested is None
    }
    missing = billed - work.books.runs.keys()
    if missing:
        work.books.load(await runs.lock_with_roots(connection, missing))


async def recount(connection: Connection, work: Work) -> None:
    """Put a batch's runs where they belong, and enter what their ends say is missing."""
    await place(connection, work.books)
    work.books.note_missing_delegates(lambda org, at: month_of(at, work.zones(org)))
