"""Requests that belong to no run: documents that were made searchable.

They are priced, merged and entered as usage is (`handlers.channel`), in the organization's month
alone: in no run's, agent's, person's or department's figure (facts.md 2.4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.channel import IngestionReported
from services.ledger.domain.merging import Report, make_report
from services.ledger.handlers.work import Work, circumstances_of

if TYPE_CHECKING:
    from services.ledger.domain.prices import Priced
    from services.ledger.store.admissions import Admitted
    from shared.consume import Received


def on_ingestion_reported(
    work: Work, item: Received, admitted: Admitted | None, priced: Priced
) -> Report:
    """The report of one request, authorized where its channel asked for it without a run."""
    said: IngestionReported = item.event.data
    is_own = admitted is not None and admitted.is_of(item.address.channel_id or "", None)
    if is_own:
        work.own.add((item.event.org, said.request_id))
    allowed_at = admitted.decided_at if admitted is not None and is_own else None
    return make_report(said, priced, circumstances_of(work, item, allowed_at))
