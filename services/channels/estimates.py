"""The most input that a request of words can be, where nobody counted its tokens.

Every token of a byte-level vocabulary stands for one byte or more, so the bytes of what is sent are
never fewer than its tokens; providers add words of their own, for which there is an allowance. It
is a bound and no guess: usually three to five times the true count. What is not words (images,
audio, documents) has no such bound, and is refused instead of guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from services.channels.errors import NotWords

MESSAGE_TOKENS: Final = 16
"""Allowed for what a provider puts around a message, a tool, or the whole."""
TOOLS_TOKENS: Final = 1_024
"""Allowed for what a provider says to a model that has tools, beside their schemas."""
WORDS: Final = frozenset(
    {
        "text",
        "input_text",
        "output_text",
        "refusal",
        "thinking",
        "redacted_thinking",
        "reasoning",
        "summary_text",
        "tool_use",
        "tool_result",
        "function_call",
        "function_call_output",
        "message",
    }
)
"""Types of parts of a message, as providers name them, that are words."""
Message = Mapping[str, Any]


def input_tokens_at_most(
    messages: Sequence[Message],
    *,
    system: str | Sequence[Message] = "",
    tools: Iterable[Mapping[str, Any]] = (),
) -> int:
    """Bound the input tokens of a request, to be stated as its `input_tokens_max`.

    `messages`, `system` and `tools` as they are sent: JSON of any provider whose parts of a message
    have a `type`. The schemas of tools are input as well.

    Raises:
        NotWords: a part is no words; count it and state `input_tokens_max` or `cost_nanousd_max`.
    """
    offered = list(tools)
    _require_words(list(messages))
    _require_words(system)
    size = _bytes_of(list(messages)) + _bytes_of(system) + sum(map(_bytes_of, offered))
    parts = len(messages) + len(offered) + 1
    return size + MESSAGE_TOKENS * parts + (TOOLS_TOKENS if offered else 0)


def _bytes_of(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _require_words(value: object) -> None:
    """Look at messages and the parts in their `content`; what a tool was called with is words."""
    if isinstance(value, str) or value is None:
        return
    if isinstance(value, Mapping):
        kind = value.get("type")
        if kind is not None and kind not in WORDS:
            raise NotWords(str(kind))
        _require_words(value.get("content"))
        return
    if isinstance(value, Iterable):
        for part in value:
            _require_words(part)
        return
    raise NotWords(type(value).__name__)
