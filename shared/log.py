"""Structured logs: one JSON object a line on standard error, no secrets, no bodies."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

SECRET_WORDS = ("password", "secret", "token", "api_key", "authorization", "credential", "seed")
"""A field whose name holds one of these is never written."""


def _redact(_: Any, __: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name in fields:
        if any(word in name.lower() for word in SECRET_WORDS):
            fields[name] = "[redacted]"
    return fields


def configure(*, room: str, part: str, level: str = "INFO") -> None:
    """Set up logging of this process; every line names the room and its part."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(room=room, part=part)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")


def logger() -> Any:
    """The process's logger."""
    return structlog.get_logger()
