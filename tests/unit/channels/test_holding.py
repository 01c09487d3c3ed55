"""The typed client where money is held: it passes grants on and lets go of what it did not send."""

from __future__ import annotations

import pytest

from contracts.errors import NotFound
from contracts.ledger import Authorization, Authorize, Refusal
from contracts.types import OnUnreachable
from services.channels.client import ASK_TRIES, Channel
from services.channels.errors import BudgetRefused, RateLimited, RiendaUnreachable
from tests.unit.channels.recording import (
    CONTEXT,
    NOBODY,
    START,
    TOKENS,
    RecordingTransport,
    allowed,
    until,
)


def granting(question: Authorize) -> Authorization:
    update = {"hold_id": question.request_id, "held_nanousd": 5, "output_tokens_max": 700}
    return allowed(question).model_copy(update=update)


async def test_what_the_answer_grants_is_what_is_passed_on() -> None:
    transport = RecordingTransport()
    transport.answer = granting
    async with Channel(transport) as channel, channel.run(**CONTEXT) as run:
        async with run.request(model="m", input_tokens_max=900, cache_write="5m") as request:
            assert request.output_tokens_max == 700
            request.report(TOKENS)
        transport.answer = allowed
        async with run.request(model="m", output_tokens_max=50) as request:
            assert request.output_tokens_max == 50
            request.report(TOKENS)
    asked = transport.asked[0]
    assert (asked.input_tokens_max, asked.output_tokens_max, asked.cache_write) == (900, None, "5m")
    assert transport.voided == []


async def test_a_request_that_was_not_sent_lets_go_of_its_hold_and_says_nothing() -> None:
    transport = RecordingTransport()
    transport.answer = granting
    async with Channel(transport) as channel:
        async with channel.run(**CONTEXT) as run, run.request(model="m") as request:
            request.not_sent()
        async with channel.ingest(ingestion_id="i1", model="m") as ingestion:
            ingestion.not_sent()
        assert channel.requests_unknown == 0
    assert transport.voided == [request.request_id, ingestion.request_id]
    assert transport.of("usage_reported") == []


async def test_a_report_beats_the_word_that_nothing_was_sent() -> None:
    transport = RecordingTransport()
    async with (
        Channel(transport) as channel,
        channel.run(**CONTEXT) as run,
        run.request(model="m") as request,
    ):
        request.not_sent()
        request.report(TOKENS)
    assert transport.voided == []
    assert len(transport.of("usage_reported")) == 1


async def test_an_answer_that_was_lost_may_have_held_money() -> None:
    transport = RecordingTransport()
    async with Channel(transport) as channel, channel.run(**CONTEXT) as run:
        transport.failures = [NOBODY] * ASK_TRIES
        request = run.request(model="m")
        with pytest.raises(RiendaUnreachable):
            await request.__aenter__()
        await until(lambda: transport.voided == [request.request_id])


async def test_nothing_to_let_go_of_is_no_error() -> None:
    transport = RecordingTransport()
    async with (
        Channel(transport) as channel,
        channel.run(**CONTEXT) as run,
        run.request(model="m") as request,
    ):
        request.not_sent()
        transport.failures = [NotFound("there is no such hold of this channel")]
    assert transport.voided == []


async def test_too_often_says_when_to_ask_again_with_the_same_id() -> None:
    transport = RecordingTransport()
    transport.answer = lambda question: Authorization(
        request_id=question.request_id,
        allowed=False,
        refusal=Refusal(code="rate_limited", scope="agent", id="a1", requests_per_minute=3),
        sentence="Ask again in 7 s.",
        on_unreachable=OnUnreachable.REFUSE,
        decided_at=START,
        retry_after_s=7,
    )
    async with Channel(transport) as channel, channel.run(**CONTEXT) as run:
        with pytest.raises(RateLimited) as caught:
            await run.request(model="m", request_id="q1").__aenter__()
        assert isinstance(caught.value, BudgetRefused)
        assert caught.value.retry_after_s == 7
        transport.answer = allowed
        async with run.request(model="m", request_id="q1") as request:
            request.report(TOKENS)
    assert [question.request_id for question in transport.asked] == ["q1", "q1"]
