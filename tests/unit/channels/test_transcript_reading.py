"""Damage is named with its place, and its neighbours are read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.channels.errors import NothingToImport
from services.channels.transcripts.discovery import SessionFiles, find_sessions
from services.channels.transcripts.importing import load_session
from services.channels.transcripts.reading import LINE_BYTES_MAX, Damage, Line, read_lines

MakeLines = Callable[..., Any]


def reasons(path: Path) -> list[tuple[int | None, str]]:
    return [(item.line, item.reason) for item in read_lines(path) if isinstance(item, Damage)]


def test_reads_around_damaged_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    deep = b"[" * 100_000
    path.write_bytes(
        b'\xef\xbb\xbf{"a":1}\n\n{"a":\n"text"\n\xff\xfe\n' + deep + b'\n{"a":2}\r\n{"a":3}'
    )
    assert [item.value for item in read_lines(path) if isinstance(item, Line)] == [
        {"a": 1},
        {"a": 2},
        {"a": 3},
    ]
    assert reasons(path) == [
        (3, "is no JSON"),
        (4, "is JSON, but no object"),
        (5, "is not UTF-8"),
        (6, "is nested too deeply"),
    ]


def test_a_line_beyond_the_bound_is_damage_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    with path.open("wb") as file:
        file.write(b'{"a":"' + b"x" * LINE_BYTES_MAX + b'"}\n{"b":1}\n')
    assert [str(item) if isinstance(item, Damage) else item.value for item in read_lines(path)] == [
        f"{path}:1: is longer than {LINE_BYTES_MAX} bytes",
        {"b": 1},
    ]


def test_a_cut_last_line_says_so(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"a":1}\n{"a":')
    assert reasons(path) == [(2, "was cut off: it has no end (is no JSON)")]


def test_a_file_that_is_no_text_is_one_damage(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(bytes(range(256)) * 100)
    assert reasons(path) == [(None, "is no text file: nothing of it was used")]


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").touch()
    session, damages = load_session(find_sessions([tmp_path]).sessions[0])
    assert (session.runs, session.delegated, damages) == ((), (), [])


def test_a_link_onto_itself_cannot_be_read(tmp_path: Path) -> None:
    loop = tmp_path / "loop.jsonl"
    loop.symlink_to(loop)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "up").symlink_to(tmp_path)
    found = find_sessions([tmp_path])
    (damage,) = load_session(found.sessions[0])[1]
    assert damage.line is None
    assert damage.reason.startswith("cannot be read: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.touch(mode=0o000)
    assert reasons(path) == [(None, "cannot be read: Permission denied")]


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(NothingToImport, match="does not exist"):
        find_sessions([tmp_path / "no.jsonl"])


def test_a_folder_without_transcripts_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(NothingToImport, match=r"holds no \*\.jsonl file"):
        find_sessions([tmp_path])


def test_a_main_file_brings_its_delegates_and_they_bring_it(
    lines: MakeLines, tmp_path: Path
) -> None:
    main, side = lines(), lines()
    main.user("one")
    side.user("side")
    main_path = main.save(tmp_path / "s1.jsonl")
    side_path = side.save(tmp_path / "s1" / "subagents" / "agent-a1.jsonl")
    for given in ([main_path], [side_path], [main_path, side_path, tmp_path]):
        (files,) = find_sessions(given).sessions
        assert (files.mains, files.delegates) == ([main_path], [("a1", side_path)])


def test_a_file_belongs_to_the_session_that_it_names(lines: MakeLines, tmp_path: Path) -> None:
    main = lines("other-name")
    main.user("one")
    main.save(tmp_path / "notes.jsonl")
    assert [files.session for files in find_sessions([tmp_path]).sessions] == ["other-name"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timestamp": "2026-03-02T09:00:00"}, "timestamp is missing, or has no offset"),
        ({"timestamp": None}, "timestamp is missing, or has no offset"),
        ({"uuid": "a b"}, "uuid is missing or no id"),
        ({"message": None}, "an assistant line without a message"),
        ({"message": {"id": "m", "model": "x"}}, "an answer without usage: its spend is unknown"),
        ({"message": {"id": "", "model": "x", "usage": {}}}, "id is missing or no id"),
        (
            {"message": {"id": "m", "model": 7, "usage": {}}},
            "message.model is missing or no model name",
        ),
        (
            {"message": {"id": "m", "model": "a\u0000", "usage": {}}},
            "message.model holds characters that no model name has",
        ),
        (
            {"message": {"id": "m", "model": "x", "usage": {"output_tokens": 1.5}}},
            "usage.output_tokens is no whole number",
        ),
        (
            {"message": {"id": "m", "model": "x", "usage": {"input_tokens": 2**70}}},
            "usage.input_tokens is beyond every real count",
        ),
    ],
)
def test_an_answer_that_cannot_be_used_is_named(
    change: dict[str, Any], reason: str, lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    written.answer("m1")
    written.written[1] |= change
    written.answer("m2")
    path = written.save(tmp_path / "f.jsonl")
    session, damages = load_session(SessionFiles("s1", mains=[path]))
    assert [(damage.line, damage.reason) for damage in damages] == [(2, reason)]
    assert [request.id for request in session.requests] == ["m2"]


def test_unknown_lines_are_survived(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    odd = [{}, {"type": None}, {"type": "new-thing", "uuid": 7, "timestamp": "never"}, {"a": [1]}]
    path.write_text("".join(json.dumps(value) + "\n" for value in odd))
    session, damages = load_session(SessionFiles("s1", mains=[path]))
    assert (session.runs, damages) == ((), [])
