"""Refusing, and telling of, what no honest sender does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.errors import Invalid
from contracts.rooms import SecurityNoticed
from shared import outbox
from shared.inbox import body_digest

if TYPE_CHECKING:
    from shared.consume import Batch, Received
    from shared.db import Connection


async def refuse_changed(
    connection: Connection, batch: Batch, item: Received, *, room: str
) -> None:
    """Make an event id that was said again with another body a dead letter, and say so.

    The notice's id comes from the body, so that each changed body is noticed once.
    """
    batch.refuse(
        item,
        Invalid(
            f"event {item.event.id} was said before with another body: a new saying needs a new id",
            reason="changed_body",
        ),
    )
    producer = item.address.producer_key
    notice = SecurityNoticed(
        code="changed_body",
        producer=producer,
        target_type="event",
        target_id=item.event.id,
        noticed_at=batch.now,
    )
    event_id = outbox.derived_id(
        "security_noticed",
        item.event.org,
        producer,
        item.event.id,
        body_digest(item.delivery.body).hex(),
    )
    await outbox.save(
        connection,
        [outbox.say(notice, room=room, org=item.event.org, event_id=event_id, at=batch.now)],
    )
