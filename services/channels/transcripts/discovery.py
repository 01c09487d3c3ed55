"""Paths become sessions: which files belong together, found by what they say about themselves.

The one thing not to break: a file's own lines name its session. Names of main files need not, and a
file that is reached by two ways (twice on the command line, by a link) counts once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from services.channels.errors import NothingToImport
from services.channels.transcripts.reading import Damage, Line, read_lines
from services.channels.transcripts.records import (
    DELEGATE_CHARS_MAX,
    SESSION_CHARS_MAX,
    id_or_none,
    session_of,
)

SUFFIX: Final = ".jsonl"
SUBAGENTS: Final = "subagents"
PEEK_LINES_MAX: Final = 500
"""How far into a file its session is looked for: files begin with lines that name none."""
_AGENT_FILE: Final = re.compile(r"agent-(?P<id>.+)\.jsonl\Z")
_COMPACTION: Final = "acompact"


@dataclass(slots=True)
class SessionFiles:
    """The files of one session."""

    session: str
    mains: list[Path] = field(default_factory=list)
    delegates: list[tuple[str, Path]] = field(default_factory=list)
    """`<id>` of `agent-<id>.jsonl`, and the file."""
    compactions: list[Path] = field(default_factory=list)

    @property
    def files_count(self) -> int:
        """How many files it is made of."""
        return len(self.mains) + len(self.delegates) + len(self.compactions)


@dataclass(frozen=True, slots=True)
class Found:
    """Sessions in the order of their names, and what could not be looked at."""

    sessions: tuple[SessionFiles, ...]
    damages: tuple[Damage, ...]


def find_sessions(paths: Sequence[Path]) -> Found:
    """Collect the sessions under files and folders.

    A main file brings its `<session>/subagents/` along, and a delegate's file the main file that it
    lies under: a delegated run without its parent would be half a story. Links to folders are not
    followed.

    Raises:
        NothingToImport: a path does not exist, or a folder holds no `*.jsonl` file.
    """
    damages: list[Damage] = []
    files: dict[str, Path] = {}
    for path in paths:
        for found in _files_of(path, damages):
            files.setdefault(os.path.realpath(found), found)
    sessions: dict[str, SessionFiles] = {}
    for file in files.values():
        session = _peek_session(file)
        entry = sessions.setdefault(session, SessionFiles(session))
        _sort_in(file, entry, damages)
    return Found(tuple(sessions[name] for name in sorted(sessions)), tuple(damages))


def _files_of(path: Path, damages: list[Damage]) -> Iterator[Path]:
    if path.is_dir():
        found = list(_walk(path, damages))
        if not found and not damages:
            raise NothingToImport(path, f"holds no *{SUFFIX} file")
        yield from found
    elif path.exists():
        yield path
        yield from _companions(path, damages)
    else:
        raise NothingToImport(path, "does not exist, or is a link that leads nowhere")


def _walk(top: Path, damages: list[Damage]) -> Iterator[Path]:
    def note(error: OSError) -> None:
        reason = error.strerror or type(error).__name__
        damages.append(Damage(Path(error.filename or top), None, f"cannot be listed: {reason}"))

    for folder, folders, names in os.walk(top, onerror=note, followlinks=False):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(SUFFIX))


def _companions(file: Path, damages: list[Damage]) -> Iterator[Path]:
    if not _AGENT_FILE.match(file.name):
        # The folder is named after the session; the main file may have been renamed.
        folders = {file.with_suffix(""), file.with_name(_peek_session(file))}
    elif (session_folder := _session_folder(file)) is not None:
        folders = {session_folder}
        main = session_folder.with_name(session_folder.name + SUFFIX)
        if main.is_file():
            yield main
    else:
        return
    for folder in sorted(folders):
        if (folder / SUBAGENTS).is_dir():
            yield from _walk(folder / SUBAGENTS, damages)


def _session_folder(file: Path) -> Path | None:
    """`<session>` of `<session>/subagents/…/agent-<id>.jsonl`."""
    return next((folder.parent for folder in file.parents if folder.name == SUBAGENTS), None)


def _sort_in(file: Path, entry: SessionFiles, damages: list[Damage]) -> None:
    match = _AGENT_FILE.match(file.name)
    if match is None:
        entry.mains.append(file)
    elif match["id"].startswith(_COMPACTION):
        entry.compactions.append(file)
    elif name := id_or_none(match["id"], DELEGATE_CHARS_MAX):
        entry.delegates.append((name, file))
    else:
        damages.append(Damage(file, None, "its name holds no delegate's id: not used"))


def _peek_session(file: Path) -> str:
    for line in islice(read_lines(file), PEEK_LINES_MAX):
        if isinstance(line, Line) and (session := session_of(line.value)):
            return session
    folder = _session_folder(file)
    name = folder.name if folder else file.stem
    return re.sub(r"[^A-Za-z0-9._:@-]", "-", name)[:SESSION_CHARS_MAX]
