"""Whatever happens inside a run, what was paid for is said and the run ends."""

# What is under test is how blocks are left: they stand within `pytest.raises` whole.
# ruff: noqa: PT012

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contracts.channel import Tokens
from contracts.errors import Invalid
from contracts.ledger import Authorization, Authorize, Refusal
from contracts.types import OnUnreachable, RunStatus, Surface
from services.channels.client import Channel
from services.channels.errors import (
    BudgetRefused,
    CredentialRefused,
    RiendaUnreachable,
    RunNotOpen,
)
from services.channels.request import UNHEARD
from services.channels.transport import Outcome, Said
from tests.unit.channels.recording import CONTEXT, NOBODY, TOKENS, end_of, until

SENTENCE = "Agent a1 has spent 0.02 of its 0.01 USD this month."


def refused(question: Authorize) -> Authorization:
    answer: Authorization = allowed(question).model_copy(
        update={
            "allowed": False,
            "sentence": SENTENCE,
            "refusal": Refusal(code="budget_exceeded", scope="agent", id="a1", name="a1"),
        }
    )
    return answer


def allowed(
    question: Authorize, on_unreachable: OnUnreachable = OnUnreachable.REFUSE
) -> Authorization:
    return Authorization(
        request_id=question.request_id,
        allowed=True,
        sentence="Within every cap.",
        on_unreachable=on_unreachable,
        decided_at=datetime(2026, 3, 2, 9, 0, tzinfo=UTC),
    )


async def test_says_start_usage_and_end(channel: Channel, transport: Any) -> None:
    async with channel.run(**CONTEXT) as run, run.request(model="m", provider="p") as request:
        request.report(TOKENS)
    (started,), (usage,) = transport.of("run_started"), transport.of("usage_reported")
    assert (started.run_id, started.root_run_id, started.budget_nanousd) == ("r1", "r1", 5_000_000)
    assert (usage.run_id, usage.request_id) == ("r1", request.request_id)
    assert (usage.tokens, usage.model, usage.provider) == (TOKENS, "m", "p")
    assert usage.unauthorized_reason is None
    assert usage.started_at <= usage.occurred_at
    assert end_of(transport) == (RunStatus.COMPLETED, None)
    assert [said.split("/")[0] for said in transport.said] == ["r1", request.request_id, "r1"]


async def test_asks_with_everything_that_the_caps_depend_on(
    channel: Channel, transport: Any
) -> None:
    async with (
        channel.run(**CONTEXT) as run,
        run.delegate(run_id="r2", agent_id="a2", delegation_id="d1") as child,
        child.request(model="m", output_tokens_max=9, request_id="q1", must_fit=True) as request,
    ):
        request.report(TOKENS)
    (question,) = transport.asked
    assert (question.request_id, question.run_id, question.root_run_id) == ("q1", "r2", "r1")
    assert (question.agent_id, question.root_agent_id) == ("a2", "a1")
    assert (question.user_id, question.started_by_user_id) == ("u1", "u2")
    assert (question.run_budget_nanousd, question.output_tokens_max) == (5_000_000, 9)
    assert question.must_fit
    _, child_start = transport.of("run_started")
    assert (child_start.parent_run_id, child_start.root_run_id) == ("r1", "r1")
    assert (child_start.delegation_id, child_start.surface) == ("d1", Surface.SLACK)
    assert (child_start.conversation_id, child_start.budget_nanousd) == ("c1", None)
    assert transport.of("usage_reported")[0].delegation_id == "d1"
    assert [end.run_id for end in transport.of("run_finished")] == ["r2", "r1"]


async def test_says_that_a_run_was_deleted_by_an_id_of_its_own(
    channel: Channel, transport: Any
) -> None:
    await channel.delete_run("r1")
    (said,) = transport.of("run_deleted")
    assert said.run_id == "r1"
    assert said.deleted_at.tzinfo is not None
    assert [event_id.split("/")[:2] for event_id in transport.said] == [["r1", "deleted"]]


