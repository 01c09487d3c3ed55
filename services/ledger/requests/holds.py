"""`void_hold`, `list_holds`, `list_overruns`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.holds import (
    HoldCap,
    HoldPage,
    HoldRow,
    HoldVoided,
    ListHolds,
    ListOverruns,
    OverrunPage,
    OverrunRow,
    VoidHold,
)
from services.ledger.errors import HoldSettled, HoldUnknown
from services.ledger.store import holds, overruns

if TYPE_CHECKING:
    from services.ledger.store.holds import Hold
    from services.ledger.store.overruns import Overrun
    from shared.clock import Clock
    from shared.db import Database
    from shared.questions import Question


class HoldDesk:
    """Lets go of holds on demand, and shows them."""

    def __init__(self, *, database: Database, clock: Clock) -> None:
        """Read and write the room's own tables."""
        self._database = database
        self._clock = clock

    async def answer_void_hold(self, question: Question) -> HoldVoided:
        """Let go of what is held for a request that was not sent; asked again, the same.

        Raises:
            HoldUnknown: this channel asked for no such request, or nothing was held for it.
            HoldSettled: the request was reported.
        """
        asked: VoidHold = question.data
        channel_id = question.asked.asker if question.asked.kind == "channel" else None
        if question.actor is not None:
            channel_id = question.actor.channel_id
        key = (question.org, asked.request_id)
        async with self._database.transaction() as connection:
            hold = (await holds.lock_holds(connection, [key])).get(key)
            if hold is None or hold.channel_id != channel_id:
                raise HoldUnknown
            if hold.state == "settled":
                raise HoldSettled(asked.request_id)
            await holds.close_holds(connection, {key: None}, "voided", at=self._clock.now())
        return HoldVoided(
            request_id=asked.request_id,
            hold_id=asked.request_id,
            state="voided" if hold.state == "open" else hold.state,
            held_nanousd=hold.amount_nanousd,
        )

    async def answer_list_holds(self, question: Question) -> HoldPage:
        """Holds of an organization, newest first."""
        asked: ListHolds = question.data
        async with self._database.reading() as connection:
            rows, total = await holds.list_holds(
                connection, question.org, asked.state, skip=asked.skip, limit=asked.limit
            )
        return HoldPage(items=tuple(_hold_row(row) for row in rows), total=total)

    async def answer_list_overruns(self, question: Question) -> OverrunPage:
        """What exceeded caps, newest first."""
        asked: ListOverruns = question.data
        async with self._database.reading() as connection:
            rows, total = await overruns.list_page(
                connection, question.org, skip=asked.skip, limit=asked.limit
            )
        return OverrunPage(items=tuple(_overrun_row(row) for row in rows), total=total)


def _hold_row(hold: Hold) -> HoldRow:
    return HoldRow(
        hold_id=hold.request_id,
        request_id=hold.request_id,
        run_id=hold.run_id,
        model=hold.model,
        held_nanousd=hold.amount_nanousd,
        output_tokens_max=hold.output_tokens_max,
        state=hold.state,
        held_at=hold.held_at,
        expires_at=hold.expires_at,
        closed_at=hold.closed_at,
        actual_nanousd=hold.actual_nanousd,
        caps=tuple(
            HoldCap.model_validate({"scope": scope, "id": scope_id, "month": month or None})
            for _, scope, scope_id, month in hold.caps
        ),
    )


def _overrun_row(overrun: Overrun) -> OverrunRow:
    values = {name: getattr(overrun, name) for name in OverrunRow.model_fields}
    return OverrunRow(**{**values, "id": str(overrun.id), "month": overrun.month or None})
