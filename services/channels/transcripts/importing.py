"""Imports sessions one after another: read, derive, say, sum up.

The one thing not to break: a session is read whole before the first of its events is said, and only
one session is in memory at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from contracts.types import UsageKind
from services.channels.errors import RiendaUnreachable
from services.channels.transcripts.discovery import Found, SessionFiles
from services.channels.transcripts.reading import Damage, Line, read_lines
from services.channels.transcripts.records import Record, Unusable, record_of
from services.channels.transcripts.rules import Session, read_session
from services.channels.transcripts.saying import Attribution, say_session
from services.channels.transport import Outcome, Said, Transport, Verdict

BATCH_EVENTS_MAX: Final = 100
"""Events per call; the gateway takes no more (services/gateway, `POST /events`)."""
TRIES_MAX: Final = 8
FIRST_WAIT_S: Final = 0.5
WAIT_S_MAX: Final = 10.0
"""Longest pause before saying a batch again; eight tries bear about half a minute of restarts."""
LISTED_MAX: Final = 100
"""How many damaged lines, refusals and missing delegates are listed; all are counted."""
_FIRST: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Listed:
    """A count with its first `LISTED_MAX` items."""

    count: int = 0
    items: list[str] = field(default_factory=list)

    def add(self, item: str) -> None:
        """Count one, and keep its words while there is room."""
        self.count += 1
        if len(self.items) < LISTED_MAX:
            self.items.append(item)


@dataclass(slots=True)
class Summary:
    """What an import found and what became of it."""

    files: int = 0
    sessions: int = 0
    runs: int = 0
    """Top-level ones."""
    delegated_runs: int = 0
    requests: int = 0
    """All of them, compactions included."""
    compactions: int = 0
    accepted: int = 0
    duplicates: int = 0
    refused: Listed = field(default_factory=Listed)
    damaged: Listed = field(default_factory=Listed)
    missing_delegates: Listed = field(default_factory=Listed)

    @property
    def is_clean(self) -> bool:
        """Nothing was damaged and nothing refused. A missing delegate is stated, not a fault."""
        return not self.damaged.count and not self.refused.count

    def as_json(self) -> dict[str, Any]:
        """The summary for programs."""
        return {
            "files": self.files,
            "sessions": self.sessions,
            "runs": self.runs,
            "delegated_runs": self.delegated_runs,
            "requests": self.requests,
            "compactions": self.compactions,
            "events": {
                "accepted": self.accepted,
                "duplicates": self.duplicates,
                "refused": self.refused.count,
            },
            "refusals": self.refused.items,
            "damaged_lines": self.damaged.count,
            "damages": self.damaged.items,
            "missing_delegates": self.missing_delegates.count,
            "missing": self.missing_delegates.items,
        }


async def import_sessions(
    found: Found,
    transport: Transport,
    *,
    attribution: Attribution,
    on_session: Callable[[SessionFiles], None] = lambda _: None,
) -> Summary:
    """Say everything that the sessions hold, and sum it up. `on_session` hears each one done.

    Saying it again is harmless, so an import that stopped half-way is simply run again.

    Raises:
        RiendaUnreachable: nobody took a batch in `TRIES_MAX` tries.
        CredentialRefused: the key may not publish.
    """
    summary = Summary()
    for damage in found.damages:
        summary.damaged.add(str(damage))
    for files in found.sessions:
        session, damages = await asyncio.to_thread(load_session, files)
        for damage in damages:
            summary.damaged.add(str(damage))
        _count(summary, files, session)
        for batch in _batches(say_session(session, attribution)):
            _settle(summary, await _say(transport, batch))
        on_session(files)
    return summary


def load_session(files: SessionFiles) -> tuple[Session, list[Damage]]:
    """Read one session's files; damaged lines are left out and named."""
    damages: list[Damage] = []
    mains = [_records(path, damages) for path in files.mains]
    # One session in several files (it was resumed, or copied): in the order of their beginnings.
    mains.sort(key=lambda records: next((record.at for record in records if record.at), _FIRST))
    delegates: dict[str, list[Record]] = {}
    for name, path in files.delegates:
        delegates.setdefault(name, []).extend(_records(path, damages))
    session = read_session(
        files.session,
        main=(record for records in mains for record in records),
        delegates=delegates,
        compactions=[record for path in files.compactions for record in _records(path, damages)],
    )
    return session, damages


def _records(path: Path, damages: list[Damage]) -> list[Record]:
    records: list[Record] = []
    for line in read_lines(path):
        if isinstance(line, Damage):
            damages.append(line)
        else:
            _add_record(records, path, line, damages)
    return records


def _add_record(records: list[Record], path: Path, line: Line, damages: list[Damage]) -> None:
    try:
        records.append(record_of(line.value))
    except Unusable as error:
        damages.append(Damage(path, line.number, str(error)))


def _count(summary: Summary, files: SessionFiles, session: Session) -> None:
    requests = session.requests
    summary.files += files.files_count
    summary.sessions += 1
    summary.runs += len(session.runs)
    summary.delegated_runs += len(session.delegated)
    summary.requests += len(requests)
    summary.compactions += sum(request.kind is UsageKind.COMPACTION for request in requests)
    for run in (*session.runs, *session.delegated):
        for name in run.missing_delegates:
            summary.missing_delegates.add(f"{name}, asked by {run.id}")


def _batches(events: Sequence[Said]) -> Iterable[Sequence[Said]]:
    for start in range(0, len(events), BATCH_EVENTS_MAX):
        yield events[start : start + BATCH_EVENTS_MAX]


async def _say(transport: Transport, batch: Sequence[Said]) -> list[Outcome]:
    wait_s = FIRST_WAIT_S
    for _ in range(TRIES_MAX - 1):
        try:
            return await transport.publish(batch)
        except RiendaUnreachable as error:
            asked_s = error.retry_after_s
            await asyncio.sleep(min(wait_s if asked_s is None else asked_s, WAIT_S_MAX))
            wait_s *= 2
    return await transport.publish(batch)


def _settle(summary: Summary, outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        match outcome.verdict:
            case Verdict.ACCEPTED:
                summary.accepted += 1
            case Verdict.DUPLICATE:
                summary.duplicates += 1
            case Verdict.REFUSED:
                summary.refused.add(f"{outcome.id}: {outcome.reason}: {outcome.message}")
