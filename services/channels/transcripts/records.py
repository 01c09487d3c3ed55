"""A JSON object of a transcript becomes a record: the little of it that runs and money need.

The one thing not to break: usage is taken from `message.usage` of assistant lines alone. A
`toolUseResult` repeats a delegate's last usage with other figures and is never counted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from contracts.types import BIGINT_MAX, BIGINT_MIN, parse_instant
from services.channels.transcripts.texts import TextKind, read_texts

_ID: Final = re.compile(r"[A-Za-z0-9._:@-]+\Z")
_ID_CHARS_MAX: Final = 128
"""`contracts.types.ID_CHARS_MAX`; a run's id is a session's and a line's with a colon between."""
SESSION_CHARS_MAX: Final = 64
LINE_CHARS_MAX: Final = 63
DELEGATE_CHARS_MAX: Final = LINE_CHARS_MAX - len("agent-")
_MODEL_CHARS_MAX: Final = 255
SYNTHETIC_MODEL: Final = "<synthetic>"
"""What the assistant writes itself, without asking a model."""
_TURN_ENDS: Final = frozenset({"stop_hook_summary", "turn_duration"})


class RecordKind(StrEnum):
    """What a line is to a run."""

    PROMPT = "prompt"
    COMMAND = "command"
    NOTIFICATION = "notification"
    MARKER = "marker"
    OUTPUT = "output"
    RESULT = "result"
    """Results of tools: the model has not said its last word."""
    ANSWER = "answer"
    FAILURE = "failure"
    """The model's interface answered with an error."""
    TURN_END = "turn_end"
    """The assistant noted that its turn is over."""
    OTHER = "other"


