"""What goes wrong for a publisher, each with its code.

The one thing not to break: `RiendaUnreachable` alone means "nobody answered, the same words may be
said again"; every other error is an answer, and saying the same again changes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from contracts.ledger import Authorization


class ChannelError(Exception):
    """An anticipated failure of a publisher; `code` is part of the contract."""

    code: ClassVar[str] = "channel-error"


class RiendaUnreachable(ChannelError):
    """Nobody answered in time, or the answer was "not now"."""

    code = "rienda-unreachable"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """Keep the sentence, and how long the other side asks to wait (seconds)."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CredentialRefused(ChannelError):
    """The key or the bus user is unknown, revoked, or lacks the right to publish."""

    code = "credential-refused"


class BudgetRefused(ChannelError):
    """The ledger answered no. The whole answer is kept: the cap that bound, limit and spent."""

    code = "budget-refused"

    def __init__(self, authorization: Authorization) -> None:
        """Show the ledger's own sentence."""
        super().__init__(authorization.sentence)
        self.authorization = authorization


class RateLimited(BudgetRefused):
    """The agent has sent as many requests as it may in a minute: ask again, with the same id."""

    code = "rate-limited"

    def __init__(self, authorization: Authorization) -> None:
        """Say how long to wait (seconds)."""
        super().__init__(authorization)
        self.retry_after_s = authorization.retry_after_s or 0


def refused(authorization: Authorization) -> BudgetRefused:
    """The error of an answer that says no."""
    refusal = authorization.refusal
    if refusal is not None and refusal.code == "rate_limited":
        return RateLimited(authorization)
    return BudgetRefused(authorization)


class EventRefused(ChannelError):
    """An event was understood and not taken, for a reason that will not change."""

    code = "event-refused"

    def __init__(self, event_id: str, *, reason: str, message: str) -> None:
        """Name the event, the finer code and the other side's sentence."""
        super().__init__(f"{event_id} was refused ({reason}): {message}")
        self.event_id = event_id
        self.reason = reason


class SpoolFull(ChannelError):
    """The spool would pass its bound: these events are not kept, and their spend is not billed."""

    code = "spool-full"

    def __init__(self, where: str, *, events_count: int, bytes_max: int) -> None:
        """Say where, how many events are lost, and the bound in bytes."""
        super().__init__(
            f"{where} is full ({bytes_max} bytes): {events_count} event(s) could not be kept; "
            "make Rienda reachable so that it empties, or give it more room"
        )
        self.events_count = events_count
        self.bytes_max = bytes_max


class SpoolUnusable(ChannelError):
    """The spool file cannot be read or written: a full disk, a missing right."""

    code = "spool-unusable"


class EventsUnsent(ChannelError):
    """The channel closed with events in memory that nobody took: without a spool file, lost."""

    code = "events-unsent"

    def __init__(self, events_count: int) -> None:
        """Say how many."""
        super().__init__(
            f"{events_count} event(s) were not taken before the channel closed and are lost; "
            "give the channel a spool_path and they are sent at its next start"
        )
        self.events_count = events_count


class NotWords(ChannelError):
    """A part of a request is no words, so that its bytes do not bound its tokens."""

    code = "not-words"

    def __init__(self, kind: str) -> None:
        """Name the kind of part as the request does."""
        super().__init__(
            f"a part of type {kind[:64]!r} is no words, and what it amounts to is not guessed: "
            "state input_tokens_max or cost_nanousd_max yourself"
        )
        self.kind = kind


class RunNotOpen(ChannelError):
    """A request or a delegation was opened on a run that has not begun or has ended."""

    code = "run-not-open"


class NotConfigured(ChannelError):
    """Nothing says where Rienda is, or what it says cannot be read."""

    code = "not-configured"


class NothingToImport(ChannelError):
    """A path that does not exist, or a folder that holds no transcript."""

    code = "nothing-to-import"

    def __init__(self, path: Path, why: str) -> None:
        """Name the path and what is wrong with it."""
        super().__init__(f"{path}: {why}")
        self.path = path


class AnswerUnreadable(ChannelError):
    """Something answered, but not as Rienda does: most likely another server's address."""

    code = "answer-unreadable"
