"""What goes with every act of the directory: the event, the audit entry, the pseudonym.

The one thing not to break: all three are written in the transaction of the act, the audit entry
last, because acts on one chain wait there for one another (`shared.audit`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from uuid_utils.compat import uuid4, uuid7

from contracts.rooms import AuditEntry
from contracts.subjects import token_of
from contracts.types import Details
from shared import audit, outbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.store.pages import Entity, Said
    from shared.db import Connection

ROOM: Final = "gateway"


@dataclass(frozen=True, slots=True)
class Act:
    """Something that somebody did to one entity, of an organization or of the deployment."""

    action: str
    """Of the catalogue: `organization.created`, `key.revoked` …"""
    org: str | None
    """None: the deployment's chain; such an act says no event."""
    target_type: str
    target_id: str
    actor: str | None
    """A pseudonym; null is a statement: an operator at the command line."""
    at: datetime
    details: Details = field(default_factory=dict)
    """Old and new values of settings; never a secret."""
    ip_address: str | None = None


async def record_act(connection: Connection, act: Act, said: Said | None = None) -> None:
    """Write the event of an act, where it has one, and its audit entry."""
    if said is not None:
        await outbox.save(connection, [_event_of(act, said)])
    await audit.record(connection, _entry_of(act), room=ROOM)


async def say_again(connection: Connection, entities: Sequence[Entity], *, at: datetime) -> None:
    """Say entities as they are, under new ids: the same id would be taken for what was said."""
    await outbox.save(
        connection,
        [
            outbox.say(
                entity.said,
                room=ROOM,
                org=entity.org,
                event_id=str(uuid7()),
                at=at,
                token=token_of(entity.target_type, entity.target_id),
            )
            for entity in entities
        ],
    )


def _event_of(act: Act, said: Said) -> outbox.Message:
    org = str(act.org)
    revision = str(said.entity_revision)
    return outbox.say(
        said,
        room=ROOM,
        org=org,
        event_id=outbox.derived_id("directory", org, act.target_type, act.target_id, revision),
        at=act.at,
        token=token_of(act.target_type, act.target_id),
    )


def _entry_of(act: Act) -> AuditEntry:
    return AuditEntry(
        id=str(uuid7()),
        actor=act.actor,
        organization=act.org,
        action=act.action,
        target_type=act.target_type,
        target_id=act.target_id,
        details=act.details,
        ip_address=act.ip_address,
        created_at=act.at,
    )


async def ensure_pseudonym(connection: Connection, subject: str, *, now: datetime) -> str:
    """The random name of a subject (`key:<id>`, `deployment`), made at its first use."""
    known = await connection.fetchval("SELECT pseudonym FROM pseudonym WHERE subject = $1", subject)
    if known is not None:
        return str(known)
    await connection.execute(
        """
        INSERT INTO pseudonym (subject, pseudonym, created_at) VALUES ($1, $2, $3)
        ON CONFLICT DO NOTHING
        """,
        subject,
        str(uuid4()),
        now,
    )
    return str(
        await connection.fetchval("SELECT pseudonym FROM pseudonym WHERE subject = $1", subject)
    )
