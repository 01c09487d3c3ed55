"""Money that is held for requests under way, and what exceeded a cap nevertheless (events.md).

Units as in `contracts.ledger`: integer nano-USD. A hold is named by its request: one request, one
hold, one id.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contracts.ledger import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, CapScope, Month
from contracts.types import (
    AgentId,
    Count,
    Id,
    Instant,
    Int64,
    ModelName,
    NanoUsd,
    SumNanoUsd,
    Wire,
)

HoldState = Literal["open", "settled", "voided", "expired"]
"""`open` counts against its caps; the others are final and count no more."""
OverrunCause = Literal[
    "actual_above_hold",
    "settled_late",
    "unheld_usage",
    "reattributed",
    "corrected",
    "cap_lowered",
    "mode_switched",
]
"""`settled_late`: after its hold had expired or was voided; `unheld_usage`: nothing was held for it
(ingestion, requests that were not asked for, those of the recorded mode); `cap_lowered`: or set,
below what was spent and held."""


class HoldCap(Wire):
    """A cap that a hold counts against."""

    scope: CapScope
    id: Id | AgentId
    month: Month | None
    """Null for a run's own cap and a goal's."""


class VoidHold(Wire):
    """The request was not sent and will not be: let its money go. Asked by who asked for it."""

    request_id: Id


class HoldVoided(Wire):
    """What became of the hold; asked again, the same."""

    request_id: Id
    hold_id: Id
    state: HoldState
    held_nanousd: NanoUsd


class ListHolds(Wire):
    """Holds, newest first."""

    state: HoldState | None = None
    skip: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX, strict=True)] = PAGE_ROWS_DEFAULT


class HoldRow(Wire):
    """One hold."""

    hold_id: Id
    request_id: Id
    run_id: Id | None
    model: ModelName
    held_nanousd: NanoUsd
    output_tokens_max: Count | None
    """What was granted, where the question named no limit."""
    state: HoldState
    held_at: Instant
    expires_at: Instant
    """If nothing is heard of the request until then; signs of life of its run move it."""
    closed_at: Instant | None
    actual_nanousd: Int64 | None
    """What the first report of the request cost; null unless it is settled."""
    caps: tuple[HoldCap, ...]


class HoldPage(Wire):
    """A page of holds and the total of the filter."""

    items: tuple[HoldRow, ...]
    total: Count


class ListOverruns(Wire):
    """What exceeded caps, newest first."""

    skip: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX, strict=True)] = PAGE_ROWS_DEFAULT


class OverrunRow(Wire):
    """One excess over one cap; spent + held <= limit + the sum of these, at every moment."""

    id: Id
    scope: CapScope
    scope_id: Id | AgentId
    name: str
    month: Month | None
    """Null for a run's own cap and a goal's."""
    cause: OverrunCause
    amount_nanousd: SumNanoUsd
    limit_nanousd: NanoUsd
    spent_nanousd: SumNanoUsd
    held_nanousd: SumNanoUsd
    request_id: Id | None
    """The request that exceeded most, where requests did."""
    noted_at: Instant


class OverrunPage(Wire):
    """A page of overruns and how many there are."""

    items: tuple[OverrunRow, ...]
    total: Count


class OverrunNoted(OverrunRow):
    """More is spent and held under a cap than it allows; said with the row that records it."""


class HoldExpired(Wire):
    """Nothing was heard of a request in its time: what was held for it is free again."""

    hold_id: Id
    request_id: Id
    run_id: Id | None
    held_nanousd: NanoUsd
    expired_at: Instant
