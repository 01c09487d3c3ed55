"""The words of the HTTP edge and of the contracts, translated both ways without a float."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from contracts.channel import RunFinished, UsageReported
from contracts.errors import AlreadyExists, Invalid
from contracts.ledger import Authorize
from contracts.types import OnUnreachable, RunStatus
from services.channels.errors import AnswerUnreadable, CredentialRefused, RiendaUnreachable
from services.channels.money import nanousd_of, usd_text
from services.channels.over_http import BATCH_BYTES_MAX, BATCH_EVENTS_MAX, HttpTransport
from services.channels.transport import Outcome, Said, Verdict

AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
Answer = Callable[[httpx.Request], httpx.Response]

QUESTION = Authorize(
    request_id="q1",
    run_id="s1:agent/1".replace("/", "."),
    root_run_id="r0",
    agent_id="a/1",
    root_agent_id="a",
    user_id=None,
    started_by_user_id="u1",
    run_budget_nanousd=1,
    model="m",
    cost_nanousd_max=12_345_678_901,
)
REFUSED = {
    "request_id": "q1",
    "allowed": False,
    "refusal": {
        "code": "budget_exceeded",
        "scope": "agent",
        "id": "a",
        "name": "A",
        "limit_usd": "0.01",
        "spent_usd": "9007199.254740993",
        "is_partial": True,
    },
    "sentence": "Spent.",
    "remaining": [
        {
            "scope": "organization",
            "id": "acme",
            "name": "Acme",
            "limit_usd": "100",
            "spent_usd": "-0.000000001",
            "remaining_usd": "100.000000001",
            "is_partial": False,
            "cap_revision": 3,
        }
    ],
    "partial": True,
    "on_unreachable": "allow",
    "decided_at": "2026-03-02T09:00:00Z",
}


def speaking_to(answer: Answer) -> HttpTransport:
    return HttpTransport("http://rienda.test/", "key", http=httpx.MockTransport(answer))


def said(number: int, chars: int = 0) -> Said:
    data = RunFinished(run_id=f"r{number}", status=RunStatus.FAILED, error="x" * chars, ended_at=AT)
    return Said(id=f"e{number}", time=AT, data=data)


def accept(request: httpx.Request) -> httpx.Response:
    items = [
        {"id": event["id"], "status": "accepted", "error": None}
        for event in json.loads(request.content)
    ]
    return httpx.Response(202, json={"items": items, "accepted": len(items)})


async def test_publishes_cloud_events_and_reads_each_answer() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        error = {"code": "BAD_REQUEST", "reason": "other_channel", "message": "not yours"}
        items = [
            {"id": "e0", "status": "accepted", "error": None},
            {"id": "e1", "status": "duplicate", "error": None},
            {"id": "e2", "status": "refused", "error": error},
        ]
        return httpx.Response(202, json={"items": items})

    outcomes = await speaking_to(answer).publish([said(0), said(1), said(2)])
    assert outcomes == [
        Outcome("e0", Verdict.ACCEPTED),
        Outcome("e1", Verdict.DUPLICATE),
        Outcome("e2", Verdict.REFUSED, "other_channel", "not yours"),
    ]
    (request,) = seen
    assert str(request.url) == "http://rienda.test/api/v1/events"
    assert request.headers["Authorization"] == "Bearer key"
    event = json.loads(request.content)[0]
    assert (event["specversion"], event["type"]) == ("1.0", "rienda.run_finished.v1")
    assert event["data"]["run_id"] == "r0"
    # Who speaks is the key's affair: another organization's name would be refused.
    assert not event.keys() & {"source", "subject"}


async def test_keeps_to_the_bounds_of_one_call() -> None:
    sizes: list[tuple[int, int]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sizes.append((len(json.loads(request.content)), len(request.content)))
        return accept(request)

    http = speaking_to(answer)
    await http.publish([said(number) for number in range(2 * BATCH_EVENTS_MAX + 1)])
    assert [count for count, _ in sizes] == [BATCH_EVENTS_MAX, BATCH_EVENTS_MAX, 1]
    sizes.clear()
    tools = tuple(f"{'t' * 120}{number}" for number in range(1_500))
    data = RunFinished(run_id="r", status=RunStatus.LOOP_STOPPED, tools=tools, ended_at=AT)
    outcomes = await http.publish(
        [Said(id=f"e{number}", time=AT, data=data) for number in range(12)]
    )
    assert [outcome.verdict for outcome in outcomes] == [Verdict.ACCEPTED] * 12
    assert len(sizes) > 1
    assert all(size <= BATCH_BYTES_MAX for _, size in sizes)


async def test_an_event_that_no_contract_takes_is_refused_alone() -> None:
    tools = tuple(f"{'t' * 120}{number}" for number in range(3_000))
    data = RunFinished(run_id="r", status=RunStatus.LOOP_STOPPED, tools=tools, ended_at=AT)
    outcomes = await speaking_to(accept).publish(
        [said(0), Said(id="big", time=AT, data=data), said(1)]
    )
    assert [outcome.reason for outcome in outcomes] == [None, "oversized", None]


async def test_asks_with_decimal_strings_and_reads_them_back() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=REFUSED)

    answered = await speaking_to(answer).authorize(QUESTION)
    (request,) = seen
    assert request.url.path == "/api/v1/runs/s1:agent.1/authorize"
    body = json.loads(request.content)
    assert (body["run_budget_usd"], body["cost_usd_max"]) == ("0.000000001", "12.345678901")
    assert "run_id" not in body
    assert body["user_id"] is None
    assert not [key for key in body if "nanousd" in key]
    assert answered.refusal is not None
    assert (answered.refusal.limit_nanousd, answered.refusal.spent_nanousd) == (
        10_000_000,
        9_007_199_254_740_993,
    )
    (left,) = answered.remaining
    assert (left.spent_nanousd, left.remaining_nanousd) == (-1, 100_000_000_001)
    assert (answered.allowed, answered.on_unreachable) == (False, OnUnreachable.ALLOW)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, {"code": "AUTHENTICATION_ERROR", "detail": "unknown key"}, CredentialRefused),
        (403, {"code": "AUTHORIZATION_ERROR", "detail": "no right"}, CredentialRefused),
        (422, {"code": "VALIDATION_ERROR", "detail": "model: missing"}, Invalid),
        (409, {"code": "ALREADY_EXISTS", "detail": "another run"}, AlreadyExists),
        (429, {}, RiendaUnreachable),
        (500, {}, RiendaUnreachable),
        (503, {"detail": "not now"}, RiendaUnreachable),
        (404, "<html>", AnswerUnreadable),
        (302, "", AnswerUnreadable),
        (200, "<html>", AnswerUnreadable),
        (200, {"items": "none"}, AnswerUnreadable),
        (200, [REFUSED], AnswerUnreadable),
        (200, REFUSED | {"refusal": {"code": "x", "limit_usd": "much"}}, AnswerUnreadable),
    ],
)
async def test_tells_not_now_from_never(status: int, body: Any, error: type[Exception]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if isinstance(body, str):
            return httpx.Response(status, text=body)
        return httpx.Response(status, json=body)

    http = speaking_to(answer)
    with pytest.raises(error):
        await http.authorize(QUESTION)
    with pytest.raises(error if status != 200 else AnswerUnreadable):
        await http.publish([said(0)])


@pytest.mark.parametrize(("header", "wait_s"), [("7", 7.0), ("soon", None), (None, None)])
async def test_hears_how_long_to_wait(header: str | None, wait_s: float | None) -> None:
    headers = {"Retry-After": header} if header else {}
    http = speaking_to(lambda _: httpx.Response(503, json={}, headers=headers))
    with pytest.raises(RiendaUnreachable) as caught:
        await http.publish([said(0)])
    assert caught.value.retry_after_s == wait_s


async def test_nobody_there_is_unreachable() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    with pytest.raises(RiendaUnreachable, match="connection refused"):
        await speaking_to(answer).publish([said(0)])


async def test_a_silent_server_is_unreachable_at_the_deadline() -> None:
    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(keep_silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        http = HttpTransport(f"http://127.0.0.1:{port}", "key")
        with pytest.raises(RiendaUnreachable):
            await http.authorize(QUESTION, timeout_s=0.05)
        await http.close()


@pytest.mark.parametrize(
    ("nanousd", "text"),
    [
        (0, "0"),
        (1, "0.000000001"),
        (13_542_000, "0.013542"),
        (34_894_475_450, "34.89447545"),
        (-2_500_000_000, "-2.5"),
        (2**63 - 1, "9223372036.854775807"),
    ],
)
async def test_money_goes_both_ways(nanousd: int, text: str) -> None:
    assert usd_text(nanousd) == text
    assert nanousd_of(text) == nanousd


@pytest.mark.parametrize("text", ["", "much", "0.0000000001", "NaN", "Infinity", "1e-10"])
async def test_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no amount|is finer"):
        nanousd_of(text)


async def test_usage_keeps_its_large_counts() -> None:
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.extend(json.loads(request.content))
        return accept(request)

    data = UsageReported.model_validate(
        {
            "request_id": "q",
            "run_id": "r",
            "model": "m",
            "tokens": {"input": 2**53 + 1, "output": -1},
            "occurred_at": AT,
        }
    )
    await speaking_to(answer).publish([Said(id="e", time=AT, data=data)])
    assert bodies[0]["data"]["tokens"]["input"] == 2**53 + 1
    assert bodies[0]["data"]["tokens"]["output"] == -1
