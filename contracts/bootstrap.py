"""Questions to the bootstrap process, and how the accounts of the bus are named (design.md 2).

Account names are a contract between whoever configures the server and the rooms: the server says
the asker's account with every question, and the room compares it with the subject.
"""

from __future__ import annotations

from pydantic import Field

from contracts.types import ChannelId, Count, Instant, OrgId, Wire


def org_account(org: str) -> str:
    """The account of an organization; its channels are its users."""
    return f"ORG_{org}"


def room_account(room: str) -> str:
    """The account of a room."""
    return f"ROOM_{room}"


class IssueCredential(Wire):
    """Make (or replace) the bus user of one channel."""

    org: OrgId
    channel_id: ChannelId


class Credential(Wire):
    """Shown once; the server keeps the public half of the key only."""

    available: bool
    """False where an external server is used: its operator makes the users."""
    url: str | None
    user: str | None
    """`<org>.<channel>`: its name in this project; the server knows the key only."""
    password: str | None = Field(default=None, repr=False)
    """Never with the embedded server; a deployment of somebody else's may hand one out."""
    nkey_seed: str | None = Field(default=None, repr=False)
    """Signs in: an Ed25519 seed in the form of NATS (`SU…`)."""
    inbox_prefix: str | None


class RevokeCredential(Wire):
    """Remove a channel's bus user; its connections are cut."""

    org: OrgId
    channel_id: ChannelId


class Revoked(Wire):
    """Whether there was one."""

    existed: bool


class ListStreams(Wire):
    """How full the streams are and how far their durables; asked by rooms and operators."""


class StreamFill(Wire):
    """One stream and its limit."""

    stream: str
    messages: Count
    bytes: Count
    bytes_max: Count
    alarm: bool
    """Above 70 % of the limit (design.md 2, *Streams*): soon it refuses."""


class DurableLag(Wire):
    """One durable and the oldest message that it has not acknowledged."""

    room: str
    stream: str
    durable: str
    exists: bool
    pending: Count
    unacknowledged: Count
    oldest_at: Instant | None
    alarm: bool
    """Missing, or its oldest message has passed 25 % of the stream's age: soon it is lost."""


class StreamsReport(Wire):
    """What an operator looks at first."""

    streams: tuple[StreamFill, ...]
    durables: tuple[DurableLag, ...]
    at: Instant
