"""What is kept of a request: every claim on it, for the next report to merge with. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from services.ledger.domain.merging import Claim, Claims, Report

_LEFT_OUT_EMPTY = tuple(Report._field_defaults)
"""Not kept where they say nothing: what was kept before they existed reads the same."""


def claims_to_json(claims: Claims) -> list[dict[str, Any]]:
    """What is kept of a request's reports, for the next one to merge with."""
    return [_claim_to_json(claim) for claim in claims]


def _claim_to_json(claim: Claim) -> dict[str, Any]:
    kept = claim.best._asdict()
    for name in _LEFT_OUT_EMPTY:
        if not kept[name]:
            del kept[name]
    if claim.settled_digest:
        kept["settled_digest"] = claim.settled_digest
    if claim.corrections:
        # As text: a sum may pass 64 bits.
        kept["corrections"] = [[month, str(amount)] for month, amount in claim.corrections]
    kept["occurred_at"] = claim.best.occurred_at.isoformat()
    kept["billed_at"] = claim.best.billed_at.isoformat()
    kept["first_occurred_at"] = claim.first_occurred_at.isoformat()
    kept["channel_place"] = claim.channel_place
    return kept


def claims_from_json(rows: Sequence[Mapping[str, Any]]) -> Claims:
    """Read `claims_to_json` back."""
    claims = []
    for row in rows:
        values = dict(row)
        first = datetime.fromisoformat(values.pop("first_occurred_at"))
        place = values.pop("channel_place")
        settled = values.pop("settled_digest", "")
        corrections = tuple((month, int(amount)) for month, amount in values.pop("corrections", ()))
        values["occurred_at"] = datetime.fromisoformat(values["occurred_at"])
        values["billed_at"] = datetime.fromisoformat(values["billed_at"])
        values["tokens"] = tuple(values["tokens"])
        claims.append(Claim(Report(**values), first, place, settled, corrections))
    return tuple(claims)
