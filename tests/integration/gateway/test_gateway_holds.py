"""Holds and overruns over HTTP: shown, filtered, paged, let go of; a stranger's are unknown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.integration.gateway.running import Gateway, gateway_with_ledger
from tests.integration.gateway.saying import answered, asked, started, usage
from tests.servers import RoomProcess, Servers

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
async def gateway(servers: Servers, bootstrap: RoomProcess) -> AsyncIterator[Gateway]:
    async with gateway_with_ledger(servers) as running:
        yield running


class Strict:
    """An organization in strict mode, with who reads it and who asks in it."""

    def __init__(self, org: str, admin: httpx.AsyncClient, channel: httpx.AsyncClient) -> None:
        self.org = org
        self.admin = admin
        self.channel = channel

    async def ask(self, request_id: str, usd: str, run_id: str = "1") -> dict[str, Any]:
        """A question whose cost is bounded, in a run of its own cap where that is started."""
        question = asked(request_id, run_id, cost_usd_max=usd)
        answer = await self.channel.post(f"/runs/{run_id}/authorize", json=question)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    async def say(self, *events: dict[str, Any]) -> None:
        answer = await self.channel.post("/events", json=list(events))
        assert answer.json()["accepted"] == len(events), answer.text

    async def holds(self, **query: Any) -> dict[str, Any]:
        answer = await self.admin.get("/holds", params=query)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    async def void(self, request_id: str) -> httpx.Response:
        return await self.channel.delete(f"/holds/{request_id}")


async def new_strict(gateway: Gateway, budget_usd: str = "10") -> Strict:
    org, admin = await gateway.new_admin(
        await gateway.new_org(monthly_budget_usd=budget_usd, cap_mode="strict")
    )
    channel, _ = await gateway.new_channel(org)
    await answered(admin, "/caps", total=1)
    return Strict(org, admin, channel)


def ids(page: dict[str, Any]) -> list[str]:
    return [item["hold_id"] for item in page["items"]]


async def test_what_is_held_is_shown_with_the_caps_that_it_counts_against(
    gateway: Gateway,
) -> None:
    strict = await new_strict(gateway)
    answer = await strict.ask("q1", "3.5")
    assert (answer["hold_id"], answer["held_usd"]) == ("q1", "3.500000")
    page = await strict.holds()
    (row,) = page["items"]
    assert page["total"] == 1
    assert (row["hold_id"], row["request_id"], row["run_id"]) == ("q1", "q1", "1")
    assert (row["held_usd"], row["state"], row["actual_usd"]) == ("3.500000", "open", None)
    assert (row["closed_at"], row["output_tokens_max"]) == (None, None)
    (cap,) = row["caps"]
    assert (cap["scope"], cap["id"]) == ("organization", strict.org)
    assert len(cap["month"]) == 7
    (shown,) = (await strict.admin.get("/caps")).json()["items"]
    assert (shown["spent_usd"], shown["held_usd"]) == ("0.000000", "3.500000")
    assert shown["remaining_usd"] == "6.500000"
    refused = await strict.ask("q2", "7")
    assert refused["refusal"]["code"] == "budget_exceeded"
    assert (refused["refusal"]["spent_usd"], refused["refusal"]["held_usd"]) == (
        "0.000000",
        "3.500000",
    )


async def test_holds_are_filtered_by_state_and_paged_newest_first(gateway: Gateway) -> None:
    strict = await new_strict(gateway)
    for number in range(1, 6):
        assert (await strict.ask(f"q{number}", "1"))["allowed"]
    assert (await strict.void("q2")).status_code == 200
    await strict.say(started("1"), usage("q4", "1"))
    await answered(strict.admin, "/holds?state=settled", total=1)
    (settled,) = (await strict.holds(state="settled"))["items"]
    assert (settled["hold_id"], settled["actual_usd"]) == ("q4", "0.005250")
    assert settled["closed_at"] is not None
    assert ids(await strict.holds(state="voided")) == ["q2"]
    assert ids(await strict.holds(state="expired")) == []
    opened = await strict.holds(state="open", limit=2)
    assert (ids(opened), opened["total"]) == (["q5", "q3"], 3)
    rest = await strict.holds(state="open", limit=2, skip=2)
    assert (ids(rest), rest["total"]) == (["q1"], 3)
    everything = await strict.holds()
    assert (ids(everything), everything["total"]) == (["q5", "q4", "q3", "q2", "q1"], 5)
    beyond = await strict.holds(skip=50)
    assert (beyond["items"], beyond["total"]) == ([], 5)


async def test_letting_go_is_idempotent_and_frees_the_money(gateway: Gateway) -> None:
    strict = await new_strict(gateway)
    assert (await strict.ask("q1", "9"))["allowed"]
    assert not (await strict.ask("q2", "2"))["allowed"]
    first, second = await strict.void("q1"), await strict.void("q1")
    assert (first.status_code, first.text) == (second.status_code, second.text)
    assert first.status_code == 200
    assert first.json() == {
        "hold_id": "q1",
        "request_id": "q1",
        "state": "voided",
        "held_usd": "9.000000",
    }
    assert (await strict.ask("q3", "9"))["allowed"]
    again = await strict.channel.post("/runs/1/authorize", json=asked("q1", "1", cost_usd_max="9"))
    assert (again.status_code, again.json()["reason"]) == (409, "hold_closed")
    await strict.say(started("1"), usage("q3", "1"))
    await answered(strict.admin, "/holds?state=settled", total=1)
    refused = await strict.void("q3")
    assert (refused.status_code, refused.json()["reason"]) == (409, "hold_settled")
    assert (await strict.holds(state="settled"))["total"] == 1


async def test_a_strangers_hold_is_an_unknown_one(gateway: Gateway) -> None:
    strict, stranger = await new_strict(gateway), await new_strict(gateway)
    sibling, _ = await gateway.new_channel(strict.org, "c2")
    assert (await strict.ask("q1", "1"))["allowed"]
    unknown = await strict.void("nothing")
    assert (unknown.status_code, unknown.json()["reason"]) == (404, "hold_unknown")
    for caller in (stranger.channel, sibling):
        foreign = await caller.delete("/holds/q1")
        assert (foreign.status_code, foreign.json()["reason"]) == (404, "hold_unknown")
        assert foreign.json()["detail"] == unknown.json()["detail"]
    assert (await stranger.holds())["total"] == 0
    assert ids(await strict.holds(state="open")) == ["q1"]


async def test_overruns_are_shown_newest_first_with_their_cause(gateway: Gateway) -> None:
    strict, stranger = await new_strict(gateway, "1"), await new_strict(gateway)
    assert (await strict.ask("q1", "0.5"))["allowed"]
    events = [started("1")]
    for request_id, usd in (("q1", "3"), ("q2", "2")):
        cost = {"amount": usd, "currency": "USD"}
        events.append(usage(request_id, "1", provider_cost=cost))
        await strict.say(*events)
        events = []
        await answered(strict.admin, "/overruns", total=1 if request_id == "q1" else 2)
    page = (await strict.admin.get("/overruns")).json()
    newest, oldest = page["items"]
    assert (oldest["cause"], oldest["request_id"], oldest["amount_usd"]) == (
        "actual_above_hold",
        "q1",
        "2.000000",
    )
    assert (newest["cause"], newest["request_id"], newest["amount_usd"]) == (
        "unheld_usage",
        "q2",
        "2.000000",
    )
    assert (newest["scope"], newest["scope_id"]) == ("organization", strict.org)
    assert (newest["limit_usd"], newest["spent_usd"], newest["held_usd"]) == (
        "1.000000",
        "5.000000",
        "0.000000",
    )
    second = (await strict.admin.get("/overruns", params={"skip": 1, "limit": 1})).json()
    assert (second["items"], second["total"]) == ([oldest], 2)
    (cap,) = (await strict.admin.get("/caps")).json()["items"]
    assert (cap["overrun_usd"], cap["remaining_usd"]) == ("4.000000", "0.000000")
    assert (await stranger.admin.get("/overruns")).json() == {"items": [], "total": 0}


async def test_who_may_read_holds_may_not_let_go_of_them_and_the_other_way_round(
    gateway: Gateway,
) -> None:
    strict = await new_strict(gateway)
    assert (await strict.ask("q1", "1"))["allowed"]
    for path in ("/holds", "/overruns"):
        refused = await strict.channel.get(path)
        assert (refused.status_code, refused.json()["code"]) == (403, "AUTHORIZATION_ERROR")
    refused = await strict.admin.delete("/holds/q1")
    assert (refused.status_code, refused.json()["code"]) == (403, "AUTHORIZATION_ERROR")
    keyless = gateway.caller(await gateway.new_key(strict.org, "runs:view"))
    assert (await keyless.get("/holds")).json()["total"] == 1
    assert (await keyless.delete("/holds/q1")).status_code == 403
    assert (await gateway.caller(None).get("/holds")).status_code == 401
    assert ids(await strict.holds(state="open")) == ["q1"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/holds?state=closed", "invalid_field"),
        ("/holds?state=open&state=voided", "repeated_parameter"),
        ("/holds?limit=0", "invalid_field"),
        ("/holds?limit=101", "invalid_field"),
        ("/holds?skip=-1", "invalid_field"),
        ("/holds?run_id=1", "unknown_parameter"),
        ("/overruns?limit=many", "invalid_field"),
        ("/overruns?cause=corrected", "unknown_parameter"),
    ],
)
async def test_what_is_out_of_type_is_named(gateway: Gateway, path: str, reason: str) -> None:
    _, admin = await gateway.new_admin()
    answer = await admin.get(path)
    assert (answer.status_code, answer.json()["reason"]) == (422, reason), answer.text


async def test_an_id_that_cannot_be_one_is_unknown(gateway: Gateway) -> None:
    strict = await new_strict(gateway)
    for wrong in ("%00", "a%20b", "x" * 200):
        answer = await strict.void(wrong)
        assert answer.status_code == 404, answer.text
