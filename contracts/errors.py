"""Errors that travel: over the bus in an answer, over HTTP as problem details.

The class says what the bus has to do; `code` says what a program may rely on (facts.md 1.3);
`reason` is the finer stable word, and the message says what is true and what to do.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Fault(Exception):
    """An anticipated failure with a code that is part of the contract."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, reason: str | None = None, **details: Any) -> None:
        """Keep the sentence, the finer reason (snake case) and values that explain it."""
        super().__init__(message)
        self.message = message
        self.reason = reason or self.code.lower()
        self.details: dict[str, Any] = details


class Invalid(Fault):
    """It cannot be understood: a dead letter at once, 422 over HTTP."""

    code = "VALIDATION_ERROR"
    status = 422


class Rejected(Fault):
    """It was understood, and a rule says no. No failure of ours."""

    code = "BAD_REQUEST"
    status = 400


class NotFound(Rejected):
    """Nothing of that name in this organization; another tenant's id answers the same."""

    code = "NOT_FOUND"
    status = 404


class AlreadyExists(Rejected):
    """The id is taken, or an idempotency key was used for something else."""

    code = "ALREADY_EXISTS"
    status = 409


class Unauthenticated(Rejected):
    """No credential, or one that is unknown, expired or revoked."""

    code = "AUTHENTICATION_ERROR"
    status = 401


class Forbidden(Rejected):
    """The caller is known and lacks a permission."""

    code = "AUTHORIZATION_ERROR"
    status = 403


class TooLarge(Rejected):
    """A body or an export beyond its limit."""

    code = "EXPORT_TOO_LARGE"
    status = 413


class TooMany(Rejected):
    """Too often in too short a time; `retry_after_s` among the details says when again."""

    code = "RATE_LIMIT_EXCEEDED"
    status = 429


class Retryable(Fault):
    """It may work later: two quick tries, then the room's retry table; 503 over HTTP."""

    code = "EXTERNAL_SERVICE_ERROR"
    status = 503


FAULTS: dict[str, type[Fault]] = {
    fault.code: fault
    for fault in (
        Fault,
        Invalid,
        Rejected,
        NotFound,
        AlreadyExists,
        Unauthenticated,
        Forbidden,
        TooLarge,
        TooMany,
        Retryable,
    )
}
"""Every code with its class, so that an answer's error is raised as what it was."""


def fault_from(code: str, message: str, reason: str | None, details: dict[str, Any]) -> Fault:
    """Rebuild the fault that a responder put into an answer; an unknown code is a `Fault`."""
    return FAULTS.get(code, Fault)(message, reason=reason, **details)
