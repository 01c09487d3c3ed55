"""The one registry: every event, stream, durable and question, with its limits.

Names here are contracts: a renamed durable re-reads its whole stream, a renamed subject strands its
publishers. The bootstrap step compares the servers with this page (design.md 2, *Streams*).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from contracts import bootstrap, caps, channel, directory, entries, holds, ledger, rooms
from contracts.envelope import Answer, Ask, Event, type_name
from contracts.errors import Invalid
from contracts.types import Wire

ROOMS: Final = ("ledger", "gateway")
"""Rooms that exist; `make room` adds one."""
DEPLOYMENT: Final = "_"
"""The organization token of what belongs to the deployment."""
_DAY_S: Final = 86_400
_MIB: Final = 1024 * 1024

Producer = Literal["channel", "directory", "ledger", "gateway", "room"]
"""`room`: any room may say it, on its own subject and stream."""


@dataclass(frozen=True, slots=True)
class EventType:
    """One event in one version."""

    name: str
    version: int
    producer: Producer
    model: type[Wire]
    stream: str
    """Empty for `room`: the stream is the one of the room that says it."""
    hearers: tuple[str, ...]
    """Rooms with an `on_<name>`; `channels` hear by core subscription and feed."""

    @property
    def full_name(self) -> str:
        """The CloudEvents type, `rienda.<name>.v<version>`."""
        return type_name(self.name, self.version)

    @property
    def event_model(self) -> type[Event[Any]]:
        """`Event[model]`, built once per model."""
        return event_model(self.model)


@cache
def event_model(model: type[Wire]) -> type[Event[Any]]:
    """The envelope's class for one kind of data."""
    return Event[model]  # type: ignore[valid-type]


@cache
def ask_model(model: type[Wire]) -> type[Ask[Any]]:
    """The question frame's class for one kind of data."""
    return Ask[model]  # type: ignore[valid-type]


@cache
def answer_model(model: type[Wire]) -> type[Answer[Any]]:
    """The answer frame's class for one kind of data."""
    return Answer[model]  # type: ignore[valid-type]


