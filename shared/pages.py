"""Cursors of keyset pages: opaque to callers, checked on the way back."""

from __future__ import annotations

import base64
import binascii
import json

from contracts.errors import Rejected

CURSOR_CHARS_MAX = 200


def write_cursor(*values: int) -> str:
    """Pack a position."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def read_cursor(cursor: str, count: int) -> tuple[int, ...]:
    """Unpack a position of `count` integers.

    Raises:
        Rejected: `bad_cursor`; it was not made here.
    """
    try:
        padded = cursor[:CURSOR_CHARS_MAX] + "=" * (-len(cursor) % 4)
        values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise Rejected("the cursor is not one of ours", reason="bad_cursor") from error
    if (
        not isinstance(values, list)
        or len(values) != count
        or not all(type(value) is int and 0 <= value < 2**63 for value in values)
    ):
        raise Rejected("the cursor is not one of ours", reason="bad_cursor")
    return tuple(values)