async def test_a_refusal_stops_the_request_and_ends_the_run(
    channel: Channel, transport: Any
) -> None:
    transport.answer = refused
    with pytest.raises(BudgetRefused, match="has spent") as caught:
        async with channel.run(**CONTEXT) as run, run.request(model="m"):
            pytest.fail("a refused request ran")
    assert caught.value.authorization.refusal is not None
    assert caught.value.authorization.refusal.scope == "agent"
    assert transport.of("usage_reported") == []
    assert end_of(transport) == (RunStatus.BUDGET_EXCEEDED, SENTENCE)


async def test_a_refusal_that_was_handled_ends_nothing(channel: Channel, transport: Any) -> None:
    transport.answer = refused
    async with channel.run(**CONTEXT) as run:
        with pytest.raises(BudgetRefused):
            async with run.request(model="m"):
                pytest.fail("a refused request ran")
    assert end_of(transport) == (RunStatus.COMPLETED, None)


async def test_a_refusal_within_a_task_group_ends_the_run(channel: Channel, transport: Any) -> None:
    transport.answer = refused
    with pytest.raises(ExceptionGroup):
        async with channel.run(**CONTEXT) as run, asyncio.TaskGroup() as group:
            group.create_task(run.request(model="m").__aenter__())
    assert end_of(transport) == (RunStatus.BUDGET_EXCEEDED, SENTENCE)


async def test_an_exception_fails_the_run_by_name_only(channel: Channel, transport: Any) -> None:
    with pytest.raises(LookupError, match="secret"):
        async with channel.run(**CONTEXT) as run, run.request(model="m") as request:
            request.report(TOKENS, interrupted=True, model="m-2026")
            raise LookupError("secret words of a provider")
    (usage,) = transport.of("usage_reported")
    assert (usage.interrupted, usage.model) == (True, "m-2026")
    assert end_of(transport) == (RunStatus.FAILED, "LookupError was raised")


async def test_a_request_without_a_report_is_unknown_and_not_invented(
    channel: Channel, transport: Any
) -> None:
    async with channel.run(**CONTEXT) as run, run.request(model="m"):
        pass
    assert transport.of("usage_reported") == []
    assert channel.requests_unknown == 1


async def test_the_last_report_counts(channel: Channel, transport: Any) -> None:
    async with channel.run(**CONTEXT) as run, run.request(model="m") as request:
        request.report(Tokens(input=100, output=1), interrupted=True)
        request.report(TOKENS)
    assert [usage.tokens for usage in transport.of("usage_reported")] == [TOKENS]


async def test_a_cancelled_run_still_reports_and_ends(channel: Channel, transport: Any) -> None:
    reported = asyncio.Event()

    async def work() -> None:
        async with channel.run(**CONTEXT) as run, run.request(model="m") as request:
            request.report(TOKENS, interrupted=True)
            reported.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await reported.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(transport.of("usage_reported")) == 1
    assert end_of(transport) == (RunStatus.CANCELLED, None)


