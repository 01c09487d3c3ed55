"""What is kept of a request: every claim on it, for the next report to merge with. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import datetime
from typing import Any

from services.ledger.domain.merging import Claim, Claims, Report

_REPORT_FIELDS = tuple(field.name for field in fields(Report))
_LEFT_OUT_EMPTY = frozenset(field.name for field in fields(Report) if field.default is not MISSING)
"""Not kept where they say nothing: what was kept before they existed reads the same."""


def claims_to_json(claims: Claims) -> list[dict[str, Any]]:
    """What is kept of a request's reports, for the next one to merge with."""
    return [
        {
            **{
                name: value
                for name in _REPORT_FIELDS
                if (value := getattr(claim.best, name)) or name not in _LEFT_OUT_EMPTY
            },
            **({"settled_digest": claim.settled_digest} if claim.settled_digest else {}),
            # As text: a sum may pass 64 bits.
            **(
                {"corrections": [[month, str(amount)] for month, amount in claim.corrections]}
                if claim.corrections
                else {}
            ),
            "occurred_at": claim.best.occurred_at.isoformat(),
            "billed_at": claim.best.billed_at.isoformat(),
            "first_occurred_at": claim.first_occurred_at.isoformat(),
            "channel_place": claim.channel_place,
        }
        for claim in claims
    ]


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
