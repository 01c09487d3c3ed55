"""A request that belongs to no run: asked first, said whatever happens."""

# What is under test is how blocks are left: they stand within `pytest.raises` whole.
# ruff: noqa: PT012

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contracts.channel import ProviderCost
from contracts.ledger import Authorization, Authorize, Refusal
from contracts.types import OnUnreachable, UsageKind
from services.channels.client import Channel
from services.channels.errors import BudgetRefused, EventRefused, RiendaUnreachable
from services.channels.ingestion import IngestionContext
from services.channels.request import UNHEARD
from tests.unit.channels.recording import NOBODY, TOKENS
from tests.unit.channels.recording import allowed as allow

CONTEXT: IngestionContext = {"ingestion_id": "i1", "model": "m", "request_id": "q1"}


def refuse(question: Authorize) -> Authorization:
    refusal = Refusal(code="budget_exceeded", scope="organization", id="acme", name="Acme")
    return allow(question).model_copy(update={"allowed": False, "refusal": refusal})


async def test_asks_for_no_run_and_says_what_was_reported(channel: Channel, transport: Any):
    cost = ProviderCost(amount="0.27", currency="NOK")
    async with channel.ingest(
        **CONTEXT,
        provider="p",
        key_id="k",
        document_id="d1",
        collection_id="c1",
        input_tokens_max=900,
        output_tokens_max=0,
        must_fit=True,
    ) as request:
        request.report(TOKENS, provider_cost=cost, model="m-2026")
    (question,), (said,) = transport.asked, transport.of("ingestion_reported")
    context = (question.run_id, question.root_run_id, question.agent_id, question.user_id)
    assert context == (None, None, None, None)
    assert (question.kind, question.model, question.must_fit) == (UsageKind.INGESTION, "m", True)
    assert (question.input_tokens_max, question.output_tokens_max) == (900, 0)
    assert (said.ingestion_id, said.request_id, said.document_id) == ("i1", "q1", "d1")
    assert (said.collection_id, said.model, said.provider, said.key_id) == (
        "c1",
        "m-2026",
        "p",
        "k",
    )
    assert (said.tokens, said.provider_cost, said.unauthorized_reason) == (TOKENS, cost, None)
    assert transport.of("run_started") == []


async def test_a_refusal_is_raised_before_anything_is_sent(channel: Channel, transport: Any):
    transport.answer = refuse
    with pytest.raises(BudgetRefused):
        async with channel.ingest(**CONTEXT):
            raise AssertionError("the request was sent")
    assert transport.said == {}
    assert channel.requests_unknown == 0


async def test_what_was_reported_is_said_although_the_block_fails(channel: Channel, transport: Any):
    with pytest.raises(asyncio.CancelledError):
        async with channel.ingest(**CONTEXT) as request:
            request.report(TOKENS, interrupted=True)
            raise asyncio.CancelledError
    (said,) = transport.of("ingestion_reported")
    assert said.interrupted


async def test_without_a_report_its_spend_is_unknown_and_never_said_as_zero(
    channel: Channel, transport: Any
):
    async with channel.ingest(**CONTEXT):
        pass
    assert (transport.said, channel.requests_unknown) == ({}, 1)


async def test_unheard_it_goes_on_only_where_the_organization_allows_that(
    channel: Channel, transport: Any
):
    transport.failures = [NOBODY, NOBODY]
    with pytest.raises(RiendaUnreachable):
        async with channel.ingest(**CONTEXT):
            raise AssertionError("the request was sent")
    transport.answer = lambda question: allow(question).model_copy(
        update={"on_unreachable": OnUnreachable.ALLOW}
    )
    async with channel.ingest(**CONTEXT) as request:
        request.report(TOKENS)
    transport.failures = [NOBODY, NOBODY]
    async with channel.ingest(ingestion_id="i1", model="m", request_id="q2") as request:
        request.report(TOKENS)
    said = {
        each.request_id: each.unauthorized_reason for each in transport.of("ingestion_reported")
    }
    assert said == {"q1": None, "q2": UNHEARD}


async def test_a_refused_report_is_no_silence(channel: Channel, transport: Any):
    transport.refusals["ingestion_reported"] = ("usage_too_old", "too old")
    with pytest.raises(EventRefused):
        async with channel.ingest(**CONTEXT) as request:
            request.report(TOKENS)
    with pytest.raises(KeyError) as failed:
        async with channel.ingest(**CONTEXT) as request:
            request.report(TOKENS)
            raise KeyError("mine")
    assert "too old" in "".join(failed.value.__notes__)
    assert channel.events_refused == 2