async def test_last_words_survive_a_cancellation_while_they_are_said(
    channel: Channel, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying, may_end = asyncio.Event(), asyncio.Event()
    publish = transport.publish

    async def slow(events: Sequence[Said]) -> list[Outcome]:
        saying.set()
        await may_end.wait()
        result: list[Outcome] = await publish(events)
        return result

    async def work() -> None:
        async with channel.run(**CONTEXT) as run:
            monkeypatch.setattr(transport, "publish", slow)
            async with run.request(model="m") as request:
                request.report(TOKENS)

    task = asyncio.create_task(work())
    await saying.wait()
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(transport.of("usage_reported")) == 1
    assert end_of(transport) == (RunStatus.CANCELLED, None)


async def test_a_run_cancelled_while_it_starts_is_said_to_have_ended(
    channel: Channel, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying, may_end = asyncio.Event(), asyncio.Event()
    publish = transport.publish

    async def slow(events: Sequence[Said]) -> list[Outcome]:
        saying.set()
        await may_end.wait()
        result: list[Outcome] = await publish(events)
        return result

    monkeypatch.setattr(transport, "publish", slow)
    task = asyncio.create_task(channel.run(**CONTEXT).__aenter__())
    await saying.wait()
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(transport.of("run_started")) == 1
    assert end_of(transport) == (RunStatus.CANCELLED, None)


async def test_an_end_that_was_set_is_said(channel: Channel, transport: Any) -> None:
    async with channel.run(**CONTEXT) as run:
        run.end(RunStatus.LOOP_STOPPED, error="The same search again.", tools=["search"])
    (end,) = transport.of("run_finished")
    assert (end.status, end.tools) == (RunStatus.LOOP_STOPPED, ("search",))


async def test_beats_until_the_end(transport: Any) -> None:
    async with Channel(transport, heartbeat_s=0.001) as channel:
        async with channel.run(**CONTEXT):
            await until(lambda: len(transport.of("run_heartbeat")) >= 3)
        await asyncio.sleep(0)
        beats = len(transport.of("run_heartbeat"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(transport.of("run_heartbeat")) == beats


async def test_a_lost_beat_ends_nothing_and_is_not_kept(transport: Any, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    async with Channel(transport, heartbeat_s=0.001, spool_path=spool) as channel:
        async with channel.run(**CONTEXT):
            transport.failures = [NOBODY]
            await until(lambda: len(transport.of("run_heartbeat")) >= 1)
        assert not spool.exists()
    assert end_of(transport) == (RunStatus.COMPLETED, None)


async def test_a_run_is_used_inside_its_block_only(channel: Channel) -> None:
    run = channel.run(**CONTEXT)
    with pytest.raises(RunNotOpen, match="has not begun"):
        run.request(model="m")
    async with run:
        pass
    with pytest.raises(RunNotOpen, match="is over"):
        run.delegate(run_id="r2", agent_id="a2", delegation_id="d1")


async def test_asks_twice_for_the_same_request(channel: Channel, transport: Any) -> None:
    async with channel.run(**CONTEXT) as run:
        transport.failures = [NOBODY]
        async with run.request(model="m") as request:
            request.report(TOKENS)
    assert [question.request_id for question in transport.asked] == [request.request_id]


async def test_no_answer_means_no_before_the_first_one(channel: Channel, transport: Any) -> None:
    with pytest.raises(RiendaUnreachable):
        async with channel.run(**CONTEXT) as run:
            transport.failures = [NOBODY, NOBODY]
            async with run.request(model="m"):
                pytest.fail("an unheard request ran")
    assert end_of(transport) == (RunStatus.FAILED, "RiendaUnreachable was raised")


@pytest.mark.parametrize("policy", list(OnUnreachable))
async def test_no_answer_follows_the_last_one(
    policy: OnUnreachable, channel: Channel, transport: Any
) -> None:
    transport.answer = lambda question: allowed(question, policy)
    async with channel.run(**CONTEXT) as run:
        async with run.request(model="m") as request:
            request.report(TOKENS)
        transport.failures = [NOBODY, NOBODY]
        if policy is OnUnreachable.REFUSE:
            with pytest.raises(RiendaUnreachable):
                await run.request(model="m").__aenter__()
            return
        async with run.request(model="m") as request:
            request.report(TOKENS)
    heard, unheard = transport.of("usage_reported")
    assert (heard.unauthorized_reason, unheard.unauthorized_reason) == (None, UNHEARD)


@pytest.mark.parametrize("answer", [CredentialRefused("unknown key"), Invalid("no such model")])
async def test_an_answer_that_is_an_error_is_not_asked_again(
    answer: Exception, channel: Channel, transport: Any
) -> None:
    with pytest.raises(type(answer)):
        async with channel.run(**CONTEXT) as run:
            transport.failures = [answer, None]
            await run.request(model="m").__aenter__()
    assert transport.asked == []
