"""What is done about holds while nobody asks: settlements are folded, holds expire.

The one thing not to break: a hold expires only when all that was said before its time is handled.
While reports wait, the money that they tell of is not lent out again (ADR 0031).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from contracts.catalog import DURABLES
from contracts.holds import HoldExpired
from services.ledger.domain.holds import prolonged
from services.ledger.store import holds, transitions
from shared import outbox
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from services.ledger.store.holds import Hold
    from shared.clock import Clock
    from shared.db import Database

ROOM: Final = "ledger"
CAPS_MAX: Final = 200
"""Caps whose settlements one transaction folds."""
HOLDS_MAX: Final = 200
"""Holds that one transaction lets expire."""
KEEP_EVERY_S: Final = 0.5
HEARD: Final = tuple(
    spec.stream for spec in DURABLES if spec.room == ROOM and spec.stream in ("CHANNEL", "PULSE")
)
"""Streams that bring reports and signs of life."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What one round did."""

    folded_caps: int
    expired_holds: int


class HoldKeeper:
    """Folds and expires; several may run, `run` until cancelled."""

    def __init__(self, *, database: Database, clock: Clock) -> None:
        """Work in the room's own tables."""
        self._database = database
        self._clock = clock

    async def run(self) -> None:
        """Round after round; while the database is away, wait and try again."""
        while True:
            kept = Kept(0, 0)
            try:
                kept = await self.keep()
            except Exception as error:
                if not is_transient(error):
                    raise
                logger().warning("holds_wait", cause=type(error).__name__)
            if kept.folded_caps < CAPS_MAX and kept.expired_holds < HOLDS_MAX:
                await asyncio.sleep(KEEP_EVERY_S)

    async def keep(self) -> Kept:
        """One round: what is due now, in bounded transactions."""
        expired = await self._expire()
        async with self._database.transaction() as connection:
            caps = await holds.list_unfolded(connection, CAPS_MAX)
            await holds.lock_states(connection, caps)
        return Kept(len(caps), expired)

    async def _expire(self) -> int:
        now = self._clock.now()
        async with self._database.transaction() as connection:
            marks = await transitions.list_watermarks(connection)
            handled = {mark["stream"]: mark["handled_until"] for mark in marks}
            if any(stream not in handled for stream in HEARD):
                return 0
            until = min([now, *(handled[stream] for stream in HEARD)])
            due = await holds.lock_due(connection, until=until, limit=HOLDS_MAX)
            later: dict[tuple[str, str], datetime] = {}
            expired: list[Hold] = []
            for hold, heard_at in due:
                moved = prolonged(held_at=hold.held_at, heard_at=heard_at, until=until)
                if moved is None:
                    expired.append(hold)
                else:
                    later[hold.key] = moved
            await holds.prolong(connection, later)
            await holds.close_holds(
                connection, {hold.key: None for hold in expired}, "expired", at=now
            )
            await outbox.save(connection, [_message(hold, now) for hold in expired])
        return len(due)


def _message(hold: Hold, now: datetime) -> outbox.Message:
    said = HoldExpired(
        hold_id=hold.request_id,
        request_id=hold.request_id,
        run_id=hold.run_id,
        held_nanousd=hold.amount_nanousd,
        expired_at=now,
    )
    event_id = outbox.derived_id("hold_expired", *hold.key)
    return outbox.say(said, room=ROOM, org=hold.org, event_id=event_id, at=now)
