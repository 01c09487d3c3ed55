"""Caps that channels set: routines'.

The one thing not to break: whoever changes a cap holds its organization's directory alone
(`handlers/work.py`), so that a cap and a sum that change at once are seen together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from contracts.channel import RoutineChanged
from services.ledger.domain.months import month_of
from services.ledger.store import caps, routines
from services.ledger.store.exceeding import note_caps_set, strict_months
from services.ledger.store.notices import warn_of_caps

if TYPE_CHECKING:
    from services.ledger.handlers.work import Work
    from services.ledger.store.notices import CapKey
    from services.ledger.store.routines import RoutineKey, Said
    from shared.consume import Received
    from shared.db import Connection

SETS_CAPS: Final = frozenset({RoutineChanged})
"""Events by which a channel sets a cap."""


async def set_caps(connection: Connection, work: Work, items: Sequence[Received]) -> None:
    """Keep the caps that a batch sets; what they are near or exceeded by is said when it ends."""
    changed = [item for item in items if type(item.event.data) is RoutineChanged]
    if changed:
        await on_routine_changed(connection, work, changed)


async def on_routine_changed(connection: Connection, work: Work, items: Sequence[Received]) -> None:
    """Keep the newest state of routines; of two of one revision the greater digest holds."""
    newest: dict[RoutineKey, Said] = {}
    for item in items:
        said: RoutineChanged = item.event.data
        key = (item.event.org, said.routine_id)
        digest = hashlib.sha256(said.model_dump_json().encode()).hexdigest()
        known = newest.get(key)
        if known is None or (known[0].config_revision, known[1]) < (said.config_revision, digest):
            newest[key] = (said, digest)
    await routines.save_routines(connection, newest)
    work.caps_set |= {(org, "routine", routine_id) for org, routine_id in newest}


async def note_set(connection: Connection, work: Work) -> None:
    """Say which caps that were set are near, and record what exceeds them; the last of a batch."""
    if not work.caps_set:
        return
    now = work.batch.now
    by_org: dict[str, set[CapKey]] = {}
    for key in work.caps_set:
        by_org.setdefault(key[0], set()).add(key)
    months = {org: month_of(now, work.zones(org)) for org in by_org}
    spent = await caps.load_months(connection, {(*key, months[key[0]]) for key in work.caps_set})
    await warn_of_caps(connection, spent, months, now=now)
    known = {org: work.organizations[org] for org in by_org}
    await note_caps_set(connection, by_org, set(), strict_months(known, now), now=now)
