"""Real sessions give the runs, requests and sums that they are known to hold.

The figures are those of the data's own page: 14 runs, 3 delegated ones, 482 requests.
"""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import pytest
from genai_prices import Usage as PricedUsage
from genai_prices import calc_price

from contracts.channel import RunFinished, RunStarted, UsageReported
from contracts.types import RunStatus
from services.channels.transcripts.discovery import SessionFiles, find_sessions
from services.channels.transcripts.importing import load_session
from services.channels.transcripts.rules import Request, Session
from services.channels.transcripts.saying import Attribution, say_session
from services.channels.transport import Said

NANO = Decimal(10) ** 9


@pytest.fixture(scope="module")
def sessions(shared_transcripts: Path) -> list[Session]:
    loaded = [load_session(files) for files in find_sessions([shared_transcripts]).sessions]
    assert [damages for _, damages in loaded if damages] == []
    return [session for session, _ in loaded]


def cost_nanousd(request: Request) -> int:
    usage = request.usage
    price = calc_price(
        PricedUsage(
            input_tokens=usage.input,
            output_tokens=usage.output,
            cache_read_tokens=usage.cache_read,
            cache_write_tokens=usage.cache_write_5m + usage.cache_write_1h,
            cache_write_1h_tokens=usage.cache_write_1h,
        ),
        request.model,
        provider_id="anthropic",
        genai_request_timestamp=request.occurred_at,
    )
    return int((price.total_price * NANO).to_integral_value(ROUND_HALF_EVEN))


def test_finds_the_runs_and_requests_that_are_there(sessions: list[Session]) -> None:
    runs = [run for session in sessions for run in session.runs]
    delegated = [run for session in sessions for run in session.delegated]
    kinds = Counter(request.kind for run in runs for request in run.requests)
    assert (len(runs), len(delegated)) == (14, 3)
    assert kinds == {"model": 451, "compaction": 3}
    assert sum(len(run.requests) for run in delegated) == 28


def test_prices_to_the_nano_dollar(sessions: list[Session]) -> None:
    by_kind: Counter[str] = Counter()
    by_day: Counter[date] = Counter()
    for session in sessions:
        for run in (*session.runs, *session.delegated):
            for request in run.requests:
                cost = cost_nanousd(request)
                by_kind["delegated" if run.parent_id else request.kind.value] += cost
                by_day[request.occurred_at.date()] += cost
    assert sum(by_kind.values()) == 34_894_475_450
    assert by_kind["compaction"] == 357_151_750
    assert by_day == {
        date(2026, 2, 10): 890_686_000,
        date(2026, 2, 11): 23_890_093_900,
        date(2026, 2, 12): 10_113_695_550,
    }


def test_names_the_one_delegate_without_a_file(sessions: list[Session]) -> None:
    missing = {
        run.id: run.missing_delegates
        for session in sessions
        for run in (*session.runs, *session.delegated)
        if run.missing_delegates
    }
    assert missing == {
        "491e126e-1e71-469c-ade2-fcc8af567c74:cc2c7130-8a1e-4f3c-8f99-b54aa375b7a7": ("afb92ff",)
    }


def test_ends_each_run_as_its_lines_do(sessions: list[Session]) -> None:
    ends = Counter(run.status for session in sessions for run in session.runs)
    assert ends == {RunStatus.COMPLETED: 9, RunStatus.CANCELLED: 5}
    assert not [run for session in sessions for run in session.runs if run.error]


def test_hangs_delegated_runs_under_the_run_they_begin_in(sessions: list[Session]) -> None:
    for session in sessions:
        by_id = {run.id: run for run in session.runs}
        for child in session.delegated:
            parent = by_id[child.parent_id or ""]
            assert parent.started_at <= child.started_at <= parent.ended_at


def test_says_the_same_ids_for_the_same_file(sessions: list[Session]) -> None:
    for session in sessions:
        first, second = (say_session(session, Attribution()) for _ in range(2))
        assert first == second
        assert len({said.id for said in first}) == len(first)


def _facts(
    events: list[Said],
) -> tuple[dict[str, str], dict[str, UsageReported], dict[str, datetime]]:
    starts = {said.id: said.data.run_id for said in events if isinstance(said.data, RunStarted)}
    usage = {said.id: said.data for said in events if isinstance(said.data, UsageReported)}
    ends = {
        said.data.run_id: said.data.ended_at
        for said in events
        if isinstance(said.data, RunFinished)
    }
    return starts, usage, ends


@pytest.mark.parametrize(
    "name",
    [
        "short",
        "subagent",
        "tool_heavy",
        "258c7280-ae70-4798-800f-63464d01a85d",
        "4d5611e5-241a-462a-8d15-5122611a9569",
        "8463c716-a2ea-4c14-9efa-87158ebd9f20",
    ],
)
def test_a_longer_file_only_adds(name: str, shared_transcripts: Path, tmp_path: Path) -> None:
    whole = (shared_transcripts / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    cut = tmp_path / f"{name}.jsonl"
    steps = range(1, len(whole) + 1, max(1, len(whole) // 60))
    starts_before: dict[str, str] = {}
    usage_before: dict[str, UsageReported] = {}
    ends_before: dict[str, datetime] = {}
    for count in (*steps, len(whole)):
        cut.write_bytes(b"".join(whole[:count]))
        session, damages = load_session(SessionFiles(name, mains=[cut]))
        assert damages == []
        starts, usage, ends = _facts(say_session(session, Attribution()))
        assert starts_before.items() <= starts.items()
        assert all(ends[run] >= at for run, at in ends_before.items())
        best = {data.request_id: data for data in usage.values()}
        for event_id, data in usage_before.items():
            grown = best[data.request_id]
            assert event_id in usage or grown.tokens.output > data.tokens.output
            assert (grown.run_id, grown.occurred_at) == (data.run_id, data.occurred_at)
        starts_before, usage_before, ends_before = starts, usage, ends


def test_a_cut_last_line_costs_only_itself(shared_transcripts: Path, tmp_path: Path) -> None:
    body = (shared_transcripts / "tool_heavy.jsonl").read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(body[:-40])
    session, damages = load_session(SessionFiles("cut", mains=[cut]))
    assert [(damage.line, damage.reason[:11]) for damage in damages] == [(39, "was cut off")]
    assert len(session.runs) == 2
    assert len(session.requests) == 4
