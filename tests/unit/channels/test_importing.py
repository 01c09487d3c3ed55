"""An import says each session whole, says it again while nobody answers, and sums up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.types import Surface
from services.channels.errors import CredentialRefused, RiendaUnreachable
from services.channels.transcripts.discovery import find_sessions
from services.channels.transcripts.importing import (
    BATCH_EVENTS_MAX,
    TRIES_MAX,
    Summary,
    import_sessions,
)
from services.channels.transcripts.saying import Attribution

MakeLines = Callable[..., Any]
WHOSE = Attribution(agent_id="helper", user_id="user-1")


async def run_import(path: Path, transport: Any) -> Summary:
    return await import_sessions(find_sessions([path]), transport, attribution=WHOSE)


async def test_says_runs_and_usage_with_their_attribution(
    lines: MakeLines, tmp_path: Path, transport: Any
) -> None:
    main, side = lines(), lines()
    main.user("one")
    usage = {"server_tool_use": {"web_search_requests": 2}, "service_tier": "batch"}
    main.answer("m1", usage=usage)
    side.user("side", timestamp=main.written[1]["timestamp"])
    side.answer("m2", usage={"service_tier": "priority"})
    main.save(tmp_path / "s1.jsonl")
    side.save(tmp_path / "s1" / "subagents" / "agent-a1.jsonl")
    summary = await run_import(tmp_path, transport)
    assert (summary.accepted, summary.duplicates, summary.refused.count) == (6, 0, 0)
    parent, child = transport.of("run_started")
    assert (parent.agent_id, child.agent_id) == ("helper", "helper/subagent")
    assert (child.root_run_id, child.parent_run_id, child.delegation_id) == ("s1:l1", "s1:l1", "a1")
    for started in (parent, child):
        assert (started.user_id, started.started_by_user_id) == ("user-1", "user-1")
        assert (started.surface, started.provider) == (Surface.CLI, "anthropic")
        assert started.conversation_id == "s1"
    batch, priority = transport.of("usage_reported")
    assert (batch.price_context.processing, batch.price_context.service_tier) == ("batch", None)
    assert batch.tool_counts == {"web_searches": 2}
    assert (priority.price_context.processing, priority.price_context.service_tier) == (
        None,
        "priority",
    )


async def test_the_same_file_twice_says_nothing_new(samples: Path, transport: Any) -> None:
    first = await run_import(samples / "transcripts", transport)
    said = dict(transport.said)
    second = await run_import(samples / "transcripts", transport)
    assert transport.said == said
    assert (second.accepted, second.duplicates) == (0, first.accepted)


async def test_a_longer_file_says_only_what_is_new(
    lines: MakeLines, tmp_path: Path, transport: Any
) -> None:
    written = lines()
    written.user("one")
    written.answer("m1", output=1)
    written.save(tmp_path / "s1.jsonl")
    await run_import(tmp_path, transport)
    written.answer("m1", output=80)
    written.user("two")
    written.answer("m2")
    written.save(tmp_path / "s1.jsonl")
    summary = await run_import(tmp_path, transport)
    # New: the grown report, the moved end, and a start, a report and an end of the second run.
    assert (summary.accepted, summary.duplicates) == (5, 1)


async def test_says_in_batches_again_until_they_are_taken(
    lines: MakeLines, tmp_path: Path, transport: Any
) -> None:
    written = lines()
    written.user("one")
    for number in range(2 * BATCH_EVENTS_MAX):
        written.answer(f"m{number}")
    written.save(tmp_path / "s1.jsonl")
    transport.failures = [RiendaUnreachable("not now", retry_after_s=0.0)] * 3
    summary = await run_import(tmp_path, transport)
    assert [len(call) for call in transport.calls] == [100, 100, 2]
    assert summary.accepted == len(transport.said) == 202


async def test_gives_up_after_its_tries(samples: Path, transport: Any) -> None:
    transport.failures = [RiendaUnreachable("not now", retry_after_s=0.0)] * TRIES_MAX
    with pytest.raises(RiendaUnreachable):
        await run_import(samples / "transcripts", transport)


async def test_a_refused_key_is_not_tried_again(samples: Path, transport: Any) -> None:
    transport.failures = [CredentialRefused("unknown key"), None]
    with pytest.raises(CredentialRefused):
        await run_import(samples / "transcripts", transport)
    assert transport.calls == []


async def test_counts_what_was_refused(samples: Path, transport: Any) -> None:
    transport.refusals = {"run_finished": ("other_channel", "the run is another channel's")}
    summary = await run_import(samples / "transcripts", transport)
    assert summary.refused.count == 14
    assert summary.refused.items[0].endswith("other_channel: the run is another channel's")
    assert not summary.is_clean