EVENTS: Final = (
    EventType("run_started", 1, "channel", channel.RunStarted, "CHANNEL", ("ledger",)),
    EventType("run_heartbeat", 1, "channel", channel.RunHeartbeat, "PULSE", ("ledger",)),
    EventType("run_parked", 1, "channel", channel.RunParked, "CHANNEL", ("ledger",)),
    EventType("run_resumed", 1, "channel", channel.RunResumed, "CHANNEL", ("ledger",)),
    EventType("run_finished", 1, "channel", channel.RunFinished, "CHANNEL", ("ledger",)),
    EventType("run_deleted", 1, "channel", channel.RunDeleted, "CHANNEL", ("ledger",)),
    EventType("usage_reported", 1, "channel", channel.UsageReported, "CHANNEL", ("ledger",)),
    EventType(
        "ingestion_reported", 1, "channel", channel.IngestionReported, "CHANNEL", ("ledger",)
    ),
    EventType("goal_started", 1, "channel", channel.GoalStarted, "CHANNEL", ("ledger",)),
    EventType("routine_changed", 1, "channel", channel.RoutineChanged, "CHANNEL", ("ledger",)),
    EventType(
        "organization_changed",
        1,
        "directory",
        directory.OrganizationChanged,
        "DIRECTORY",
        ("ledger",),
    ),
    EventType(
        "agent_published", 1, "directory", directory.AgentPublished, "DIRECTORY", ("ledger",)
    ),
    EventType("agent_archived", 1, "directory", directory.AgentArchived, "DIRECTORY", ("ledger",)),
    EventType(
        "channel_changed", 1, "directory", directory.ChannelChanged, "DIRECTORY", ("ledger",)
    ),
    EventType("member_changed", 1, "directory", directory.MemberChanged, "DIRECTORY", ("ledger",)),
    EventType("member_removed", 1, "directory", directory.MemberRemoved, "DIRECTORY", ("ledger",)),
    EventType(
        "department_changed", 1, "directory", directory.DepartmentChanged, "DIRECTORY", ("ledger",)
    ),
    EventType(
        "department_removed", 1, "directory", directory.DepartmentRemoved, "DIRECTORY", ("ledger",)
    ),
    EventType("run_changed", 1, "ledger", ledger.RunChanged, "LEDGER", ("gateway",)),
    EventType("cap_warned", 1, "ledger", caps.CapWarned, "LEDGER", ()),
    EventType("cap_stopped", 1, "ledger", caps.CapStopped, "LEDGER", ("channels",)),
    EventType("hold_expired", 1, "ledger", holds.HoldExpired, "LEDGER", ()),
    EventType("overrun_noted", 1, "ledger", holds.OverrunNoted, "LEDGER", ()),
    EventType("audit_recorded", 1, "room", rooms.AuditRecorded, "", ()),
    EventType("security_noticed", 1, "room", rooms.SecurityNoticed, "", ()),
)


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream as the server must have it. A full one refuses (`discard: new`)."""

    name: str
    subjects: tuple[str, ...]
    storage: Literal["file", "memory"]
    age_s_max: int
    """0: without age."""
    bytes_max: int
    messages_per_subject_max: int = -1
    discard: Literal["new", "old"] = "new"
    duplicate_window_s: int = 600
    is_heard: bool = False
    """Channels hear some of its events, as copies on `rienda.heard.<org>.…` (at most once). Set
    exactly where an event of the stream names `channels` among its hearers."""


CHANNEL_AGE_S: Final = 7 * _DAY_S
"""A setting of the deployment; also the bound that an erasure states."""
ROOM_AGE_S: Final = 30 * _DAY_S
PULSE_AGE_S: Final = 600

STREAMS: Final = (
    StreamSpec("CHANNEL", ("rienda.event.*.channel.>",), "file", CHANNEL_AGE_S, 2_048 * _MIB),
    StreamSpec(
        "DIRECTORY",
        ("rienda.event.*.directory.>",),
        "file",
        0,
        2_048 * _MIB,
        messages_per_subject_max=1,
    ),
    StreamSpec(
        # A pulse that is overtaken is worth nothing: the newest per subject stays, the oldest goes.
        "PULSE",
        ("rienda.pulse.*.channel.>",),
        "memory",
        PULSE_AGE_S,
        32 * _MIB,
        messages_per_subject_max=1,
        discard="old",
        duplicate_window_s=60,
    ),
    StreamSpec(
        "LEDGER", ("rienda.event.*.ledger.>",), "file", ROOM_AGE_S, 512 * _MIB, is_heard=True
    ),
    StreamSpec("GATEWAY", ("rienda.event.*.gateway.>",), "file", ROOM_AGE_S, 512 * _MIB),
    StreamSpec("DEAD", ("rienda.dead.>",), "file", ROOM_AGE_S, 64 * _MIB, discard="old"),
)


@dataclass(frozen=True, slots=True)
class DurableSpec:
    """One durable pull consumer; made by the bootstrap step, never by a room."""

    room: str
    stream: str
    durable: str
    batch_messages_max: int
    ack_wait_s: int = 30
    """Longer than the slowest batch; a batch that takes longer is delivered twice."""
    deliveries_max: int = -1
    """Without limit: what a server gives up is silent. The room counts deliveries (ADR 0013)."""
    ack_pending_max: int = 5_000
    deliver: Literal["all", "new", "last_per_subject"] = "all"
    batch_every_s: float = 0.0
    """What comes so soon after a batch was begun waits until then, with all that comes meanwhile:
    a steady stream makes batches worth their statements (ADR 0043). What comes after a pause waits
    for nothing."""


DURABLES: Final = (
    # A batch is written per run and line that it touches: the larger it is, the less each costs.
    DurableSpec("ledger", "CHANNEL", "ledger", batch_messages_max=2_000, batch_every_s=0.1),
    DurableSpec("ledger", "DIRECTORY", "ledger", batch_messages_max=200),
    DurableSpec("ledger", "PULSE", "ledger", batch_messages_max=500, batch_every_s=0.1),
    DurableSpec("gateway", "LEDGER", "gateway", batch_messages_max=500),
)


@dataclass(frozen=True, slots=True)
class QuestionType:
    """One question; `channels` may ask it where `asked_by_channels`."""

    room: str
    name: str
    ask: type[Wire]
    answer: type[Wire]
    asked_by_channels: bool = False
    asked_by: tuple[str, ...] = ("gateway",)
    """Rooms that may ask it."""


QUESTIONS: Final = (
    QuestionType(
        "ledger", "authorize", ledger.Authorize, ledger.Authorization, asked_by_channels=True
    ),
    QuestionType("ledger", "void_hold", holds.VoidHold, holds.HoldVoided, asked_by_channels=True),
    QuestionType("ledger", "list_holds", holds.ListHolds, holds.HoldPage),
    QuestionType("ledger", "list_overruns", holds.ListOverruns, holds.OverrunPage),
    QuestionType("ledger", "list_runs", ledger.ListRuns, ledger.RunPage),
    QuestionType("ledger", "get_run", ledger.GetRun, ledger.RunRow),
    QuestionType("ledger", "list_entries", entries.ListEntries, entries.EntryPage),
    QuestionType(
        "ledger",
        "list_ingestion_entries",
        entries.ListIngestionEntries,
        entries.IngestionEntryPage,
    ),
    QuestionType("ledger", "correct_entry", entries.CorrectEntry, entries.EntryCorrected),
    QuestionType("ledger", "get_spend", ledger.GetSpend, ledger.Spend),
    QuestionType("ledger", "list_caps", caps.ListCaps, caps.CapPage),
    QuestionType(
        "ledger", "list_departments_spend", caps.ListDepartmentsSpend, caps.DepartmentsSpend
    ),
    QuestionType("ledger", "get_applied", directory.GetApplied, directory.Applied),
    QuestionType(
        "gateway",
        "get_directory",
        directory.GetDirectory,
        directory.DirectoryPage,
        asked_by=("ledger",),
    ),
    QuestionType("bootstrap", "issue", bootstrap.IssueCredential, bootstrap.Credential),
    QuestionType("bootstrap", "revoke", bootstrap.RevokeCredential, bootstrap.Revoked),
    QuestionType(
        "bootstrap",
        "list_streams",
        bootstrap.ListStreams,
        bootstrap.StreamsReport,
        asked_by=ROOMS,
    ),
)

_BY_NAME: Final = {event.name: event for event in EVENTS}
_BY_MODEL: Final = {event.model: event for event in EVENTS}
_QUESTIONS: Final = {(question.room, question.name): question for question in QUESTIONS}


def stream_spec(name: str) -> StreamSpec:
    """A stream of the catalogue."""
    return next(stream for stream in STREAMS if stream.name == name)


def find_event(name: str) -> EventType:
    """Look an event up by name; older versions of it are upcast to this one.

    Raises:
        Invalid: `unknown_event`.
    """
    found = _BY_NAME.get(name)
    if found is None:
        raise Invalid(f"there is no event {name[:100]!r}", reason="unknown_event")
    return found


def event_of(model: type[Wire]) -> EventType:
    """The event whose data is of this class."""
    return _BY_MODEL[model]


def find_question(room: str, name: str) -> QuestionType:
    """Look a question up.

    Raises:
        Invalid: `unknown_question`.
    """
    found = _QUESTIONS.get((room, name))
    if found is None:
        raise Invalid(f"{room} answers no question {name[:100]!r}", reason="unknown_question")
    return found
