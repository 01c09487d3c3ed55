"""Reading JSON that somebody else wrote, so that what passes can be stored.

The one thing not to break: what is wrong inside one item of a batch leaves its neighbours alone.
So a repeated key or a number that no column holds becomes a `Broken` value in its place, and
`refuse_unstorable` raises it for the item that holds it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import NoReturn

from contracts.errors import Invalid
from contracts.types import BIGINT_MAX, BIGINT_MIN

INTEGER_DIGITS_MAX = 19
"""Of a BIGINT; a longer number is not even converted."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Stands where the text held something that is legal JSON for some and wrong for us."""

    reason: str
    message: str


def parse(body: bytes) -> object:
    """Read UTF-8 JSON; what is broken inside is marked, not raised.

    Raises:
        Invalid: `not_json`, `too_deep`; the text itself is never repeated.
    """
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_pairs,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except RecursionError as error:
        raise Invalid("the JSON is nested too deeply", reason="too_deep") from error
    except json.JSONDecodeError as error:
        raise Invalid(
            f"the body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            reason="not_json",
        ) from error
    except UnicodeDecodeError as error:
        raise Invalid("the body is no UTF-8 text", reason="not_json") from error


def refuse_unstorable(value: object) -> None:
    """Walk a parsed value and refuse what no column stores (design.md 2, *Envelope*).

    Raises:
        Invalid: `duplicate_key`, `not_a_number`, `integer_too_large`, `nul_character`,
            `lone_surrogate`.
    """
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Broken):
            raise Invalid(item.message, reason=item.reason)
        if isinstance(item, str):
            _refuse_text(item)
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _refuse_text(text: str) -> None:
    if text.isascii():
        if "\x00" in text:
            _refuse_nul()
        return
    if "\x00" in text:
        _refuse_nul()
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(
            "a text holds a lone surrogate: send valid Unicode", reason="lone_surrogate"
        ) from error


def _refuse_nul() -> NoReturn:
    raise Invalid(
        "a text holds a NUL character, which no database stores: remove it",
        reason="nul_character",
    )


def _pairs(pairs: list[tuple[str, object]]) -> object:
    value = dict(pairs)
    if len(value) != len(pairs):
        return Broken("duplicate_key", "an object names a key twice: each may appear once")
    return value


def _integer(digits: str) -> object:
    if len(digits.lstrip("-")) <= INTEGER_DIGITS_MAX:
        number = int(digits)
        if BIGINT_MIN <= number <= BIGINT_MAX:
            return number
    return Broken("integer_too_large", "an integer exceeds 64 bits: it cannot be stored")


def _float(digits: str) -> object:
    number = float(digits)
    return number if math.isfinite(number) else _constant(digits)


def _constant(_: str) -> object:
    return Broken("not_a_number", "NaN and Infinity are no JSON: leave the field out")
