"""The importer's rules: records of one session become runs with their requests. Pure.

The one thing not to break: a longer version of a file only adds. Ids of runs and requests come from
the lines that began them, ends only move forward, and what is not decided yet (a slash command
that no request has followed so far) changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from contracts.types import RunStatus, UsageKind
from services.channels.transcripts.records import Answer, Mark, Record, RecordKind, Usage

START_LINE: Final = "start"
"""Stands for the line of a run that no line starts: `<session>:start`."""
API_ERROR: Final = "the model's interface answered with an error"
OPEN_END: Final = "the transcript ends before the model's last word"
_STARTERS: Final = frozenset({RecordKind.PROMPT, RecordKind.COMMAND, RecordKind.NOTIFICATION})


@dataclass(frozen=True, slots=True)
class Request:
    """One model response, counted once with the best of its reports."""

    id: str
    line_uuid: str
    model: str
    usage: Usage
    occurred_at: datetime
    """The first line's time."""
    kind: UsageKind = UsageKind.MODEL


@dataclass(frozen=True, slots=True)
class Run:
    """A run as its transcript tells it."""

    id: str
    line_uuid: str
    """The line that the run's own events are named after."""
    session: str
    started_at: datetime
    ended_at: datetime
    """The latest time of its lines."""
    status: RunStatus
    error: str | None = None
    requests: tuple[Request, ...] = ()
    missing_delegates: tuple[str, ...] = ()
    """Delegates that are named and have no file: their spend is unknown."""
    parent_id: str | None = None
    delegation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that one session's files say, top-level runs before delegated ones."""

    id: str
    runs: tuple[Run, ...]
    delegated: tuple[Run, ...]

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests of all its runs."""
        return tuple(request for run in (*self.runs, *self.delegated) for request in run.requests)


@dataclass(slots=True)
class _Stretch:
    """The lines from one that may start work up to the next one."""

    starter: Mark | None
    """Null: what lies before the first line that starts work."""
    is_prompt: bool = False
    """A prompt starts; a command or a notification only when requests follow."""
    is_local: bool = False
    """A command whose output followed: it ran in the assistant's own process."""
    request_ids: list[str] = field(default_factory=list)
    last_at: datetime | None = None
    closing: Record | None = None
    """The line that tells how the work stands."""
    is_over: bool = False
    delegates: list[str] = field(default_factory=list)

    def add(self, record: Record) -> None:
        if record.at is not None and (self.last_at is None or record.at > self.last_at):
            self.last_at = record.at
        self.delegates.extend(sorted(record.delegates))
        if record.kind is RecordKind.TURN_END:
            self.is_over = True
        elif record.kind not in (RecordKind.OTHER, RecordKind.OUTPUT):
            self.closing = record
            self.is_over = False

    @property
    def is_run(self) -> bool:
        return self.is_prompt or (bool(self.request_ids) and not self.is_local)

    @property
    def is_undecided(self) -> bool:
        """A command or a notification that requests may still follow."""
        return self.starter is not None and not self.is_local and not self.is_run


class _Reports:
    """The reports of all responses, merged by response."""

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}

    def add(self, answer: Answer | None, kind: UsageKind) -> list[str]:
        """Merge a report; the response's id when it was not seen before."""
        if answer is None:
            return []
        known = self._requests.get(answer.request_id)
        if known is None:
            self._requests[answer.request_id] = Request(
                id=answer.request_id,
                line_uuid=answer.mark.uuid,
                model=answer.model,
                usage=answer.usage,
                occurred_at=answer.mark.at,
                kind=kind,
            )
            return [answer.request_id]
        if answer.usage.rank > known.usage.rank:
            self._requests[answer.request_id] = replace(known, usage=answer.usage)
        return []

    def of(self, ids: Iterable[str]) -> tuple[Request, ...]:
        return tuple(self._requests[id_] for id_ in ids)


def read_session(
    session: str,
    *,
    main: Iterable[Record],
    delegates: Mapping[str, Sequence[Record]],
    compactions: Iterable[Record],
) -> Session:
    """Turn the records of one session into its runs.

    `delegates` maps `<id>` of `agent-<id>.jsonl` to its records. A delegated run's parent is the
    run whose time it begins in; a compaction's request belongs to the run whose time it falls in;
    either falls to `<session>:start` when nothing has begun before it.
    Source: the importer's rules in the README of `services/channels`.
    """
    reports = _Reports()
    stretches = _fold(_stretches(main, reports))
    aside = {name: _whole(records, reports) for name, records in delegates.items()}
    compaction_ids = [
        new for record in compactions for new in reports.add(record.answer, UsageKind.COMPACTION)
    ]
    known = frozenset(delegates)
    named: set[str] = set()
    runs = [_run_of(stretch, session, reports, known - named, named) for stretch in stretches]
    delegated = [
        _delegated_run(name, stretch, session, reports, known)
        for name, stretch in aside.items()
        if stretch.starter is not None
    ]
    return _placed(session, runs, delegated, reports.of(compaction_ids))


