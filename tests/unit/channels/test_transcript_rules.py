"""Which lines begin a run, what belongs to it, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.types import RunStatus
from services.channels.transcripts.discovery import find_sessions
from services.channels.transcripts.importing import load_session
from services.channels.transcripts.rules import API_ERROR, OPEN_END, Session

MakeLines = Callable[..., Any]
CALL = [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}]
COMMAND = "<command-message>go</command-message>\n<command-name>/go</command-name>"
COMPACT = "<command-name>/compact</command-name>\n<command-message>compact</command-message>"
NOTIFICATION = "<task-notification>\n<task-id>b1</task-id>\n</task-notification>"
OUTPUT = "<local-command-stdout>done</local-command-stdout>"


def load(path: Path, *lines: Any) -> Session:
    for number, written in enumerate(lines):
        written.save(path / f"file{number}.jsonl")
    found = find_sessions([path])
    assert len(found.sessions) == 1
    session, damages = load_session(found.sessions[0])
    assert damages == []
    return session


def run_requests(session: Session) -> list[tuple[str, list[str]]]:
    return [(run.id, [request.id for request in run.requests]) for run in session.runs]


def test_a_typed_prompt_begins_a_run_even_without_a_request(
    lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    written.answer("m1")
    written.user([{"type": "text", "text": "two"}])
    assert run_requests(load(tmp_path, written)) == [("s1:l1", ["m1"]), ("s1:l3", [])]


@pytest.mark.parametrize("text", [COMMAND, NOTIFICATION])
def test_a_command_or_notification_begins_a_run_when_requests_follow(
    text: str, lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    written.answer("m1")
    written.user(text)
    written.user("the command's own words", isMeta=True)
    written.answer("m2")
    assert run_requests(load(tmp_path, written)) == [("s1:l1", ["m1"]), ("s1:l3", ["m2"])]


@pytest.mark.parametrize("text", [COMMAND, NOTIFICATION])
def test_a_command_or_notification_without_requests_begins_nothing(
    text: str, lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    written.answer("m1")
    written.user(text)
    written.user("two")
    written.answer("m2")
    assert run_requests(load(tmp_path, written)) == [("s1:l1", ["m1"]), ("s1:l4", ["m2"])]


def test_a_command_that_ran_locally_leaves_later_requests_to_the_work_before(
    lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    written.answer("m1", content=CALL)
    written.user("<command-name>/model</command-name>")
    written.user(OUTPUT)
    written.result()
    written.answer("m2")
    assert run_requests(load(tmp_path, written)) == [("s1:l1", ["m1", "m2"])]


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        ("meta words", {"isMeta": True}),
        ("the story so far", {"isCompactSummary": True}),
        ("shown only", {"isVisibleInTranscriptOnly": True}),
        ("[Request interrupted by user]", {}),
        ([{"type": "text", "text": "[Request interrupted by user for tool use]"}], {}),
        ("text 537b0a1dcb of 29 characters", {}),
        ("text 7c43783e9e of 42 characters", {}),
        ("<local-command-caveat>local</local-command-caveat>", {}),
        (OUTPUT, {}),
        (COMPACT, {}),
        ("<bash-input>ls</bash-input>", {}),
        ("<system-reminder>be brief</system-reminder>", {}),
        ([{"type": "tool_result", "tool_use_id": "t1", "content": "x"}], {}),
        ("a delegate's prompt", {"isSidechain": True}),
    ],
)
def test_these_begin_nothing(
    content: Any, fields: dict[str, Any], lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    written.user(content, **fields)
    written.answer("m1")
    assert run_requests(load(tmp_path, written)) == [("s1:l1", ["m1"])]


def test_queued_words_begin_nothing(lines: MakeLines, tmp_path: Path) -> None:
    written = lines()
    written.user("one")
    written.add("queue-operation", operation="enqueue", content="and this")
    written.answer("m1")
    assert run_requests(load(tmp_path, written)) == [("s1:l1", ["m1"])]


def test_requests_before_the_first_start_have_a_run_of_their_own(
    lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.answer("m1")
    written.user("one")
    written.answer("m2")
    session = load(tmp_path, written)
    assert run_requests(session) == [("s1:start", ["m1"]), ("s1:l2", ["m2"])]


def test_a_response_counts_once_with_its_best_report(lines: MakeLines, tmp_path: Path) -> None:
    written = lines()
    written.user("one")
    first = written.answer("m1", output=3)
    written.answer("m1", output=90)
    written.answer("m1", output=7)
    (run,) = load(tmp_path, written).runs
    (request,) = run.requests
    assert request.usage.output == 90
    assert request.line_uuid == first["uuid"]
    assert request.occurred_at.isoformat() == first["timestamp"]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"cache_read_input_tokens": 7}, (12, 7, 0, 0)),
        ({"cache_creation_input_tokens": 8}, (13, 0, 8, 0)),
        (
            {
                "cache_creation_input_tokens": 8,
                "cache_creation": {
                    "ephemeral_5m_input_tokens": 3,
                    "ephemeral_1h_input_tokens": 5,
                },
            },
            (13, 0, 3, 5),
        ),
        ({"cache_read_input_tokens": None}, (5, 0, 0, 0)),
        ({"cache_creation_input_tokens": -4}, (1, 0, -4, 0)),
    ],
)
def test_input_holds_the_cached_tokens(
    usage: dict[str, Any], expected: tuple[int, ...], lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    written.answer("m1", usage=usage)
    counts = load(tmp_path, written).runs[0].requests[0].usage
    assert (
        counts.input,
        counts.cache_read,
        counts.cache_write_5m,
        counts.cache_write_1h,
    ) == expected


def test_a_synthetic_answer_is_no_request(lines: MakeLines, tmp_path: Path) -> None:
    written = lines()
    written.user("one")
    written.answer("m1", model="<synthetic>")
    assert run_requests(load(tmp_path, written)) == [("s1:l1", [])]


def _ends(written: Any, kind: str) -> None:
    match kind:
        case "answer":
            written.answer("m1")
        case "call":
            written.answer("m1", content=CALL)
        case "result":
            written.answer("m1", content=CALL)
            written.result()
        case "marker":
            written.answer("m1")
            written.user("[Request interrupted by user]")
        case "error":
            written.answer("m1")
            written.answer("e1", model="<synthetic>", isApiErrorMessage=True)
        case "error, then noted":
            _ends(written, "error")
            written.add("system", subtype="stop_hook_summary")
        case "call, then noted":
            _ends(written, "call")
            written.add("system", subtype="turn_duration")


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [
        ("answer", RunStatus.COMPLETED, None),
        ("call, then noted", RunStatus.COMPLETED, None),
        ("call", RunStatus.CANCELLED, OPEN_END),
        ("result", RunStatus.CANCELLED, OPEN_END),
        ("nothing", RunStatus.CANCELLED, OPEN_END),
        ("marker", RunStatus.CANCELLED, None),
        ("error", RunStatus.FAILED, API_ERROR),
        ("error, then noted", RunStatus.FAILED, API_ERROR),
    ],
)
def test_ends_as_its_last_telling_line_does(
    kind: str, status: RunStatus, error: str | None, lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    _ends(written, kind)
    written.add("progress", data={"type": "hook_progress"})
    last = written.written[-1]["timestamp"]
    (run,) = load(tmp_path, written).runs
    assert (run.status, run.error, run.ended_at.isoformat()) == (status, error, last)


def test_an_undecided_command_does_not_move_the_end_before_it(
    lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    answer = written.answer("m1")
    written.user(NOTIFICATION)
    (run,) = load(tmp_path, written).runs
    assert run.ended_at.isoformat() == answer["timestamp"]


def test_a_delegate_without_a_file_is_missing_from_the_run_that_asked(
    lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    written.add("progress", data={"type": "agent_progress", "agentId": "a1"})
    result = {"agentId": "a1", "usage": {"input_tokens": 1, "output_tokens": 9_999}}
    written.result(toolUseResult=result)
    written.answer("m1")
    written.user("two")
    written.result(toolUseResult=result)
    first, second = load(tmp_path, written).runs
    assert (first.missing_delegates, second.missing_delegates) == (("a1",), ())
    assert [request.id for request in first.requests] == ["m1"]


def test_delegates_and_compactions_fall_into_runs_by_their_times(
    lines: MakeLines, tmp_path: Path
) -> None:
    written = lines()
    written.user("one")
    written.answer("m1")
    written.user("two")
    written.answer("m2")
    side = lines()
    side.user("side prompt", timestamp=written.written[2]["timestamp"], isSidechain=True)
    side.answer("m3", timestamp=written.written[3]["timestamp"])
    side.save(tmp_path / "s1" / "subagents" / "agent-a1.jsonl")
    compaction = lines()
    compaction.answer("m4", timestamp=written.written[1]["timestamp"])
    compaction.save(tmp_path / "s1" / "subagents" / "agent-acompact-1.jsonl")
    session = load(tmp_path, written)
    assert run_requests(session) == [("s1:l1", ["m1", "m4"]), ("s1:l3", ["m2"])]
    assert session.runs[0].requests[1].kind == "compaction"
    (child,) = session.delegated
    assert (child.id, child.parent_id, child.delegation_id) == ("s1:agent-a1", "s1:l3", "a1")
    assert [request.id for request in child.requests] == ["m3"]


def test_a_delegate_whose_session_has_no_file_hangs_under_a_start(
    lines: MakeLines, tmp_path: Path
) -> None:
    side = lines()
    side.user("side prompt", isSidechain=True)
    side.answer("m1")
    side.save(tmp_path / "s1" / "subagents" / "agent-a1.jsonl")
    session = load(tmp_path)
    assert run_requests(session) == [("s1:start", [])]
    assert session.delegated[0].parent_id == "s1:start"


def test_a_session_in_two_files_is_one_story(lines: MakeLines, tmp_path: Path) -> None:
    whole = lines()
    whole.user("one")
    whole.answer("m1")
    whole.user("two")
    whole.answer("m2")
    copy = lines(written=whole.written[:2])
    assert run_requests(load(tmp_path, whole, copy)) == [("s1:l1", ["m1"]), ("s1:l3", ["m2"])]
