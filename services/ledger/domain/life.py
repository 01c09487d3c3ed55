"""Where a run stands, as a function of the set of facts that are known of it.

Facts are its start, parks, resumes, ends, signs of life, and the reaper's verdicts. An end that
its channel said holds over everything. Else the greatest of parks and resumes by (at, rank, digest)
says whether it waits. Else a verdict holds until there is a later sign of life than it knew. No
fact is undone, so every order and repetition of them leaves the same (ADR 0026; design.md 4, *A
run's life*; the seed, *Un run cuyo proceso murió*).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from contracts.channel import RunDeleted, RunParked, RunResumed
from contracts.types import RunChangeReason, RunStatus, Surface
from services.ledger.domain.runs import Run

PARKED: Literal["parked"] = "parked"
RESUMED: Literal["resumed"] = "resumed"
REAPED: Literal["reaped"] = "reaped"
DELETED: Literal["deleted"] = "deleted"
MOVE_ORDER = (RESUMED, PARKED)
"""Of a park and a resume at one instant the park holds: a run that waits is never failed."""
REAPED_SENTENCE = (
    "There was no sign of life from this run's process: it is taken for dead. "
    "What it spent until then is recorded."
)


@dataclass(frozen=True, slots=True)
class Transition:
    """A fact that is kept as a row: a park, a resume, the reaper's verdict, a deletion."""

    run_id: str
    kind: Literal["parked", "resumed", "reaped", "deleted"]
    at: datetime
    digest: str
    sign_at: datetime | None = None
    """The last sign of life that a verdict knew."""
    watermark_at: datetime | None = None
    """Up to when the ledger had handled everything when the verdict was made."""


def move_of(said: RunParked | RunResumed) -> Transition:
    """The fact that a park or a resume states."""
    return Transition(
        run_id=said.run_id,
        kind=PARKED if isinstance(said, RunParked) else RESUMED,
        at=said.at,
        digest=hashlib.sha256(said.model_dump_json().encode()).hexdigest(),
    )


def apply_move(run: Run, move: Transition) -> Run:
    """Take in a park or a resume; the greatest by (at, rank, digest) holds."""
    rank = (move.at, MOVE_ORDER.index(move.kind), move.digest)
    if run.moved_at is not None and run.moved_to is not None:
        known = (run.moved_at, MOVE_ORDER.index(run.moved_to), run.moved_digest or "")
        if known >= rank:
            return run
    return replace(run, moved_to=move.kind, moved_at=move.at, moved_digest=move.digest)


def deletion_of(said: RunDeleted) -> Transition:
    """The fact that a deletion states."""
    return Transition(
        run_id=said.run_id,
        kind=DELETED,
        at=said.deleted_at,
        digest=hashlib.sha256(said.model_dump_json().encode()).hexdigest(),
    )


def apply_deletion(run: Run, deletion: Transition) -> Run:
    """Take in a deletion; the earliest holds, and nothing undoes it."""
    if run.deleted_at is not None and run.deleted_at <= deletion.at:
        return run
    return replace(run, deleted_at=deletion.at)


def verdict_on(run: Run, *, at: datetime, watermark_at: datetime) -> Transition | None:
    """The verdict on a run's silence; none where it has never given a sign of life."""
    if run.last_sign_at is None:
        return None
    words = "\x1f".join((run.run_id, run.last_sign_at.isoformat()))
    return Transition(
        run_id=run.run_id,
        kind=REAPED,
        at=at,
        digest=hashlib.sha256(words.encode()).hexdigest(),
        sign_at=run.last_sign_at,
        watermark_at=watermark_at,
    )


def apply_verdict(run: Run, verdict: Transition) -> Run:
    """Take in a verdict; the one that knew the latest sign of life holds, then the earliest."""
    sign_at = verdict.sign_at
    if sign_at is None:
        return run
    if run.reaped_sign_at is not None and run.reaped_at is not None:
        if run.reaped_sign_at > sign_at:
            return run
        if run.reaped_sign_at == sign_at and run.reaped_at <= verdict.at:
            return run
    return replace(run, reaped_at=verdict.at, reaped_sign_at=sign_at)


def may_be_reaped(run: Run) -> bool:
    """Only what a person or trigger started; a voice call has a reaper of its own."""
    return run.is_root and run.surface != Surface.VOICE.value


def is_reaped(run: Run) -> bool:
    """Whether a verdict is what a run's status rests on."""
    return run.end_digest is None and run.moved_to != PARKED and _verdict_holds(run)


def _verdict_holds(run: Run) -> bool:
    if run.reaped_sign_at is None or not may_be_reaped(run):
        return False
    return run.last_sign_at is not None and run.last_sign_at <= run.reaped_sign_at


def settle(run: Run) -> Run:
    """Give a run the status that its facts amount to."""
    if run.end_digest is not None:
        return run
    status, error, ended_at = RunStatus.RUNNING, None, None
    if run.moved_to == PARKED:
        status = RunStatus.AWAITING_APPROVAL
    elif _verdict_holds(run):
        # Not before its last sign of life, and nobody can say how much later: its process died.
        status, error, ended_at = RunStatus.FAILED, REAPED_SENTENCE, run.last_sign_at
    if (run.status, run.error, run.ended_at) == (status.value, error, ended_at):
        return run
    return replace(run, status=status.value, error=error, ended_at=ended_at)


def reason_of(before: Run, after: Run) -> RunChangeReason | None:
    """Why a run has changed in a way that is said at once; None: its totals at most."""
    if after.deleted_at is not None and before.deleted_at is None:
        return DELETED
    if after.end_digest != before.end_digest:
        return "finished"
    if after.end_digest is None and after.status != before.status:
        return _reason_of_status(before, after)
    if after.start_digest != before.start_digest:
        return "started"
    if before.revision and after.root_run_id != before.root_run_id:
        return "reattributed"
    return None


def _reason_of_status(before: Run, after: Run) -> RunChangeReason:
    if after.status == RunStatus.AWAITING_APPROVAL.value:
        return PARKED
    if after.status == RunStatus.FAILED.value:
        return REAPED
    if before.status == RunStatus.AWAITING_APPROVAL.value or (
        after.moved_digest != before.moved_digest
    ):
        return RESUMED
    return "reopened"
