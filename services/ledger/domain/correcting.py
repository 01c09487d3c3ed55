"""What a correction of an entry enters: the difference, and the floor that it takes away.

Pure. An entry is never edited; an entry and its corrections together amount to what somebody said
last. A request whose report grows afterwards still adds its own difference (ADR 0021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from contracts.types import BIGINT_MAX
from services.ledger.domain.amounts import Amount
from services.ledger.domain.merging import Claim, Claims, Line, line_of, owner_of
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


@dataclass(frozen=True, slots=True)
class Corrected:
    """What is entered: the line, the difference, and the claims as they stand afterwards."""

    line: Line
    amount: Amount
    claims: Claims


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
    late_month = this_month if entry.line.month < this_month else ""
    return Corrected(
        line=replace(entry.line, late_month=late_month),
        amount=Amount(difference, unpriced_count=0 if floor is None else -1),
        claims=tuple(
            replace(claim, settled_digest=claim.best.digest) if claim is floor else claim
            for claim in claims
        ),
    )


def _floor_of(entry: Correctable, claims: Claims) -> Claim | None:
    """The claim whose floor an entry carries; none where a later report took it away."""
    if entry.unpriced_count <= 0:
        return None
    for claim in claims:
        is_floor = not claim.best.priced or claim is not owner_of(claims)
        same_line = replace(line_of(claim.best), late_month="") == entry.line
        if is_floor and not claim.is_settled and same_line and claim.best.run_id == entry.run_id:
            return claim
    return None
