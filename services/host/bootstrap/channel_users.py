"""Making and removing the bus users of channels while the server runs.

The one thing not to break: an answer is given only when the server agrees with the record: the new
user gets through, the removed one is cut. Changes that wait together share their reloads, because
each is a short hole for everybody (dependencies.md 10, pitfall 9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from contracts.errors import Retryable
from services.host.bootstrap.credentials import BusUsers
from services.host.bootstrap.keys import new_seed, public_key
from services.host.bootstrap.rights import channel_user
from services.host.errors import NatsConfigRefused
from shared.log import logger

PROBES_MAX: Final = 3
"""Tries of a new user before its asker is told to ask again; a reload lies between them."""


class Reloading(Protocol):
    """What makes the server read its configuration again."""

    async def reload(self) -> None:
        """Return when the server uses the file that lies there now."""
        ...


class Probe(Protocol):
    """What tries a user's key."""

    async def __call__(self, *, user: str, nkey_seed: str) -> bool:
        """Tell whether the server takes it and what its account imports arrives."""
        ...


@dataclass(slots=True)
class _Batch:
    """Changes that share one reload; open until its turn comes."""

    changes: dict[str, str | None] = field(default_factory=dict)
    """User to its new seed, or to None where it is removed."""
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
            self._users.keep()
            await self._server.reload()
            # The record may hold an organization that the server has not heard of.
            await self._server.reload()

    async def issue(self, org: str, channel_id: str) -> str:
        """Make or replace a channel's user and return its new seed.

        Errors: Retryable when the server could not be made to agree, or a later change came first.
        """
        seed = new_seed()
        await self._change(channel_user(org, channel_id), seed)
        return seed

    async def revoke(self, org: str, channel_id: str) -> bool:
        """Remove a channel's user and cut its connections; tell whether there was one.

        Errors: as `issue`.
        """
        user = channel_user(org, channel_id)
        batch = await self._change(user, None)
        return user in batch.before

    def user_of(self, key: str) -> str | None:
        """The channel user that a public key belongs to; None for rooms and strangers."""
        return {known: user for user, known in self._users.channels().items()}.get(key)

    @property
    def paused(self) -> frozenset[str]:
        """Who is left out now."""
        return self._users.paused

    async def pause(self, users: frozenset[str]) -> None:
        """Leave these users out until the next call; their connections are cut, nobody else's.

        Errors: Retryable, NatsConfigRefused.
        """
        if users == self._users.paused:
            return
        async with self._turn:
            self._users.paused = users
            self._users.keep()
            await self._server.reload()

    async def _change(self, user: str, seed: str | None) -> _Batch:
        batch = self._open
        batch.changes[user] = seed
        if batch.task is None:
            batch.task = asyncio.create_task(self._settle(batch))
        try:
            # Shielded: an asker that gives up must not leave the others without their reload.
            await asyncio.shield(batch.task)
        except NatsConfigRefused as error:
            raise Retryable(str(error), reason="reload_refused") from error
        if batch.changes[user] != seed:
            raise Retryable("a later change of this channel came first", reason="overtaken")
        return batch

    async def _settle(self, batch: _Batch) -> None:
        """Write the changes, reload, try the new users."""
        async with self._turn:
            self._open = _Batch()
            batch.before = self._users.channels()
            # A channel that an operator gives another key is let in with it.
            self._users.paused -= batch.changes.keys()
            self._users.change_channels(
                {user: seed and public_key(seed) for user, seed in batch.changes.items()}
            )
            try:
                await self._server.reload()
                if _organizations(batch.changes) - _organizations(batch.before):
                    # What a new account imports is dead after the reload that introduces it.
                    await self._server.reload()
            except NatsConfigRefused:
                # The server kept the old file, so the record goes back to what it uses.
                self._users.change_channels(
                    {user: batch.before.get(user) for user in batch.changes}
                )
                raise
            await self._require_passage(batch.changes)
            logger().info("channel_users_changed", users=sorted(batch.changes))

    async def _require_passage(self, changes: Mapping[str, str | None]) -> None:
        waiting = {user: seed for user, seed in changes.items() if seed is not None}
        for tried in range(PROBES_MAX):
            if tried:
                await self._server.reload()
            waiting = {
                user: seed
                for user, seed in waiting.items()
                if not await self._probe(user=user, nkey_seed=seed)
            }
            if not waiting:
                return
        raise Retryable(
            "the bus does not take the new credential yet: try again",
            reason="credential_not_taken",
        )


def _organizations(users: Iterable[str]) -> set[str]:
    return {user.partition(".")[0] for user in users}
