"""A run that waits for people says so, does nothing meanwhile, and goes on where it is claimed."""

# What is under test is how blocks are left: they stand within `pytest.raises` whole.
# ruff: noqa: PT012

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contracts.channel import ParkedCall
from contracts.types import RunStatus
from services.channels.client import Channel
from services.channels.errors import EventRefused, RunNotOpen
from shared.clock import FixedClock
from tests.unit.channels.recording import (
    CONTEXT,
    START,
    TOKENS,
    RecordingTransport,
    end_of,
    until,
)

CALL = ParkedCall(call_id="c1", tool_id="mail", tool_name="send_mail", arguments="{}")


async def test_a_run_is_parked_and_goes_on_in_its_session(channel: Channel, transport: Any) -> None:
    async with channel.run(**CONTEXT) as run:
        await run.park([CALL], state_ref="s1")
        assert run.is_parked
        await run.resume("claim-1")
        assert not run.is_parked
        async with run.request(model="m") as request:
            request.report(TOKENS)
    (parked,), (resumed,) = transport.of("run_parked"), transport.of("run_resumed")
    assert (parked.run_id, parked.state_ref, parked.calls) == ("r1", "s1", (CALL,))
    assert (resumed.run_id, resumed.claim_id) == ("r1", "claim-1")
    assert parked.at < resumed.at
    assert end_of(transport) == (RunStatus.COMPLETED, None)
    names = [said.event.name for said in transport.said.values()]
    assert names == ["run_started", "run_parked", "run_resumed", "usage_reported", "run_finished"]


async def test_a_resume_is_later_than_its_park_whatever_the_clock_does() -> None:
    transport = RecordingTransport()
    clock = FixedClock(START)
    async with Channel(transport, clock=clock) as channel, channel.run(**CONTEXT) as run:
        await run.park([CALL])
        await run.resume("claim-1")
        await run.park([CALL])
        await run.resume("claim-2")
    assert all(resumed.at > START for resumed in transport.of("run_resumed"))
    assert len(transport.of("run_resumed")) == 2


async def test_nothing_of_a_parked_run_runs(channel: Channel, transport: Any) -> None:
    async with (
        channel.run(**CONTEXT) as run,
        run.delegate(run_id="r2", agent_id="a2", delegation_id="d1") as child,
    ):
        await run.park([CALL.model_copy(update={"delegation_id": "d1"})])
        for what in (
            lambda: run.request(model="m"),
            lambda: run.delegate(run_id="r3", agent_id="a2", delegation_id="d2"),
        ):
            with pytest.raises(RunNotOpen, match="parked"):
                what()
        with pytest.raises(RunNotOpen, match="parked"):
            await child.request(model="m").__aenter__()
        with pytest.raises(RunNotOpen, match="parked"):
            await run.park([CALL])
        await run.resume("claim-1")
        with pytest.raises(RunNotOpen, match="not parked"):
            await run.resume("claim-1")
    assert transport.asked == []


async def test_leaving_the_block_of_a_parked_run_does_not_end_it(
    channel: Channel, transport: Any
) -> None:
    async with channel.run(**CONTEXT) as run:
        await run.park([CALL])
    assert transport.of("run_finished") == []
    with pytest.raises(RunNotOpen, match="parked"):
        run.request(model="m")


async def test_a_cancellation_leaves_a_parked_run_waiting(channel: Channel, transport: Any) -> None:
    is_parked = asyncio.Event()

    async def wait_in_a_run() -> None:
        async with channel.run(**CONTEXT) as run:
            await run.park([CALL])
            is_parked.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait_in_a_run())
    await is_parked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert transport.of("run_finished") == []


async def test_an_exception_fails_a_parked_run_and_end_ends_it(
    channel: Channel, transport: Any
) -> None:
    with pytest.raises(LookupError):
        async with channel.run(**CONTEXT) as run:
            await run.park([CALL])
            raise LookupError
    assert end_of(transport) == (RunStatus.FAILED, "LookupError was raised")
    async with channel.run(**{**CONTEXT, "run_id": "r2"}) as other:
        await other.park([CALL])
        other.end(RunStatus.CANCELLED, error="nobody decided in time")
    assert transport.of("run_finished")[-1].error == "nobody decided in time"


async def test_another_process_goes_on_without_saying_the_start_again() -> None:
    transport = RecordingTransport()
    async with Channel(transport) as channel, channel.run(**CONTEXT) as run:
        await run.park([CALL])
    async with Channel(transport) as other, other.resume_run("claim-1", **CONTEXT) as run:
        async with run.request(model="m") as request:
            request.report(TOKENS)
        async with run.delegate(run_id="r2", agent_id="a2", delegation_id="d1"):
            pass
    started, delegate = transport.of("run_started")
    assert (started.run_id, delegate.run_id, delegate.root_run_id) == ("r1", "r2", "r1")
    (question,) = transport.asked
    assert (question.agent_id, question.run_budget_nanousd) == ("a1", 5_000_000)
    assert transport.of("run_resumed")[0].claim_id == "claim-1"
    assert transport.of("run_finished")[-1].status is RunStatus.COMPLETED


async def test_a_park_that_is_not_taken_leaves_the_run_running(
    channel: Channel, transport: Any
) -> None:
    transport.refusals = {"run_parked": ("run_of_other_channel", "no")}
    async with channel.run(**CONTEXT) as run:
        with pytest.raises(EventRefused):
            await run.park([CALL])
        assert not run.is_parked
        async with run.request(model="m") as request:
            request.report(TOKENS)
    assert end_of(transport) == (RunStatus.COMPLETED, None)


async def test_a_parked_run_does_not_beat() -> None:
    transport = RecordingTransport()
    async with (
        Channel(transport, heartbeat_s=0.001) as channel,
        channel.run(**CONTEXT) as run,
    ):
        await until(lambda: len(transport.of("run_heartbeat")) > 0)
        await run.park([CALL])
        assert run._beating is not None
        await asyncio.wait({run._beating})
        beats = len(transport.of("run_heartbeat"))
        await run.resume("claim-1")
        await until(lambda: len(transport.of("run_heartbeat")) > beats)
