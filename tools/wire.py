"""What is generated from the catalogue: JSON Schemas of events and questions, and `docs/events.md`.

The one thing not to break: the text depends on the contracts alone, so that a committed file that
differs from it means a contract that changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from contracts.catalog import (
    DURABLES,
    EVENTS,
    QUESTIONS,
    STREAMS,
    EventType,
    QuestionType,
    StreamSpec,
    answer_model,
    ask_model,
)

ROOT: Final = Path(__file__).resolve().parents[1]
SCHEMAS: Final = ROOT / "contracts" / "schemas"
SAMPLES: Final = ROOT / "contracts" / "samples"
EVENTS_PAGE: Final = ROOT / "docs" / "events.md"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_MIB: Final = 1024 * 1024
_DAY_S: Final = 86_400

_HEAD: Final = """\
# Events, streams and questions

Generated from `contracts/catalog.py` by `make generate`; `make check` compares. What a field means
stands in `contracts/` and in the schemas beside it (`contracts/schemas`).
"""


def event_schema(event: EventType) -> dict[str, Any]:
    """The JSON Schema of an event as it is on the wire: envelope and data."""
    schema = event.event_model.model_json_schema()
    schema["properties"]["type"] = {"const": event.full_name, "type": "string"}
    return {"$schema": DIALECT, **schema, "title": event.full_name}


def question_schema(question: QuestionType) -> dict[str, Any]:
    """The JSON Schemas of a question's two frames, under `ask` and `answer`."""
    return {
        "ask": {"$schema": DIALECT, **ask_model(question.ask).model_json_schema()},
        "answer": {"$schema": DIALECT, **answer_model(question.answer).model_json_schema()},
    }


def event_key(event: EventType) -> str:
    """`run_started.v1`: the event's name among schemas and samples."""
    return f"{event.name}.v{event.version}"


def question_key(question: QuestionType) -> str:
    """`ask/ledger.authorize`: the question's name among schemas."""
    return f"ask/{question.room}.{question.name}"


def schemas() -> dict[str, dict[str, Any]]:
    """Every schema by its key; the file is `contracts/schemas/<key>.json`."""
    return {event_key(event): event_schema(event) for event in EVENTS} | {
        question_key(question): question_schema(question) for question in QUESTIONS
    }


def schema_text(schema: dict[str, Any]) -> str:
    """A schema as it is committed."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def generated() -> dict[Path, str]:
    """Every generated file with its text."""
    files = {SCHEMAS / f"{key}.json": schema_text(schema) for key, schema in schemas().items()}
    return {**files, EVENTS_PAGE: events_page()}


def stale_files(files: Iterable[Path]) -> list[Path]:
    """Schemas on disk that no event and no question has any more."""
    kept = set(files) | {SCHEMAS / "FROZEN.json"}
    return sorted(path for path in SCHEMAS.rglob("*.json") if path not in kept)


def events_page() -> str:
    """`docs/events.md`: events, streams, durables and questions as tables."""
    parts = [
        _HEAD,
        "## Events\n",
        _table(
            ("event", "version", "said by", "stream", "heard by", "subject"),
            [_event_row(event) for event in EVENTS],
        ),
        "`<token>` is a hash of ids, which may hold dots.\n",
        "## Streams\n",
        "A full stream refuses where it discards `new`; `old` makes room for the newest.\n",
        _table(
            ("stream", "subjects", "storage", "age", "size", "per subject", "discards", "window"),
            [_stream_row(stream) for stream in STREAMS],
        ),
        "## Durables\n",
        _table(
            ("room", "stream", "durable", "batch", "ack wait", "deliveries", "unacknowledged"),
            [
                (
                    spec.room,
                    f"`{spec.stream}`",
                    f"`{spec.durable}`",
                    str(spec.batch_messages_max),
                    f"{spec.ack_wait_s} s",
                    str(spec.deliveries_max),
                    str(spec.ack_pending_max),
                )
                for spec in DURABLES
            ],
        ),
        "## Questions\n",
        "Asked on `rienda.ask.<org>.<kind>.<asker>.<room>.<question>`; the kind is `channel` or\n"
        "`room`, and publish rights prove the asker.\n",
        _table(
            ("answered by", "question", "asked by"),
            [_question_row(question) for question in QUESTIONS],
        ),
    ]
    return "\n".join(parts)


def subject_pattern(event: EventType) -> str:
    """The subject that an event is said on, with placeholders."""
    tail = f"{event.name}.v{event.version}"
    if event.producer == "channel":
        kind = "pulse" if event.stream == "PULSE" else "event"
        token = ".<token>" if event.stream == "PULSE" else ""
        return f"rienda.{kind}.<org>.channel.<channel>.{tail}{token}"
    if event.producer == "directory":
        return f"rienda.event.<org>.directory.<token>.{tail}"
    speaker = "<room>" if event.producer == "room" else event.producer
    return f"rienda.event.<org>.{speaker}.{tail}"


def _event_row(event: EventType) -> Sequence[str]:
    speaker = {"room": "any room", "channel": "channels", "directory": "directory (gateway)"}
    return (
        f"`{event.name}`",
        str(event.version),
        speaker.get(event.producer, event.producer),
        f"`{event.stream}`" if event.stream else "of the room",
        ", ".join(event.hearers) or "none",
        f"`{subject_pattern(event)}`",
    )


def _stream_row(stream: StreamSpec) -> Sequence[str]:
    per_subject = stream.messages_per_subject_max
    return (
        f"`{stream.name}`",
        ", ".join(f"`{subject}`" for subject in stream.subjects),
        stream.storage,
        _age(stream.age_s_max),
        f"{stream.bytes_max // _MIB} MiB",
        "all" if per_subject < 0 else str(per_subject),
        stream.discard,
        f"{stream.duplicate_window_s} s",
    )


def _question_row(question: QuestionType) -> Sequence[str]:
    askers = list(question.asked_by)
    if question.asked_by_channels:
        askers.insert(0, "channels")
    return (question.room, f"`{question.name}`", ", ".join(askers))


def _age(seconds: int) -> str:
    if not seconds:
        return "any"
    return f"{seconds // _DAY_S} days" if seconds % _DAY_S == 0 else f"{seconds} s"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
