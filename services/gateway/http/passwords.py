"""Passwords: hashed with argon2id in a thread, a few at once.

The one thing not to break: verifying costs the same whether somebody has the address or not, so
the time of an answer tells nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from contracts.errors import TooMany

T = TypeVar("T")

PASSWORD_CHARS_MIN: Final = 12
PASSWORD_CHARS_MAX: Final = 256
HASHING_MAX: Final = 2
"""Hashes that are computed at once; each takes `MEMORY_KIB` and one core."""
WAITING_MAX: Final = 200
"""Passwords that wait for a place; more are asked to come again."""
RETRY_AFTER_S: Final = 2
MEMORY_KIB: Final = 19_456
PASSES: Final = 2
"""argon2id with 19 MiB, 2 passes, 1 lane: a setting that OWASP's password storage sheet names."""
_NOBODYS: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$"
    "bm9ib2R5IGhhcyB0aGlz$W8LL5ejcXW7+zd1tsQ8rpV4xTfYYFuhWuCHWxxHVkjI"
)
"""Compared with where nobody has the address; it is the hash of no password."""


class Passwords:
    """Hashes and compares; one per process."""

    def __init__(self) -> None:
        """Nothing is computed yet."""
        self._hasher = PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=1)
        self._slots = asyncio.Semaphore(HASHING_MAX)
        self._waiting = 0

    async def digest(self, password: str) -> str:
        """The hash to store of a new password.

        Raises:
            TooMany: `WAITING_MAX` wait.
        """
        return await self._in_turn(self._hasher.hash, password)

    async def fits(self, password: str, stored: str | None) -> bool:
        """Whether the password is the stored one; `None` takes as long and does not fit.

        Raises:
            TooMany: `WAITING_MAX` wait.
        """
        fits = await self._in_turn(self._verify, password, stored or _NOBODYS)
        return fits and stored is not None

    def is_outdated(self, stored: str) -> bool:
        """Whether a hash was made with other settings than today's."""
        return self._hasher.check_needs_rehash(stored)

    async def _in_turn(self, function: Callable[..., T], *arguments: str) -> T:
        if self._waiting >= WAITING_MAX:
            raise TooMany("too many people sign in at once: try again", retry_after_s=RETRY_AFTER_S)
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(function, *arguments)
        finally:
            self._waiting -= 1

    def _verify(self, password: str, stored: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False