@dataclass(frozen=True, slots=True, order=True)
class Usage:
    """One line's account of one model response. Counts of tokens; they may be any integer.

    The order of the fields is the order in which reports of one response are compared.
    """

    output: int
    input: int
    """Uncached + cache reads + cache writes."""
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    web_searches: int = 0
    service_tier: str | None = None

    @property
    def rank(self) -> tuple[int, int, str]:
        """The total order of reports: output, then input, then digest (design.md 4)."""
        return (self.output, self.input, hashlib.sha256(repr(self).encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class Mark:
    """What makes a line a place to begin at: it can be named and dated."""

    uuid: str
    at: datetime
    session: str | None = None
    """The session that the line itself names."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of a model response; a response is written as several."""

    request_id: str
    model: str
    usage: Usage
    mark: Mark
    has_tool_call: bool
    """An answer that ends in tool calls is not the last word."""
    has_text: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a transcript."""

    kind: RecordKind
    at: datetime | None = None
    mark: Mark | None = None
    answer: Answer | None = None
    """Set exactly where `kind` is `ANSWER`."""
    is_sidechain: bool = False
    """Older files hold a delegate's lines among its parent's."""
    delegates: frozenset[str] = field(default_factory=frozenset)
    """Delegates that the line names."""


class Unusable(ValueError):
    """The line cannot be used, and says why. Never leaves this package's reading."""


def record_of(value: Mapping[str, Any]) -> Record:
    """Read one JSON object. Lines of unknown types become `OTHER`.

    Raises:
        Unusable: a `user` or `assistant` line without what its type promises.
    """
    match value.get("type"):
        case "assistant":
            return _answer(value)
        case "user":
            return _user(value)
        case "progress":
            return _plain(value, delegates=_progress_delegates(value))
        case "system" if value.get("subtype") in _TURN_ENDS:
            return _plain(value, kind=RecordKind.TURN_END)
        case _:
            return _plain(value)


def _plain(
    value: Mapping[str, Any],
    *,
    kind: RecordKind = RecordKind.OTHER,
    delegates: frozenset[str] = frozenset(),
) -> Record:
    uuid = id_or_none(value.get("uuid"), LINE_CHARS_MAX)
    at = _instant_or_none(value.get("timestamp"))
    return Record(
        kind=kind,
        at=at,
        mark=Mark(uuid, at, session_of(value)) if uuid and at else None,
        delegates=delegates,
    )


def _user(value: Mapping[str, Any]) -> Record:
    message = value.get("message")
    if not isinstance(message, dict):
        raise Unusable("a user line without a message")
    mark = _require_mark(value)
    return Record(
        kind=_user_kind(value, message.get("content")),
        at=mark.at,
        mark=mark,
        is_sidechain=value.get("isSidechain") is True,
        delegates=_delegate_of(value.get("toolUseResult")),
    )


_KIND_OF_TEXT: Final = {
    TextKind.PROMPT: RecordKind.PROMPT,
    TextKind.COMMAND: RecordKind.COMMAND,
    TextKind.NOTIFICATION: RecordKind.NOTIFICATION,
    TextKind.MARKER: RecordKind.MARKER,
    TextKind.OUTPUT: RecordKind.OUTPUT,
    TextKind.NOISE: RecordKind.OTHER,
}


def _user_kind(value: Mapping[str, Any], content: object) -> RecordKind:
    if value.get("isMeta") or value.get("isCompactSummary"):
        return RecordKind.OTHER
    if value.get("isVisibleInTranscriptOnly"):
        return RecordKind.OTHER
    if isinstance(content, str):
        return _KIND_OF_TEXT[read_texts([content])]
    if isinstance(content, list):
        return _kind_of_blocks(content)
    raise Unusable("a user line whose content is neither text nor a list")


def _kind_of_blocks(blocks: list[Any]) -> RecordKind:
    dicts = [block for block in blocks if isinstance(block, dict)]
    texts = [str(block.get("text", "")) for block in dicts if block.get("type") == "text"]
    text_kind = read_texts(texts)
    types = {block.get("type") for block in dicts}
    if "tool_result" in types:
        return RecordKind.MARKER if text_kind is TextKind.MARKER else RecordKind.RESULT
    if text_kind is TextKind.NOISE and types & {"image", "document"}:
        return RecordKind.PROMPT
    return _KIND_OF_TEXT[text_kind]


def _answer(value: Mapping[str, Any]) -> Record:
    message = value.get("message")
    if not isinstance(message, dict):
        raise Unusable("an assistant line without a message")
    mark = _require_mark(value)
    plain = Record(kind=RecordKind.OTHER, at=mark.at, mark=mark)
    if value.get("isApiErrorMessage"):
        return replace(plain, kind=RecordKind.FAILURE)
    if message.get("model") == SYNTHETIC_MODEL:
        return plain
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    types = {block.get("type") for block in blocks if isinstance(block, dict)}
    answer = Answer(
        request_id=_require_id(message, "id"),
        model=_require_model(message.get("model")),
        usage=_usage(message.get("usage")),
        mark=mark,
        has_tool_call="tool_use" in types,
        has_text="text" in types or isinstance(content, str),
    )
    return replace(plain, kind=RecordKind.ANSWER, answer=answer)


def _usage(value: object) -> Usage:
    if not isinstance(value, dict):
        raise Unusable("an answer without usage: its spend is unknown")
    written = _count(value, "cache_creation_input_tokens")
    split = value.get("cache_creation")
    parts = split if isinstance(split, dict) else {}
    write_5m = _count(parts, "ephemeral_5m_input_tokens")
    write_1h = _count(parts, "ephemeral_1h_input_tokens")
    if write_5m + write_1h < written or written < 0:
        # What the split leaves out was written for five minutes: the interface's default. A
        # negative total is handed on, so that the ledger sees it and says so.
        write_5m = written - write_1h
    read = _count(value, "cache_read_input_tokens")
    tools = value.get("server_tool_use")
    return Usage(
        output=_count(value, "output_tokens"),
        input=_count(value, "input_tokens") + write_5m + write_1h + read,
        cache_read=read,
        cache_write_5m=write_5m,
        cache_write_1h=write_1h,
        web_searches=_count(tools, "web_search_requests") if isinstance(tools, dict) else 0,
        service_tier=_tier(value.get("service_tier")),
    )


def _count(value: Mapping[str, Any], key: str) -> int:
    count = value.get(key)
    if count is None:
        return 0
    if isinstance(count, bool) or not isinstance(count, int):
        raise Unusable(f"usage.{key} is no whole number")
    # A quarter leaves room for the sum of the four parts of `input`.
    if not BIGINT_MIN // 4 <= count <= BIGINT_MAX // 4:
        raise Unusable(f"usage.{key} is beyond every real count")
    return count


def _tier(value: object) -> str | None:
    """`standard` is what is meant where nothing is said."""
    if not isinstance(value, str) or value == "standard":
        return None
    return id_or_none(value)


def _progress_delegates(value: Mapping[str, Any]) -> frozenset[str]:
    data = value.get("data")
    if isinstance(data, dict) and data.get("type") == "agent_progress":
        return _delegate_of(data)
    return frozenset()


def _delegate_of(value: object) -> frozenset[str]:
    if not isinstance(value, dict):
        return frozenset()
    name = id_or_none(value.get("agentId"), DELEGATE_CHARS_MAX)
    return frozenset({name}) if name else frozenset()


def session_of(value: Mapping[str, Any]) -> str | None:
    """The session that a line names; a name of dots would be a folder's."""
    found = id_or_none(value.get("sessionId"), SESSION_CHARS_MAX)
    return found if found and found.strip(".") else None


def id_or_none(value: object, chars_max: int = _ID_CHARS_MAX) -> str | None:
    """The value where it can be an id of the contracts, else nothing."""
    if isinstance(value, str) and len(value) <= chars_max and _ID.match(value):
        return value
    return None


def _require_id(value: Mapping[str, Any], key: str, chars_max: int = _ID_CHARS_MAX) -> str:
    found = id_or_none(value.get(key), chars_max)
    if found is None:
        raise Unusable(f"{key} is missing or no id")
    return found


def _require_model(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= _MODEL_CHARS_MAX:
        raise Unusable("message.model is missing or no model name")
    if not value.isprintable():
        raise Unusable("message.model holds characters that no model name has")
    return value


def _require_mark(value: Mapping[str, Any]) -> Mark:
    at = _instant_or_none(value.get("timestamp"))
    if at is None:
        raise Unusable("timestamp is missing, or has no offset")
    return Mark(_require_id(value, "uuid", LINE_CHARS_MAX), at, session_of(value))


def _instant_or_none(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        return parse_instant(value)
    except ValueError:
        return None
