"""Caps that channels set: of routines and goals.

The one thing not to break: whoever changes a cap holds its organization's directory alone
(`handlers/work.py`), so that a cap and a sum that change at once are seen together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from contracts.channel import GoalStarted, RoutineChanged
from services.ledger.domain.months import month_of
from services.ledger.store import caps, goals, routines
from services.ledger.store.exceeding import note_caps_set, strict_months
from services.ledger.store.notices import warn_of_caps

if TYPE_CHECKING:
    from services.ledger.handlers.work import Work
    from services.ledger.store.goals import GoalKey
    from services.ledger.store.notices import CapKey
    from services.ledger.store.routines import RoutineKey, Said
    from shared.consume import Received
    from shared.db import Connection


async def set_caps(connection: Connection, work: Work, items: Sequence[Received]) -> None:
    """Keep the caps that a batch sets; what they are near or exceeded by is said when it ends."""
    changed = [item for item in items if type(item.event.data) is RoutineChanged]
    if changed:
        await on_routine_changed(connection, work, changed)
    begun = [item for item in items if type(item.event.data) is GoalStarted]
    if begun:
        await on_goal_started(connection, work, begun)


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


async def on_goal_started(connection: Connection, work: Work, items: Sequence[Received]) -> None:
    """Keep what goals may cost; a repeat never raises it."""
    least: dict[GoalKey, int] = {}
    for item in items:
        said: GoalStarted = item.event.data
        if said.budget_nanousd is not None:
            key = (item.event.org, said.goal_id)
            least[key] = min(least.get(key, said.budget_nanousd), said.budget_nanousd)
    if least:
        await goals.save_budgets(connection, least)
    work.caps_set |= {(org, "goal", goal_id) for org, goal_id in least}


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
