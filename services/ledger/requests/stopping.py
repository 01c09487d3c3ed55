"""Saying that a month's cap stopped a run: once, by the first decision that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from services.ledger.domain.warnings import Notice, NoticeKey, stop_of
from services.ledger.store import notices

if TYPE_CHECKING:
    from datetime import datetime

    from services.ledger.store.admissions import Admission
    from shared.db import Connection


async def say_stops(connection: Connection, decided: Sequence[Admission], *, now: datetime) -> None:
    """Say which caps stopped a run, in the transaction that keeps the decisions."""
    found: dict[NoticeKey, Notice] = {}
    for each in decided:
        notice = stop_of(each.org, each.answer, each.month, each.run_id)
        if notice is not None:
            found.setdefault(notice.key, notice)
    if not found:
        return
    # A decision names the cap that it was made by; who leads its department is looked up.
    caps = await notices.load_set_caps(connection, {key[:3] for key in found})
    leads = {key: cap.lead_user_id for key, cap in caps.items()}
    complete = [
        replace(notice, cap=replace(notice.cap, lead_user_id=leads.get(key[:3])))
        for key, notice in found.items()
    ]
    await notices.say_notices(connection, complete, at=now)
