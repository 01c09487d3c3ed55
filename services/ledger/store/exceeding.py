"""Recording by how much a cap is exceeded, in the transaction that exceeds it.

The one thing not to break: spent + held <= limit + overruns, at every commit (design.md 4). The
caller holds or shares the organizations' directories, so that limits and modes stand still, and has
written its sums; the rows of the caps are locked last of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uuid_utils.compat import uuid7

from contracts.holds import OverrunCause, OverrunNoted
from contracts.types import CapMode
from services.ledger.domain.books import MONTHLESS
from services.ledger.domain.holds import NO_MONTH, CapKey, excess
from services.ledger.domain.months import month_of
from services.ledger.domain.overruns import Moved, risen_months, risen_runs, run_cap
from services.ledger.store import caps, holds, notices, overruns
from services.ledger.store.overruns import Overrun
from shared import outbox

if TYPE_CHECKING:
    from datetime import datetime

    from services.ledger.store.directory import Organization
    from services.ledger.store.notices import CapKey as SetCapKey
    from shared.db import Connection

ROOM = "ledger"
Why = Callable[[CapKey], tuple[OverrunCause, str | None]]
"""The cause of what a cap is exceeded by, and the request that did it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A cap's name and limit."""

    name: str
    nanousd: int


def strict_months(organizations: Mapping[str, Organization], now: datetime) -> dict[str, str]:
    """Organizations in strict mode, each with the month that it is in."""
    return {
        org: month_of(now, each.zones)
        for org, each in organizations.items()
        if each.policy.cap_mode is CapMode.STRICT
    }


async def note_moved(connection: Connection, moved: Moved, *, now: datetime) -> None:
    """Record what a transaction's amounts exceed; nothing is asked where nobody is strict."""
    if not moved.strict:
        return
    limits = await _limits(connection, risen_months(moved))
    limits |= {key: Limit(key[2], nanousd) for key, nanousd in risen_runs(moved).items()}
    await _note(connection, limits, moved.why, now=now)


async def note_caps_set(
    connection: Connection,
    changed: Mapping[str, set[SetCapKey]],
    switched: set[str],
    strict: Mapping[str, str],
    *,
    now: datetime,
) -> None:
    """Record what caps that were set anew, or bind strictly from now on, are exceeded by.

    `changed`: by organization; of those that `switched` to strict mode every cap is looked at.
    """
    keys: set[CapKey] = set()
    limits: dict[CapKey, Limit] = {}
    for org in changed.keys() & strict.keys():
        month = strict[org]
        named = changed[org] | (
            await caps.list_set(connection, org, month) if org in switched else set()
        )
        known = await holds.list_cap_months(connection, org, month)
        keys |= {(*cap, NO_MONTH if cap[1] in MONTHLESS else month) for cap in named}
        keys |= {key for key in known if key[:3] in named}
        if org in switched:
            runs = await caps.list_run_caps(connection, org)
            limits |= {run_cap(key): Limit(key[1], limit) for key, limit in runs.items()}
            goals = await caps.list_exceeded_goals(connection, org)
            limits |= {(org, "goal", each, NO_MONTH): Limit(each, n) for each, n in goals.items()}
    limits |= await _limits(connection, keys)

    def why(key: CapKey) -> tuple[OverrunCause, str | None]:
        return ("mode_switched" if key[0] in switched else "cap_lowered"), None

    await _note(connection, limits, why, now=now)


async def _limits(connection: Connection, keys: set[CapKey]) -> dict[CapKey, Limit]:
    if not keys:
        return {}
    known = await notices.load_set_caps(connection, {key[:3] for key in keys})
    return {
        key: Limit(cap.name, cap.limit_nanousd)
        for key in keys
        if (cap := known.get(key[:3])) is not None
    }


async def _note(
    connection: Connection, limits: Mapping[CapKey, Limit], why: Why, *, now: datetime
) -> None:
    if not limits:
        return
    states = await holds.lock_states(connection, limits.keys())
    spent = await caps.load_spent(connection, limits.keys())
    found: dict[CapKey, Overrun] = {}
    for key, limit in sorted(limits.items()):
        state, amount = states[key], spent[key].nanousd
        over = excess(
            limit_nanousd=limit.nanousd,
            spent_nanousd=amount,
            held_nanousd=state.held_nanousd,
            overrun_nanousd=state.overrun_nanousd,
        )
        if over:
            cause, request_id = why(key)
            found[key] = Overrun(
                id=uuid7(),
                org=key[0],
                scope=key[1],
                scope_id=key[2],
                name=limit.name,
                month=key[3],
                cause=cause,
                amount_nanousd=over,
                limit_nanousd=limit.nanousd,
                spent_nanousd=amount,
                held_nanousd=state.held_nanousd,
                request_id=request_id,
                noted_at=now,
            )
    if not found:
        return
    await holds.add_to_states(
        connection, {}, {key: each.amount_nanousd for key, each in found.items()}
    )
    await overruns.save(connection, list(found.values()))
    await outbox.save(connection, [_message(each) for each in found.values()])


def _message(overrun: Overrun) -> outbox.Message:
    values = {name: getattr(overrun, name) for name in OverrunNoted.model_fields}
    said = OverrunNoted(**{**values, "id": str(overrun.id), "month": overrun.month or None})
    event_id = outbox.derived_id("overrun_noted", str(overrun.id))
    return outbox.say(said, room=ROOM, org=overrun.org, event_id=event_id, at=overrun.noted_at)