def _stretches(records: Iterable[Record], reports: _Reports) -> list[_Stretch]:
    stretches = [_Stretch(starter=None)]
    seen: set[str] = set()
    for record in records:
        is_repeat = record.mark is not None and record.mark.uuid in seen
        if record.mark is not None:
            seen.add(record.mark.uuid)
        starts = record.kind in _STARTERS and not record.is_sidechain and not is_repeat
        if starts and record.mark is not None:
            is_prompt = record.kind is RecordKind.PROMPT
            stretches.append(_Stretch(starter=record.mark, is_prompt=is_prompt))
        stretch = stretches[-1]
        stretch.request_ids.extend(reports.add(record.answer, UsageKind.MODEL))
        if not is_repeat:
            stretch.add(record)
        if record.kind is RecordKind.OUTPUT and stretch.is_undecided:
            stretch.is_local = True
            # What follows belongs to the work before the command.
            stretches.pop()
            _join(stretches[-1], stretch)
    return stretches


def _join(previous: _Stretch, last: _Stretch) -> None:
    """Lines that started nothing move the end of the work before them, never its outcome."""
    if last.last_at is not None and (previous.last_at is None or last.last_at > previous.last_at):
        previous.last_at = last.last_at
    previous.delegates.extend(last.delegates)


def _fold(stretches: list[_Stretch]) -> list[_Stretch]:
    """Keep the stretches that are runs; the others join the one before them."""
    runs: list[_Stretch] = []
    for stretch in stretches:
        is_last = stretch is stretches[-1]
        if stretch.is_run:
            runs.append(stretch)
        elif runs and not (is_last and stretch.is_undecided):
            _join(runs[-1], stretch)
    return runs


def _whole(records: Sequence[Record], reports: _Reports) -> _Stretch:
    """A delegate's file as one stretch, begun by its first line that has a time."""
    starter = next((record.mark for record in records if record.mark), None)
    stretch = _Stretch(starter=starter)
    for record in records:
        stretch.request_ids.extend(reports.add(record.answer, UsageKind.MODEL))
        stretch.add(record)
    return stretch


def _missing(names: Sequence[str], known: frozenset[str], named: set[str]) -> tuple[str, ...]:
    """Delegates without a file, each charged to the first run that names it."""
    new = sorted({name for name in names if name not in known} - named)
    named.update(new)
    return tuple(new)


def _run_of(
    stretch: _Stretch,
    session: str,
    reports: _Reports,
    known: frozenset[str],
    named: set[str],
) -> Run:
    requests = reports.of(stretch.request_ids)
    starter = stretch.starter
    if starter is None:
        line, line_uuid, started_at = START_LINE, requests[0].line_uuid, requests[0].occurred_at
    else:
        line, line_uuid, started_at = starter.uuid, starter.uuid, starter.at
        session = starter.session or session
    status, error = _outcome(stretch)
    return Run(
        id=f"{session}:{line}",
        line_uuid=line_uuid,
        session=session,
        started_at=started_at,
        ended_at=max(started_at, stretch.last_at or started_at),
        status=status,
        error=error,
        requests=requests,
        missing_delegates=_missing(stretch.delegates, known, named),
    )


def _delegated_run(
    name: str, stretch: _Stretch, session: str, reports: _Reports, known: frozenset[str]
) -> Run:
    run = _run_of(stretch, session, reports, known, set())
    return replace(run, id=f"{run.session}:agent-{name}", delegation_id=name)


def _outcome(stretch: _Stretch) -> tuple[RunStatus, str | None]:
    """How the work ended, by its last line that says something about it.

    A marker: a person stopped it. An error of the model's interface: it failed. The model's text
    without a further tool call, or the assistant's own note: completed. Anything else is an open
    end; somebody closed the session, or the file is still being written, and a longer version
    says more.
    """
    kind = stretch.closing.kind if stretch.closing else None
    if kind is RecordKind.MARKER:
        return RunStatus.CANCELLED, None
    if kind is RecordKind.FAILURE:
        return RunStatus.FAILED, API_ERROR
    answer = stretch.closing.answer if stretch.closing else None
    if stretch.is_over or (answer and answer.has_text and not answer.has_tool_call):
        return RunStatus.COMPLETED, None
    return RunStatus.CANCELLED, OPEN_END


def _placed(
    session: str,
    runs: Sequence[Run],
    delegated: Sequence[Run],
    compactions: Sequence[Request],
) -> Session:
    """Give every delegated run its parent and every compaction its run, by their times."""
    timeline = sorted(runs, key=lambda run: run.started_at)
    causes = [(run.started_at, run.line_uuid) for run in delegated]
    causes += [(request.occurred_at, request.line_uuid) for request in compactions]
    if causes and (not timeline or min(causes)[0] < timeline[0].started_at):
        timeline = _with_start(session, timeline, *min(causes))
    starts = [run.started_at for run in timeline]

    def owner(at: datetime) -> int:
        return max(0, bisect_right(starts, at) - 1)

    added: dict[int, list[Request]] = {}
    for request in compactions:
        added.setdefault(owner(request.occurred_at), []).append(request)
    placed = [
        replace(run, requests=(*run.requests, *added.get(index, ())))
        for index, run in enumerate(timeline)
    ]
    children = [replace(run, parent_id=placed[owner(run.started_at)].id) for run in delegated]
    return Session(session, tuple(placed), tuple(children))


def _with_start(session: str, timeline: Sequence[Run], at: datetime, line_uuid: str) -> list[Run]:
    """Put `<session>:start` first, for what began before every line that starts work."""
    start_id = f"{session}:{START_LINE}"
    if timeline and timeline[0].id == start_id:
        return list(timeline)
    start = Run(
        id=start_id,
        line_uuid=line_uuid,
        session=session,
        started_at=at,
        ended_at=at,
        status=RunStatus.COMPLETED,
    )
    return [start, *timeline]
