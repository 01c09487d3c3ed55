"""What a correction of an entry enters: the difference, and the floor that it takes away.

Pure. An entry is never edited; an entry and its corrections together amount to what somebody said
last. A request whose report grows afterwards still adds its own difference (ADR 0021), and what was
said of it follows it to whichever run turns out to own it (ADR 0021).
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.types import BIGINT_MAX
from services.ledger.domain.amounts import Amount
from services.ledger.domain.merging import (
    Claim,
    Claims,
    Draft,
    Ingested,
    Line,
    Report,
    correction_line,
    corrections_of,
    line_of,
    move_correction,
    owner_of,
)
from services.ledger.errors import CorrectionChangesNothing, CorrectionTooLarge


@dataclass(frozen=True, slots=True)
class Correctable:
    """An entry, and what it amounts to by now."""

    run_id: str
    """Empty: ingestion."""
    line: Line
    """Where it was entered, `late_month` left out."""
    unpriced_count: int
    amounts_to_nanousd: int
    """Its own cost and that of its corrections so far."""
    is_conflict: bool = False
    """Whether it flags a claim that is not billed: what is said of it stays with that claim."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """What is entered: the line, the difference, and the claims as they stand afterwards."""

    line: Line
    amount: Amount
    claims: Claims
    moved: tuple[Draft, ...] = ()
    """Further entries where the request is not billed on the entry's line any more."""


def correct(entry: Correctable, cost_nanousd: int, claims: Claims, this_month: str) -> Corrected:
    """Work out one correction, made in `this_month`.

    Units: nano-USD; `cost_nanousd` is what the entry should have cost. The line is the entry's own;
    for a month that is over, the caps of this month bear the difference as well (ADR 0010).

    Raises:
        CorrectionChangesNothing: it amounts to that already, and no floor is taken away.
        CorrectionTooLarge: no entry can hold the difference.
    """
    difference = cost_nanousd - entry.amounts_to_nanousd
    floor = _floor_of(entry, claims)
    if difference == 0 and floor is None:
        raise CorrectionChangesNothing
    if abs(difference) > BIGINT_MAX:
        raise CorrectionTooLarge
    line = correction_line(entry.line, this_month)
    moved: list[Draft] = []
    owner = owner_of(claims)
    if not entry.is_conflict:
        moved = move_correction(
            (line, _report_of(entry, owner.best)),
            (correction_line(line_of(owner.best), this_month), owner.best),
            difference,
        )
    after = tuple(
        claim._replace(
            settled_digest=claim.best.digest if claim is floor else claim.settled_digest,
            corrections=(
                _added(claim.corrections, this_month, difference)
                if claim is owner and not entry.is_conflict
                else claim.corrections
            ),
        )
        for claim in claims
    )
    if any(abs(amount) > BIGINT_MAX for amount in corrections_of(after).values()):
        raise CorrectionTooLarge
    return Corrected(
        line=line,
        amount=Amount(difference, unpriced_count=0 if floor is None else -1),
        claims=after,
        moved=tuple(moved),
    )


def _added(
    corrections: tuple[tuple[str, int], ...], month: str, amount: int
) -> tuple[tuple[str, int], ...]:
    sums = dict(corrections)
    sums[month] = sums.get(month, 0) + amount
    return tuple(sorted((each, total) for each, total in sums.items() if total))


def _report_of(entry: Correctable, like: Report) -> Report:
    """Whose the entry's line is; its request's other circumstances are the owner's."""
    ingested = entry.line.ingested or Ingested("", None, None, like.occurred_at)
    return like._replace(
        run_id=entry.run_id,
        delegation_id=None,
        turn_id=None,
        ingestion_id=ingested.ingestion_id,
        document_id=ingested.document_id,
        collection_id=ingested.collection_id,
        occurred_at=ingested.occurred_at,
    )


def _floor_of(entry: Correctable, claims: Claims) -> Claim | None:
    """The claim whose floor an entry carries; none where a later report took it away."""
    if entry.unpriced_count <= 0:
        return None
    for claim in claims:
        is_floor = not claim.best.priced or claim is not owner_of(claims)
        same_line = line_of(claim.best)._replace(late_month="") == entry.line
        if is_floor and not claim.is_settled and same_line and claim.best.run_id == entry.run_id:
            return claim
    return None
