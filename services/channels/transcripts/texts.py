"""What a `user` line's text is: a person's words, a command, a notification, or none of these.

The one thing not to break: only what somebody typed, or what made the assistant work, may begin a
run. Everything else that wears a person's role (output of local commands, reminders, markers,
summaries) must not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class TextKind(StrEnum):
    """The readings of one `user` text."""

    PROMPT = "prompt"
    COMMAND = "command"
    """A slash command: a run when requests follow it."""
    NOTIFICATION = "notification"
    """A finished background task: a run when requests follow it."""
    MARKER = "marker"
    """"Interrupted by user": no message, but the end of the work before it."""
    OUTPUT = "output"
    """What a local command printed: the command before it asked no model."""
    NOISE = "noise"


MARKERS: Final = (
    "[Request interrupted by user]",
    "[Request interrupted by user for tool use]",
)
COMMANDS_WITHOUT_WORK: Final = frozenset({"compact"})
"""`/compact` asks a model, but in a file of its own: the compaction is an entry, not a run."""

_COMMAND_TAGS: Final = ("command-name", "command-message", "command-args")
_NOTIFICATION_TAG: Final = "task-notification"
_OUTPUT_TAGS: Final = ("local-command-stdout", "local-command-stderr")
_NOISE_TAGS: Final = (
    "local-command-caveat",
    "system-reminder",
    "bash-input",
    "bash-stdout",
    "bash-stderr",
    "user-memory-input",
)
_TAG: Final = re.compile(r"<([a-z][a-z-]*)>")
_COMMAND_NAME: Final = re.compile(r"<command-name>\s*/?([A-Za-z0-9:_.-]+)\s*</command-name>")
_MASK: Final = re.compile(r"text ([0-9a-f]{10}) of \d+ characters\Z")


def mask_digest(text: str) -> str:
    """The digest by which a masked transcript shows a text: 10 hex digits of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


_MARKER_DIGESTS: Final = frozenset(mask_digest(marker) for marker in MARKERS)


def read_text(text: str) -> TextKind:
    """Tell what one text of a `user` line is; markers are known in words and as masks."""
    stripped = text.strip()
    if stripped in MARKERS:
        return TextKind.MARKER
    if (mask := _MASK.match(stripped)) and mask[1] in _MARKER_DIGESTS:
        return TextKind.MARKER
    tag = _TAG.match(stripped)
    name = tag[1] if tag else None
    if name in _COMMAND_TAGS:
        command = _COMMAND_NAME.search(stripped)
        if command and command[1] in COMMANDS_WITHOUT_WORK:
            return TextKind.NOISE
        return TextKind.COMMAND
    if name == _NOTIFICATION_TAG:
        return TextKind.NOTIFICATION
    if name in _OUTPUT_TAGS:
        return TextKind.OUTPUT
    if name in _NOISE_TAGS or not stripped:
        return TextKind.NOISE
    return TextKind.PROMPT


_STRONGEST_FIRST: Final = (
    TextKind.MARKER,
    TextKind.PROMPT,
    TextKind.COMMAND,
    TextKind.NOTIFICATION,
    TextKind.OUTPUT,
)


def read_texts(texts: Iterable[str]) -> TextKind:
    """One reading for all texts of a line: a typed word beside reminders is still typed."""
    kinds = {read_text(text) for text in texts}
    return next((kind for kind in _STRONGEST_FIRST if kind in kinds), TextKind.NOISE)
