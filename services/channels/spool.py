"""Where events wait that nobody took yet: a bounded file, or memory where no file is named.

The one thing not to break: an event leaves the spool only after it was answered, and what does not
fit is an error, never a silence. Events keep their ids, so sending them twice is harmless.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from contracts.envelope import encode
from contracts.errors import Invalid
from contracts.upcast import read_event
from services.channels.errors import SpoolFull, SpoolUnusable
from services.channels.transport import Said

SPOOL_BYTES_MAX: Final = 8 * 1024 * 1024
"""About ten thousand events."""
_NOBODY: Final = "_"
_SOURCE: Final = "spool"
_TYPE: Final = re.compile(r"rienda\.([a-z_]+)\.v([0-9]{1,4})\Z")


@dataclass(frozen=True, slots=True)
class Waiting:
    """What lies in a spool, oldest first."""

    events: tuple[Said, ...]
    damaged_count: int = 0
    """Lines that cannot be read: a crash in the middle of a write leaves one."""


class Spool(Protocol):
    """A place for events until they are answered."""

    def keep(self, events: Sequence[Said]) -> None:
        """Add events, all or none; `SpoolFull` when they do not fit."""
        ...

    def waiting(self) -> Waiting:
        """Read everything that waits."""
        ...

    def forget(self, ids: Collection[str]) -> None:
        """Drop events that were answered."""
        ...

    @property
    def is_empty(self) -> bool:
        """Nothing waits."""
        ...


class MemorySpool:
    """Keeps events as long as the process lives."""

    def __init__(self, bytes_max: int = SPOOL_BYTES_MAX) -> None:
        """`bytes_max` counts the events as a file would hold them."""
        self._bytes_max = bytes_max
        self._lines: dict[str, tuple[Said, int]] = {}

    @property
    def is_empty(self) -> bool:
        """Nothing waits."""
        return not self._lines

    def keep(self, events: Sequence[Said]) -> None:
        """Add events, all or none.

        Raises:
            SpoolFull: they do not fit.
        """
        sizes = {event.id: (event, len(_line_of(event))) for event in events}
        used = sum(size for _, size in self._lines.values())
        if used + sum(size for _, size in sizes.values()) > self._bytes_max:
            raise SpoolFull("memory", events_count=len(events), bytes_max=self._bytes_max)
        self._lines |= sizes

    def waiting(self) -> Waiting:
        """Everything that waits, oldest first."""
        return Waiting(tuple(event for event, _ in self._lines.values()))

    def forget(self, ids: Collection[str]) -> None:
        """Drop events that were answered."""
        for event_id in ids:
            self._lines.pop(event_id, None)


class FileSpool:
    """One event a line in a file that several processes may share; each use takes its lock.

    Lines that cannot be read are moved to `<path>.damaged` at the next `forget`, never dropped.
    Every method raises `SpoolUnusable` for errors of the file system.
    """

    def __init__(self, path: Path, bytes_max: int = SPOOL_BYTES_MAX) -> None:
        """Make the folder if need be; the file holds at most `bytes_max` bytes."""
        self._path = path
        self._bytes_max = bytes_max
        with _as_unusable(path):
            path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def is_empty(self) -> bool:
        """Nothing waits. Cheap enough to ask after every event."""
        try:
            return self._path.stat().st_size == 0
        except FileNotFoundError:
            return True

    def keep(self, events: Sequence[Said]) -> None:
        """Add events, all or none, and wait until the disk has them.

        Raises:
            SpoolFull: they do not fit.
            SpoolUnusable: the file system says no.
        """
        body = b"".join(_line_of(event) for event in events)
        with _as_unusable(self._path), self._locked():
            fresh = not self._path.exists()
            with _open_private(self._path) as file:
                size = file.seek(0, os.SEEK_END)
                if size + len(body) + 1 > self._bytes_max:
                    raise SpoolFull(
                        str(self._path), events_count=len(events), bytes_max=self._bytes_max
                    )
                if size and not _ends_with_newline(self._path):
                    # A crash left a torn line: the new ones must not become part of it.
                    body = b"\n" + body
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            if fresh:
                _sync_folder(self._path.parent)

    def waiting(self) -> Waiting:
        """Read everything that waits, oldest first."""
        with _as_unusable(self._path), self._locked():
            readings = [_event_of(line) for line in self._lines()]
        events = {event.id: event for event in readings if event is not None}
        return Waiting(tuple(events.values()), damaged_count=readings.count(None))

    def forget(self, ids: Collection[str]) -> None:
        """Drop answered events; the file is replaced as a whole or not at all."""
        gone = frozenset(ids)
        with _as_unusable(self._path), self._locked():
            kept: list[bytes] = []
            damaged: list[bytes] = []
            for line in self._lines():
                event = _event_of(line)
                if event is None:
                    damaged.append(line)
                elif event.id not in gone:
                    kept.append(line)
            if damaged:
                _append_all(self._path.with_name(self._path.name + ".damaged"), damaged)
            rewritten = self._path.with_name(self._path.name + ".new")
            rewritten.unlink(missing_ok=True)
            _append_all(rewritten, kept)
            rewritten.replace(self._path)
            _sync_folder(self._path.parent)

    def _lines(self) -> list[bytes]:
        try:
            body = self._path.read_bytes()
        except FileNotFoundError:
            return []
        return [line for line in body.split(b"\n") if line.strip()]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with _open_private(self._path.with_name(self._path.name + ".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _line_of(event: Said) -> bytes:
    return encode(event.envelope(source=_SOURCE, org=_NOBODY)) + b"\n"


def _event_of(line: bytes) -> Said | None:
    """The event of a line, brought to its newest version; nothing when it cannot be read."""
    try:
        name = _TYPE.match(json.loads(line)["type"])
        if name is None:
            return None
        subject = f"rienda.event.{_NOBODY}.channel.{_SOURCE}.{name[1]}.v{name[2]}"
        event = read_event(subject, line)[1]
    except (ValueError, TypeError, KeyError, Invalid):
        return None
    return Said(id=event.id, time=event.time, data=event.data)


def _append_all(path: Path, lines: Sequence[bytes]) -> None:
    with _open_private(path) as file:
        file.write(b"".join(line + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())


def _open_private(path: Path) -> BinaryIO:
    """Open for appending; a new file is its owner's alone, because events tell who did what."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "ab")


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _sync_folder(folder: Path) -> None:
    """A new or replaced name is safe only when its folder was written."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _as_unusable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpoolUnusable(f"the spool {path} cannot be used: {error.strerror}") from error
