"""What any room says: audit entries (design.md 9).

The chain itself is kept elsewhere; here an act gets its gapless number per (room, chain) in the
transaction of the act, so that an entry removed before it reached the chain is noticed.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from contracts.types import AgentId, Count, Details, Digest, Id, Instant, OrgId, Wire

AUDIT_CHAIN_DEPLOYMENT = "_"
"""Name of the chain of acts that belong to no organization."""


class AuditEntry(Wire):
    """One act (facts.md 8.1). People appear as pseudonyms stamped by the gateway."""

    id: Id
    actor: Id | None
    """Pseudonym of a person or an API key; null is a statement: nobody."""
    impersonator: Id | None = None
    organization: OrgId | None
    """Null: the deployment's chain."""
    action: Annotated[str, StringConstraints(pattern=r"^[a-z_.]{1,100}$")]
    target_type: Annotated[str, StringConstraints(max_length=100)] | None = None
    target_id: AgentId | None = None
    details: Details = {}
    ip_address: Annotated[str, StringConstraints(max_length=45)] | None = None
    """Stored, never shown or exported."""
    created_at: Instant


class AuditRecorded(Wire):
    """An entry with its gapless number and the hash of the number before it."""

    entry: AuditEntry
    room: Id
    chain: Annotated[str, StringConstraints(max_length=63)]
    number: Annotated[Count, Field(ge=1)]
    previous: Digest | None
    """SHA-256 of the previous number's canonical bytes; null for number 1."""


class SecurityNoticed(Wire):
    """Something that no honest sender does; for people who watch over the organization."""

    code: Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,64}$")]
    """`changed_body`: an event id was said again with another body."""
    producer: Annotated[str, StringConstraints(max_length=80)]
    target_type: Annotated[str, StringConstraints(max_length=100)] | None = None
    target_id: Annotated[str, StringConstraints(max_length=300)] | None = None
    noticed_at: Instant
