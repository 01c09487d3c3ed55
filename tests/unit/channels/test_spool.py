"""An event leaves a spool when it was answered and not before."""

from __future__ import annotations

import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from contracts.channel import RunFinished, Tokens, UsageReported
from contracts.types import RunStatus
from services.channels.errors import SpoolFull, SpoolUnusable
from services.channels.spool import FileSpool, MemorySpool, Spool
from services.channels.transport import Said

AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def said(number: int) -> Said:
    at = AT + timedelta(seconds=number)
    data = RunFinished(run_id=f"r{number}", status=RunStatus.COMPLETED, ended_at=at)
    return Said(id=f"e{number}", time=at, data=data)


@pytest.fixture(params=["file", "memory"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Spool:
    return FileSpool(tmp_path / "deep" / "spool") if request.param == "file" else MemorySpool()


def test_gives_back_what_was_kept_oldest_first(spool: Spool) -> None:
    usage = UsageReported(
        request_id="q1", run_id="r1", model="m", tokens=Tokens(input=2**62), occurred_at=AT
    )
    events = [said(2), Said(id="u", time=AT, data=usage), said(1)]
    assert spool.is_empty
    spool.keep(events[:2])
    spool.keep(events[2:])
    assert list(spool.waiting().events) == events


def test_forgets_only_what_was_answered(spool: Spool) -> None:
    spool.keep([said(1), said(2), said(3)])
    spool.forget(["e1", "e3", "unknown"])
    assert spool.waiting().events == (said(2),)
    spool.forget(["e2"])
    assert spool.is_empty


def test_keeps_an_event_once(spool: Spool) -> None:
    spool.keep([said(1)])
    spool.keep([said(1)])
    assert spool.waiting().events == (said(1),)


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_full_spool_takes_all_or_none(kind: str, tmp_path: Path) -> None:
    spool: Spool = MemorySpool(600) if kind == "memory" else FileSpool(tmp_path / "spool", 600)
    spool.keep([said(1)])
    with pytest.raises(SpoolFull) as caught:
        spool.keep([said(2), said(3)])
    assert caught.value.events_count == 2
    assert spool.waiting().events == (said(1),)


def test_survives_its_process(tmp_path: Path) -> None:
    FileSpool(tmp_path / "spool").keep([said(1)])
    assert FileSpool(tmp_path / "spool").waiting().events == (said(1),)


@pytest.mark.parametrize("bytes_missing", [1, 2, 40, 150])
def test_a_torn_last_line_costs_only_itself(bytes_missing: int, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    FileSpool(path).keep([said(1), said(2)])
    path.write_bytes(path.read_bytes()[:-bytes_missing])
    spool = FileSpool(path)
    spool.keep([said(3)])
    waiting = spool.waiting()
    whole = (said(1), said(2), said(3)) if bytes_missing == 1 else (said(1), said(3))
    assert (waiting.events, waiting.damaged_count) == (whole, 0 if bytes_missing == 1 else 1)


def test_moves_damaged_lines_aside(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    FileSpool(path).keep([said(1)])
    with path.open("ab") as file:
        file.write(b'not json\n[]\n{"type":7}\n{"type":"rienda.never_heard.v1","data":{}}\n')
    spool = FileSpool(path)
    assert spool.waiting().damaged_count == 4
    spool.forget([])
    assert spool.waiting() == type(spool.waiting())((said(1),), 0)
    assert path.with_name("spool.damaged").read_bytes().startswith(b"not json\n[]\n")


def test_a_rewrite_that_was_interrupted_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.with_name("spool.new").write_bytes(b"half a line")
    spool = FileSpool(path)
    spool.keep([said(1), said(2)])
    spool.forget(["e1"])
    assert spool.waiting().events == (said(2),)


def test_is_its_owners_alone(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path / "spool")
    spool.keep([said(1), said(2)])
    for _ in range(2):
        assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o600
        spool.forget(["e1"])


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpoolUnusable, match="cannot be used"):
        FileSpool(tmp_path / "file" / "spool")


WRITER = """
import sys
sys.path.insert(0, sys.argv[3])
from datetime import UTC, datetime
from pathlib import Path
from contracts.channel import RunHeartbeat, RunFinished
from contracts.types import RunStatus
from services.channels.spool import FileSpool
from services.channels.transport import Said
spool = FileSpool(Path(sys.argv[1]))
at = datetime(2026, 3, 2, tzinfo=UTC)
for number in range(30):
    name = f"{sys.argv[2]}-{number}"
    data = RunFinished(run_id=name, status=RunStatus.COMPLETED, ended_at=at)
    spool.keep([Said(id=name, time=at, data=data)])
    if number % 3 == 0:
        spool.forget([name])
"""


def test_two_processes_share_a_spool(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    repository = str(Path(__file__).parents[3])
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, repository])
        for name in ("a", "b")
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    waiting = FileSpool(path).waiting()
    expected = {f"{name}-{number}" for name in "ab" for number in range(30) if number % 3}
    assert {event.id for event in waiting.events} == expected
    assert waiting.damaged_count == 0
