"""`correct_entry`: what an entry should have cost, as a further entry with the difference.

The one thing not to break: two corrections of one entry at once are made one after the other, and
the entry amounts to what the later one said. Locks are those of a batch of reports, in the same
order: runs, the request, sums; the audit chain last.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from uuid_utils.compat import uuid7

from contracts.entries import CorrectEntry, EntryCorrected
from contracts.rooms import AuditEntry
from contracts.types import EntryKind
from services.ledger.domain.books import Books, MonthAmount, MonthKey, keys_of
from services.ledger.domain.correcting import Corrected, correct
from services.ledger.domain.months import month_of
from services.ledger.domain.overruns import Moved
from services.ledger.errors import (
    ActorMissing,
    CorrectionIdUsed,
    EntryIsCorrection,
    EntryUnknown,
    PermissionMissing,
)
from services.ledger.store import corrections, directory, entries, runs
from services.ledger.store.corrections import Correction
from services.ledger.store.departments import share_directories
from services.ledger.store.exceeding import note_moved, strict_months
from services.ledger.store.notices import warn_of_caps
from services.ledger.store.slots import move_slots
from shared import audit

if TYPE_CHECKING:
    from services.ledger.domain.merging import Claims
    from shared.clock import Clock
    from shared.db import Connection, Database
    from shared.questions import Question

ROOM = "ledger"
ACTION = "entry.corrected"
NEEDS = "budgets:manage"
SALT_BYTES = 16
CORRECTIONS = UUID("5f2d6c1e-3c0f-5a8b-9d1a-0f5c8c7b2e41")
"""Namespace of the entries that corrections make: an id of a correction makes one entry."""


class Corrector:
    """Answers `correct_entry`."""

    def __init__(self, *, database: Database, clock: Clock) -> None:
        """Write into the room's own tables."""
        self._database = database
        self._clock = clock

    async def answer_correct_entry(self, question: Question) -> EntryCorrected:
        """Enter the difference, or repeat what the same correction did before.

        Raises:
            EntryUnknown, EntryIsCorrection, CorrectionChangesNothing, CorrectionTooLarge,
            CorrectionIdUsed, ActorMissing, PermissionMissing.
        """
        asked: CorrectEntry = question.data
        if question.actor is None:
            raise ActorMissing
        if NEEDS not in question.actor.permissions:
            raise PermissionMissing(NEEDS)
        entry_id = _uuid(asked.entry_id)
        async with self._database.transaction() as connection:
            # Before any run is locked, as whoever enters amounts does (store/departments.py).
            await share_directories(connection, [question.org])
            entry = await corrections.load_entry(connection, question.org, entry_id)
            if entry is None:
                raise EntryUnknown
            if entry["kind"] == EntryKind.CORRECTION.value:
                raise EntryIsCorrection(entry["corrects_entry_id"], entry["request_id"])
            key = (question.org, entry["request_id"])
            books = Books()
            await _hold(connection, books, entry, await entries.load_claims(connection, key))
            claims = (await entries.lock_requests(connection, {key}))[key]
            # Another run may have claimed it meanwhile.
            await _hold(connection, books, entry, claims)
            # Under the locks: whoever came first has committed.
            known = await corrections.load_correction(connection, question.org, asked.correction_id)
            if known is not None:
                return _repeat(asked, known)
            standing = await corrections.load_correctable(connection, entry)
            now = self._clock.now()
            known_orgs = await directory.load_organizations(connection, [question.org])
            zones = known_orgs[question.org].zones
            corrected = correct(standing, asked.cost_nanousd, claims, month_of(now, zones))
            made = Correction(
                org=question.org,
                correction_id=asked.correction_id,
                id=uuid5(CORRECTIONS, f"{question.org}/{asked.correction_id}"),
                entry_id=entry_id,
                before_nanousd=standing.amounts_to_nanousd,
                cost_nanousd=asked.cost_nanousd,
                reason=asked.reason,
                reason_salt=secrets.token_bytes(SALT_BYTES),
                actor=question.actor.pseudonym,
                month=corrected.line.month,
                corrected_at=now,
            )
            if not await corrections.save_correction(connection, made, corrected):
                raise CorrectionIdUsed(asked.correction_id)
            if corrected.claims != claims:
                await entries.save_claims(connection, {key: corrected.claims})
            spent = await _enter(connection, books, key, made, corrected)
            months = {question.org: month_of(now, zones)}
            await warn_of_caps(connection, spent, months, now=now)
            moved = Moved(books, strict_months(known_orgs, now), cause="corrected")
            await note_moved(connection, moved, now=now)
            await audit.record(connection, _audited(made), room=ROOM)
            return _answer(made)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise EntryUnknown from None


async def _hold(connection: Connection, books: Books, entry: Any, claims: Claims) -> None:
    """Lock the runs that bear an entry and its request, with their roots; ingestion has none."""
    bearers = [claim.best.billed_run_id or None for claim in claims]
    missing = keys_of(entry["org"], [entry["billed_run_id"], *bearers]) - books.runs.keys()
    if missing:
        books.load(await runs.lock_with_roots(connection, missing))


async def _enter(
    connection: Connection,
    books: Books,
    key: entries.RequestKey,
    made: Correction,
    corrected: Corrected,
) -> dict[MonthKey, MonthAmount]:
    books.enter_line(made.org, corrected.line, corrected.amount)
    for draft in corrected.moved:
        books.enter(made.org, draft)
    drafts = [(key, draft) for draft in corrected.moved]
    await entries.save_entries(connection, drafts, made.corrected_at)
    sums = runs.Sums(books.own, books.tree, {}, {})
    await runs.add_to_runs(connection, sums, now=made.corrected_at)
    flipped = await entries.add_to_lines(connection, books.lines)
    spent = await entries.add_to_months(connection, books.months)
    await move_slots(connection, books, flipped)
    return spent


def _repeat(asked: CorrectEntry, known: Correction) -> EntryCorrected:
    same = (str(known.entry_id), known.cost_nanousd, known.reason)
    if same != (str(_uuid(asked.entry_id)), asked.cost_nanousd, asked.reason):
        raise CorrectionIdUsed(asked.correction_id)
    return _answer(known)


def _answer(made: Correction) -> EntryCorrected:
    return EntryCorrected(
        id=str(made.id),
        correction_id=made.correction_id,
        entry_id=str(made.entry_id),
        before_nanousd=made.before_nanousd,
        cost_nanousd=made.cost_nanousd,
        difference_nanousd=made.cost_nanousd - made.before_nanousd,
        reason=made.reason,
        month=made.month,
        corrected_at=made.corrected_at,
    )


def _audited(made: Correction) -> AuditEntry:
    """The act, without its words: they stand beside the chain, which holds their salted digest."""
    digest = hashlib.sha256(made.reason_salt + made.reason.encode()).hexdigest()
    return AuditEntry(
        id=str(uuid7()),
        actor=made.actor,
        organization=made.org,
        action=ACTION,
        target_type="entry",
        target_id=str(made.entry_id),
        details={
            "correction_id": made.correction_id,
            # As text: a sum may pass 64 bits.
            "cost_nanousd": {"from": str(made.before_nanousd), "to": str(made.cost_nanousd)},
            "reason_sha256": digest,
        },
        created_at=made.corrected_at,
    )
