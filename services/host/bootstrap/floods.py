"""Which channels send more than the bus bears for all, by the server's own counts.

nats-server has no limit of messages per second, and one sender that waits for nothing makes every
other organization wait (ADR 0029). Pure: counts and times come in, names come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

MESSAGES_PER_S_MAX: Final = 10_000
"""Of one connection: as much as one ledger process is meant to take in from all (issue 6)."""
BYTES_PER_S_MAX: Final = 64 * 1024 * 1024
LOOKS: Final = 2
"""So many looks in a row: one alone may be a spool that is emptied."""
PAUSE_S: Final = 10.0
"""The first pause."""
LONGER: Final = (1, 6, 30)
"""How many times as long are the first, the second, and every further one."""
FORGIVEN_S: Final = 3_600.0
"""So long after a pause the next one is a first again."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one connection has sent since it was opened."""

    connection: int
    key: str
    """The public key that it signed in with."""
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Flood:
    """A key that sends too much."""

    key: str
    messages_per_s: float
    bytes_per_s: float


@dataclass(slots=True)
class FloodWatch:
    """Compares each look at the connections with the one before."""

    messages_per_s_max: int = MESSAGES_PER_S_MAX
    bytes_per_s_max: int = BYTES_PER_S_MAX
    _at_s: float | None = None
    _before: dict[int, Traffic] = field(default_factory=dict)
    _looks: dict[str, int] = field(default_factory=dict)

    def look(self, traffic: Iterable[Traffic], at_s: float) -> list[Flood]:
        """Take in the counts of an instant (seconds of any steady clock); answer the floods.

        Connections of one key count together: an organization may have several open.
        """
        now = {one.connection: one for one in traffic}
        floods: list[Flood] = []
        if self._at_s is not None and at_s > self._at_s:
            for flood in self._rates(now, at_s - self._at_s):
                looks = self._looks[flood.key] = self._looks.get(flood.key, 0) + 1
                if looks >= LOOKS:
                    floods.append(flood)
        self._at_s, self._before = at_s, now
        return floods

    def _rates(self, now: Mapping[int, Traffic], passed_s: float) -> list[Flood]:
        sent: dict[str, tuple[int, int]] = {}
        for one in now.values():
            before = self._before.get(one.connection, Traffic(one.connection, one.key, 0, 0))
            messages, size = sent.get(one.key, (0, 0))
            sent[one.key] = (
                messages + one.messages - before.messages,
                size + one.bytes - before.bytes,
            )
        rates = [
            Flood(key, count / passed_s, size / passed_s) for key, (count, size) in sent.items()
        ]
        over = [
            rate
            for rate in rates
            if rate.messages_per_s > self.messages_per_s_max
            or rate.bytes_per_s > self.bytes_per_s_max
        ]
        keys = {rate.key for rate in over}
        self._looks = {key: count for key, count in self._looks.items() if key in keys}
        return over


@dataclass(slots=True)
class Pauses:
    """Who may not sign in until when: longer each time, forgiven after a while."""

    first_s: float = PAUSE_S
    _until_s: dict[str, float] = field(default_factory=dict)
    _count: dict[str, int] = field(default_factory=dict)

    def begin(self, user: str, at_s: float) -> float:
        """Pause a user; answer for how many seconds."""
        if at_s > self._until_s.get(user, at_s) + FORGIVEN_S:
            self._count.pop(user, None)
        number = self._count[user] = self._count.get(user, 0) + 1
        length_s = self.first_s * LONGER[min(number, len(LONGER)) - 1]
        self._until_s[user] = at_s + length_s
        return length_s

    def now(self, at_s: float) -> frozenset[str]:
        """Who is paused at an instant."""
        return frozenset(user for user, until_s in self._until_s.items() if until_s > at_s)

    def lift(self, user: str, at_s: float) -> None:
        """End a user's pause early: an operator has given the channel another key."""
        if user in self._until_s:
            self._until_s[user] = min(self._until_s[user], at_s)
