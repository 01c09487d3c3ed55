"""People who sign in: passwords' hashes, sessions, failed tries.

The one thing not to break: a known and an unknown address take the same path. What is counted of
failures is counted by a digest of the address, whether somebody has it or not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.db import Connection

PRUNE_ROWS_MAX = 100
"""Rows that are over which one sign-in removes on its way."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who signs in."""

    person_id: str
    email: str
    name: str
    password_hash: str
    is_app_admin: bool


@dataclass(frozen=True, slots=True)
class Belonging:
    """That a person is a member of an organization."""

    org: str
    user_id: str
    role: str


@dataclass(frozen=True, slots=True)
class SessionCaller:
    """A session that may still be used, and where its person belongs."""

    secret_sha256: bytes
    person_id: str
    is_app_admin: bool
    pseudonym: str
    belongings: tuple[Belonging, ...]


_PERSON = "person_id, email, name, password_hash, is_app_admin"


async def save_new_person(connection: Connection, person: Person, *, at: datetime) -> bool:
    """Insert a person; False where the address is taken."""
    inserted = await connection.fetchval(
        """
        INSERT INTO person (person_id, email, name, password_hash, is_app_admin, created_at,
            changed_at)
        VALUES ($1, $2, $3, $4, $5, $6, $6) ON CONFLICT DO NOTHING RETURNING true
        """,
        person.person_id,
        person.email,
        person.name,
        person.password_hash,
        person.is_app_admin,
        at,
    )
    return inserted is not None


async def load_person_by_email(connection: Connection, email: str) -> Person | None:
    """The person with an address."""
    row = await connection.fetchrow(f"SELECT {_PERSON} FROM person WHERE email = $1", email)
    return Person(**dict(row)) if row else None


async def load_person(connection: Connection, person_id: str) -> Person | None:
    """One person."""
    row = await connection.fetchrow(f"SELECT {_PERSON} FROM person WHERE person_id = $1", person_id)
    return Person(**dict(row)) if row else None


async def save_password(
    connection: Connection, person_id: str, password_hash: str, *, at: datetime
) -> None:
    """Replace a password's hash."""
    await connection.execute(
        "UPDATE person SET password_hash = $2, changed_at = $3 WHERE person_id = $1",
        person_id,
        password_hash,
        at,
    )


async def save_app_admin(
    connection: Connection, email: str, *, is_app_admin: bool, at: datetime
) -> str | None:
    """Make a person an app admin, or one no longer; answer who it is."""
    found = await connection.fetchval(
        """
        UPDATE person SET is_app_admin = $2, changed_at = $3 WHERE email = $1 RETURNING person_id
        """,
        email,
        is_app_admin,
        at,
    )
    return None if found is None else str(found)


async def save_new_session(
    connection: Connection,
    session_id: str,
    secret_sha256: bytes,
    *,
    person_id: str,
    at: datetime,
    expires_at: datetime,
) -> None:
    """Insert a session, and remove some that are over."""
    await connection.execute(
        """
        DELETE FROM session WHERE ctid IN (
            SELECT ctid FROM session WHERE expires_at <= $1
            ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        """,
        at,
        PRUNE_ROWS_MAX,
    )
    await connection.execute(
        """
        INSERT INTO session (session_id, secret_sha256, person_id, created_at, expires_at)
        VALUES ($1, $2, $3, $4, $5)
        """,
        session_id,
        secret_sha256,
        person_id,
        at,
        expires_at,
    )


async def load_session_caller(
    connection: Connection, session_id: str, *, now: datetime
) -> SessionCaller | None:
    """The caller behind a session; None where it is unknown, expired or ended."""
    rows: Sequence[Any] = await connection.fetch(
        """
        SELECT s.secret_sha256, s.person_id, p.is_app_admin, y.pseudonym, m.org_id, m.user_id,
            m.role
        FROM session s
        JOIN person p ON p.person_id = s.person_id
        JOIN pseudonym y ON y.subject = 'person:' || s.person_id
        LEFT JOIN member m ON m.person_id = s.person_id AND m.removed_at IS NULL
        WHERE s.session_id = $1 AND s.ended_at IS NULL AND s.expires_at > $2
        """,
        session_id,
        now,
    )
    if not rows:
        return None
    first = rows[0]
    return SessionCaller(
        secret_sha256=bytes(first["secret_sha256"]),
        person_id=first["person_id"],
        is_app_admin=first["is_app_admin"],
        pseudonym=first["pseudonym"],
        belongings=tuple(
            Belonging(row["org_id"], row["user_id"], row["role"])
            for row in rows
            if row["org_id"] is not None
        ),
    )


async def end_session(connection: Connection, session_id: str, *, at: datetime) -> bool:
    """End one session; False where it had ended."""
    ended = await connection.fetchval(
        """
        UPDATE session SET ended_at = $2 WHERE session_id = $1 AND ended_at IS NULL
        RETURNING true
        """,
        session_id,
        at,
    )
    return ended is not None


async def end_sessions(connection: Connection, person_id: str, *, at: datetime) -> int:
    """End every session of a person; answer how many there were."""
    rows = await connection.fetch(
        """
        UPDATE session SET ended_at = $2 WHERE person_id = $1 AND ended_at IS NULL
        RETURNING session_id
        """,
        person_id,
        at,
    )
    return len(rows)


def _digest(subject: str) -> bytes:
    return hashlib.sha256(subject.encode()).digest()


async def load_lock(
    connection: Connection, subjects: Sequence[str], *, now: datetime
) -> datetime | None:
    """Until when any of these is locked out; None where none is."""
    until: datetime | None = await connection.fetchval(
        """
        SELECT max(locked_until) FROM sign_in_failure
        WHERE subject_sha256 = ANY($1::bytea[]) AND locked_until > $2
        """,
        [_digest(subject) for subject in subjects],
        now,
    )
    return until


async def count_failure(
    connection: Connection, subject: str, *, now: datetime, window: timedelta, failures_max: int
) -> bool:
    """Count a failed sign-in; answer whether it is the one that locks `subject` out.

    Failures older than `window` count no longer, and a lock lasts as long.
    """
    await connection.execute(
        """
        DELETE FROM sign_in_failure WHERE ctid IN (
            SELECT ctid FROM sign_in_failure
            WHERE first_at <= $1 AND (locked_until IS NULL OR locked_until <= $2)
            ORDER BY first_at LIMIT $3 FOR UPDATE SKIP LOCKED
        )
        """,
        now - window,
        now,
        PRUNE_ROWS_MAX,
    )
    failures = await connection.fetchval(
        """
        INSERT INTO sign_in_failure (subject_sha256, failures, first_at) VALUES ($1, 1, $2)
        ON CONFLICT (subject_sha256) DO UPDATE SET failures = sign_in_failure.failures + 1
        RETURNING failures
        """,
        _digest(subject),
        now,
    )
    if failures < failures_max:
        return False
    await connection.execute(
        """
        UPDATE sign_in_failure SET locked_until = $2, failures = 0, first_at = $3
        WHERE subject_sha256 = $1
        """,
        _digest(subject),
        now + window,
        now,
    )
    return True


async def forget_failures(connection: Connection, subject: str) -> None:
    """A sign-in that succeeded ends the row of failures."""
    await connection.execute(
        "DELETE FROM sign_in_failure WHERE subject_sha256 = $1", _digest(subject)
    )
