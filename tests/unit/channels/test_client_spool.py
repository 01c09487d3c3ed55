"""What nobody took waits, what was refused is told, and nothing is lost in silence."""

# What is under test is how blocks are left: they stand within `pytest.raises` whole.
# ruff: noqa: PT012

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contracts.types import RunStatus
from services.channels.client import Channel
from services.channels.errors import EventRefused, EventsUnsent, SpoolFull
from tests.unit.channels.recording import CONTEXT, NOBODY, SECOND, TOKENS, end_of, until


async def test_what_nobody_took_is_said_at_the_next_start(transport: Any, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    transport.failures = [NOBODY, NOBODY, None, NOBODY, NOBODY, NOBODY]
    async with Channel(transport, spool_path=spool) as channel:
        async with channel.run(**CONTEXT) as run, run.request(model="m") as request:
            request.report(TOKENS)
        assert transport.said == {}
    assert transport.said == {}
    async with Channel(transport, spool_path=spool):
        names = [said.event.name for said in transport.said.values()]
    assert names == ["run_started", "usage_reported", "run_finished"]
    assert spool.read_bytes() == b""


async def test_what_nobody_took_is_said_when_sending_works_again(
    transport: Any, tmp_path: Path
) -> None:
    spool = tmp_path / "spool.jsonl"
    async with Channel(transport, spool_path=spool) as channel:
        transport.failures = [NOBODY]
        async with channel.run(**CONTEXT):
            async with channel.run(**SECOND):
                await until(lambda: len(transport.of("run_started")) == 2)
            await until(lambda: spool.read_bytes() == b"")


async def test_a_full_spool_is_an_error_and_counted(transport: Any, tmp_path: Path) -> None:
    async with Channel(transport, spool_path=tmp_path / "spool", spool_bytes_max=100) as channel:
        transport.failures = [NOBODY]
        with pytest.raises(SpoolFull, match="is full"):
            await channel.run(**CONTEXT).__aenter__()
        assert channel.events_lost == 1


async def test_a_full_spool_does_not_hide_the_exception_of_the_block(
    transport: Any, tmp_path: Path
) -> None:
    async with Channel(transport, spool_path=tmp_path / "spool", spool_bytes_max=100) as channel:
        with pytest.raises(LookupError) as caught:
            async with channel.run(**CONTEXT):
                transport.failures = [NOBODY]
                raise LookupError
    assert "is full" in caught.value.__notes__[0]


async def test_without_a_file_unsent_events_are_an_error_at_the_end(transport: Any) -> None:
    with pytest.raises(EventsUnsent, match="2 event"):
        async with Channel(transport) as channel:
            transport.failures = [NOBODY, NOBODY, NOBODY]
            async with channel.run(**CONTEXT):
                pass
    assert channel.events_lost == 2


async def test_a_refused_start_ends_before_the_block(channel: Channel, transport: Any) -> None:
    transport.refusals = {"run_started": ("other_channel", "run r1 is another channel's")}
    with pytest.raises(EventRefused, match="another channel's"):
        async with channel.run(**CONTEXT):
            pytest.fail("the block ran")
    assert transport.of("run_finished") == []
    assert channel.events_refused == 1


async def test_a_refused_report_is_raised(channel: Channel, transport: Any) -> None:
    transport.refusals = {"usage_reported": ("future", "more than five minutes ahead")}
    with pytest.raises(EventRefused, match="five minutes"):
        async with channel.run(**CONTEXT) as run, run.request(model="m") as request:
            request.report(TOKENS)
    assert end_of(transport) == (RunStatus.FAILED, "EventRefused was raised")


async def test_opens_although_nobody_is_there(transport: Any) -> None:
    transport.failures = [NOBODY]
    async with Channel(transport) as channel, channel.run(**CONTEXT):
        pass
    assert end_of(transport) == (RunStatus.COMPLETED, None)
