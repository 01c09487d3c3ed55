"""Bytes of a transcript file become JSON objects with their line numbers, or damage with a reason.

The one thing not to break: one bad line never costs its neighbours, and no line, however long,
costs more memory than `LINE_BYTES_MAX`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

LINE_BYTES_MAX = 16 * 1024 * 1024
"""A longer line is damage. Pasted pictures make lines of some megabytes; 16 MiB leaves room."""
SNIFF_BYTES = 8 * 1024
"""How much of a file is looked at to tell text from something else."""
_SKIP_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One JSON object and where it stood (line numbers begin at 1)."""

    number: int
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that could not be used; `line` is null where it is the whole file."""

    path: Path
    line: int | None
    reason: str

    def __str__(self) -> str:
        """`file:number: reason`, as editors jump to it."""
        where = f"{self.path}:{self.line}" if self.line is not None else str(self.path)
        return f"{where}: {self.reason}"


def read_lines(path: Path) -> Iterator[Line | Damage]:
    """Read a file line by line; blank lines are passed over.

    A file that cannot be opened or is no text yields one `Damage` without a line number. An error
    of the disk in the middle yields what was read before it and one `Damage`.
    """
    try:
        with path.open("rb") as file:
            start = file.read(SNIFF_BYTES)
            if b"\x00" in start:
                yield Damage(path, None, "is no text file: nothing of it was used")
                return
            file.seek(0)
            yield from _lines_of(path, file)
    except OSError as error:
        yield Damage(path, None, f"cannot be read: {error.strerror or type(error).__name__}")


def _lines_of(path: Path, file: BinaryIO) -> Iterator[Line | Damage]:
    number = 0
    while raw := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(raw) > LINE_BYTES_MAX and not raw.endswith(b"\n"):
            _skip_rest_of_line(file)
            yield Damage(path, number, f"is longer than {LINE_BYTES_MAX} bytes")
            continue
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if not raw.strip():
            continue
        parsed = _parse(raw)
        if isinstance(parsed, dict):
            yield Line(number, parsed)
        elif raw.endswith(b"\n"):
            yield Damage(path, number, parsed)
        else:
            yield Damage(path, number, f"was cut off: it has no end ({parsed})")


def _skip_rest_of_line(file: BinaryIO) -> None:
    while chunk := file.readline(_SKIP_BYTES):
        if chunk.endswith(b"\n"):
            return


def _parse(raw: bytes) -> dict[str, Any] | str:
    """The object, or why there is none."""
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return "is not UTF-8"
    except RecursionError:
        return "is nested too deeply"
    except ValueError:
        return "is no JSON"
    return value if isinstance(value, dict) else "is JSON, but no object"
