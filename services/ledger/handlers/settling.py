"""What a batch of reports does to holds: in the same transaction as its entries.

A hold is closed by the first report of its request that comes from who asked; the report of
somebody else is entered as always and lets nothing go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.ledger.domain.holds import CapKey, Paid
from services.ledger.domain.overruns import Moved
from services.ledger.store import holds
from services.ledger.store.exceeding import note_moved, strict_months

if TYPE_CHECKING:
    from services.ledger.domain.merging import Draft
    from services.ledger.handlers.work import Work
    from services.ledger.store.holds import Hold, RequestKey
    from shared.db import Connection

Drafts = Sequence[tuple[tuple[str, str], "Draft"]]


@dataclass(frozen=True, slots=True)
class Settled:
    """The holds of a batch's requests as they were, and what was let go under each cap."""

    holds: dict[RequestKey, Hold] = field(default_factory=dict)
    released: dict[CapKey, int] = field(default_factory=dict)


async def settle(connection: Connection, work: Work, drafts: Drafts) -> Settled:
    """Close the holds of requests that were reported by who asked for them.

    After the requests are locked and before any sum is.
    """
    if not work.own:
        return Settled()
    known = await holds.lock_holds(connection, work.own)
    cost = _costs(drafts)
    settled = {key: cost.get(key, 0) for key, hold in known.items() if hold.state == "open"}
    await holds.close_holds(connection, settled, "settled", at=work.batch.now)
    released: dict[CapKey, int] = defaultdict(int)
    for key in settled:
        for cap in known[key].caps:
            released[cap] += known[key].amount_nanousd
    return Settled(known, dict(released))


async def note_overruns(
    connection: Connection, work: Work, drafts: Drafts, settled: Settled
) -> None:
    """Record which caps the batch exceeds; the last that it locks."""
    strict = strict_months(work.organizations, work.batch.now)
    if not strict:
        return
    paid: dict[str, list[Paid]] = defaultdict(list)
    counts_in = _scopes(work, drafts)
    for key, cost in _costs(drafts).items():
        hold = settled.holds.get(key)
        is_open = hold is not None and hold.state == "open"
        was_closed = hold is not None and hold.state in ("expired", "voided")
        # A report that grew after its hold was settled exceeds what was held for it as well.
        held = hold.amount_nanousd if hold is not None and is_open else None
        if hold is not None and hold.state == "settled":
            held = 0
        caps = hold.caps if hold is not None else ()
        scopes = frozenset(counts_in[key])
        paid[key[0]].append(Paid(key[1], cost, held, was_closed, scopes, caps))
    await note_moved(
        connection, Moved(work.books, strict, settled.released, paid), now=work.batch.now
    )


def _scopes(work: Work, drafts: Drafts) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """Whose caps measure what requests added."""
    scopes: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for key, draft in drafts:
        counted = scopes[key]
        counted.add(("organization", key[0]))
        if draft.amount.cost_nanousd > 0 and draft.line.ingested is None:
            run = work.books.runs[(key[0], draft.line.billed_run_id)]
            counted.update(run.counted_scopes)
            counted.update((("run", run.run_id), ("run", run.root_run_id)))
    return scopes


def _costs(drafts: Drafts) -> dict[tuple[str, str], int]:
    costs: dict[tuple[str, str], int] = defaultdict(int)
    for key, draft in drafts:
        costs[key] += draft.amount.cost_nanousd
    return dict(costs)
