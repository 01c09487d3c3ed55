"""Whether a request was asked about before it was reported (design.md 3, *Months*; ADR 0044)."""

from __future__ import annotations

from datetime import datetime


def authorized_at(allowed_at: datetime | None, stored_at: datetime) -> datetime | None:
    """When a report's request was authorized; null where nobody had asked when it was reported.

    What decides is when the stream stored the report, not when it is handled: a permission given
    after the report authorizes nothing, so a report that is heard again is what it was before.
    """
    if allowed_at is None or allowed_at > stored_at:
        return None
    return allowed_at
