"""Making and removing the bus users of channels while the server runs.

The one thing not to break: an answer is given only when the server agrees with the record: the new
user can log in, the removed one is cut. Changes that wait together share one reload, because each
reload is a short hole for everybody (dependencies.md 10, pitfall 9).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from contracts.errors import Retryable
from services.host.bootstrap.credentials import BusUsers
from services.host.bootstrap.rights import channel_user
from services.host.datadir import SECRET_BYTES, SECRET_LETTER
from services.host.errors import NatsConfigRefused
from shared.log import logger


class Reloading(Protocol):
    """What makes the server read its configuration again."""

    async def reload(self) -> None:
        """Return when the server uses the file that lies there now."""
        ...


class Probe(Protocol):
    """What tries a user's password."""

    async def __call__(self, *, user: str, password: str) -> bool:
        """Tell whether the server takes it."""
        ...


@dataclass(slots=True)
class _Batch:
    """Changes that share one reload; open until its turn comes."""

    changes: dict[str, str | None] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class ChannelUsers:
    """The channel users of one embedded server."""

    def __init__(self, users: BusUsers, server: Reloading, probe: Probe) -> None:
        """Take the record, the way to reload, and the way to try a login."""
        self._users = users
        self._server = server
        self._probe = probe
        self._turn = asyncio.Lock()
        self._open = _Batch()

    async def agree(self) -> None:
        """Make the server agree with the record: an earlier process may have died in between.

        Errors: Retryable, NatsConfigRefused.
        """
        async with self._turn:
            await self._server.reload()

    async def issue(self, org: str, channel_id: str) -> str:
        """Make or replace a channel's user and return its new password.

        Errors: Retryable when the server could not be made to agree, or a later change came first.
        """
        password = SECRET_LETTER + secrets.token_hex(SECRET_BYTES)
        await self._change(channel_user(org, channel_id), password)
        return password

    async def revoke(self, org: str, channel_id: str) -> bool:
        """Remove a channel's user and cut its connections; tell whether there was one.

        Errors: as `issue`.
        """
        user = channel_user(org, channel_id)
        batch = await self._change(user, None)
        return user in batch.before

    async def _change(self, user: str, password: str | None) -> _Batch:
        batch = self._open
        batch.changes[user] = password
        if batch.task is None:
            batch.task = asyncio.create_task(self._settle(batch))
        try:
            # Shielded: an asker that gives up must not leave the others without their reload.
            await asyncio.shield(batch.task)
        except NatsConfigRefused as error:
            raise Retryable(str(error), reason="reload_refused") from error
        if batch.changes[user] != password:
            raise Retryable("a later change of this channel came first", reason="overtaken")
        return batch

    async def _settle(self, batch: _Batch) -> None:
        """Write the changes, reload once, try the new logins."""
        async with self._turn:
            self._open = _Batch()
            batch.before = self._users.channels()
            self._users.change_channels(batch.changes)
            try:
                await self._server.reload()
            except NatsConfigRefused:
                # The server kept the old file, so the record goes back to what it uses.
                self._users.change_channels(
                    {user: batch.before.get(user) for user in batch.changes}
                )
                raise
            await self._require_logins(batch.changes)
            logger().info("channel_users_changed", users=sorted(batch.changes))

    async def _require_logins(self, changes: Mapping[str, str | None]) -> None:
        for user, password in changes.items():
            if password is not None and not await self._probe(user=user, password=password):
                raise Retryable(
                    "the bus does not take the new credential yet: try again",
                    reason="credential_not_taken",
                )
