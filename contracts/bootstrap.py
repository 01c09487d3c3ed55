"""Questions to the bootstrap process: bus credentials of channels (design.md 2)."""

from __future__ import annotations

from pydantic import Field

from contracts.types import ChannelId, OrgId, Wire


class IssueCredential(Wire):
    """Make (or replace) the bus user of one channel."""

    org: OrgId
    channel_id: ChannelId


class Credential(Wire):
    """Shown once; the server keeps its own copy."""

    available: bool
    """False where an external server is used: its operator makes the users."""
    url: str | None
    user: str | None
    password: str | None = Field(default=None, repr=False)
    inbox_prefix: str | None


class RevokeCredential(Wire):
    """Remove a channel's bus user; its connections are cut."""

    org: OrgId
    channel_id: ChannelId


class Revoked(Wire):
    """Whether there was one."""

    existed: bool
