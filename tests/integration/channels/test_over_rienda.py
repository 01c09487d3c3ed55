"""Importer and typed client against a real gateway, ledger and bus: the bill, and a refusal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.channel import ParkedCall, Tokens
from contracts.types import RunStatus, Surface
from services.channels.client import Channel
from services.channels.errors import BudgetRefused, EventRefused
from services.channels.over_http import HttpTransport
from services.channels.over_nats import NatsTransport
from services.channels.run import RunContext
from services.channels.transcripts.discovery import find_sessions
from services.channels.transcripts.importing import Summary, import_sessions
from services.channels.transcripts.saying import Attribution
from services.channels.transport import Transport
from shared.clock import FixedClock
from tests.servers import DEPLOYMENT_KEY, Servers

pytestmark = pytest.mark.integration
WAIT_S = 60.0
SAMPLES = Path(__file__).parents[3] / "samples" / "transcripts"
SAMPLES_USD = "0.685684056"
"""665 684 056 nano-dollars of tokens (batch prices end in halves of one), two web searches."""
SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "transcripts"


class Rienda:
    """A running gateway with the organization that this module works in."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.org = "channels"
        self.admin = httpx.AsyncClient(
            base_url=f"{url}/api/v1",
            headers={"Authorization": f"Bearer {DEPLOYMENT_KEY}"},
            timeout=30,
        )

    async def post(self, path: str, **body: Any) -> Any:
        headers = {} if path == "/orgs" else {"X-Organization-Id": self.org}
        answer = await self.admin.post(path, json=body, headers=headers)
        assert answer.is_success, answer.text
        return answer.json()

    async def new_org(self, name: str, **fields: Any) -> None:
        self.org = name
        await self.post("/orgs", org_id=name, name=name, **fields)
        # Until the ledger has heard of it, every question is refused: organization_unknown.
        async with asyncio.timeout(WAIT_S):
            while not (await self.get("/caps"))["items"]:
                await asyncio.sleep(0.1)

    async def new_channel(self, channel_id: str, *rights: str) -> Any:
        return await self.post(
            "/channels", channel_id=channel_id, name=channel_id, rights=list(rights)
        )

    async def get(self, path: str, **query: Any) -> Any:
        key = await self.post("/api-keys", name="reader", permissions=["runs:view"])
        headers = {"Authorization": f"Bearer {key['api_key']}"}
        answer = await self.admin.get(path, params=query, headers=headers)
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture(scope="module")
async def rienda(servers: Servers) -> AsyncIterator[Rienda]:
    async with AsyncExitStack() as stack:
        database = await servers.new_database("gateway", "ledger")
        stack.push_async_callback(servers.drop_database, database)
        await servers.fresh_streams()
        bootstrap = await servers.start_bootstrap()
        stack.push_async_callback(bootstrap.kill)
        parts = (("gateway", "http"), ("gateway", "relay"), ("ledger", "all"))
        processes = await asyncio.gather(
            *(servers.start_room(room, part, database) for room, part in parts)
        )
        for process in processes:
            stack.push_async_callback(process.kill)
        running = Rienda(processes[0].url)
        stack.push_async_callback(running.admin.aclose)
        yield running


async def run_import(
    rienda: Rienda, key: str, folder: Path, project_id: str | None = None
) -> Summary:
    whose = Attribution(user_id="user-1", project_id=project_id)
    transport = HttpTransport(rienda.url, key)
    try:
        found = find_sessions([folder])
        return await import_sessions(found, transport, attribution=whose)
    finally:
        await transport.close()


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no real transcripts in {SHARED}")
async def test_the_bill_of_the_real_sessions_is_exact(rienda: Rienda) -> None:
    await rienda.new_org("real-sessions")
    channel = await rienda.new_channel("importer", "backfill")
    first = await run_import(rienda, channel["api_key"], SHARED)
    assert (first.runs, first.delegated_runs, first.requests) == (14, 3, 482)
    assert (first.accepted, first.refused.items) == (516, [])
    spend = await spend_of(rienda, "34.89447545")
    assert sum(Decimal(row["cost_usd"]) for row in spend["by_agent"]) == Decimal("34.89447545")
    for breakdown in ("by_provider", "by_key", "by_day"):
        lines = [Decimal(row["cost_usd"]) for row in spend[breakdown]]
        assert sum(lines) == Decimal("34.89447545"), breakdown
    runs = (await rienda.get("/runs", limit=100))["items"]
    assert len(runs) == 14
    entered = [await entries_of(rienda, run["id"]) for run in runs]
    assert sum(map(len, entered)) >= 482
    assert sum(
        (Decimal(entry["cost_usd"]) for entries in entered for entry in entries), Decimal()
    ) == Decimal("34.894475450")
    assert sum(Decimal(run["cost_usd"]) for run in runs) == Decimal("34.89447545")
    assert sum(run["request_count"] for run in runs) == 482
    assert sum(run["delegation_count"] for run in runs) == 3
    partial = [run["id"] for run in runs if run["cost_is_partial"]]
    assert [run.partition(":")[0] for run in partial] == ["491e126e-1e71-469c-ade2-fcc8af567c74"]
    second = await run_import(rienda, channel["api_key"], SHARED)
    assert (second.accepted, second.duplicates, second.refused.count) == (0, 516, 0)
    assert (await spend_of(rienda, "34.89447545"))["run_count"] == 14


async def test_the_history_shows_and_filters_by_the_project_of_an_import(rienda: Rienda) -> None:
    await rienda.new_org("projects")
    channel = await rienda.new_channel("importer", "backfill")
    await run_import(rienda, channel["api_key"], SAMPLES, "first")
    await spend_of(rienda, SAMPLES_USD)
    everything = await rienda.get("/runs", limit=100, include_delegations=True)
    of_project = await rienda.get("/runs", limit=100, include_delegations=True, project_id="first")
    assert 0 < of_project["total"] == len(of_project["items"]) == everything["total"]
    assert {run["project_id"] for run in of_project["items"]} == {"first"}
    assert (await rienda.get("/runs", project_id="second"))["items"] == []


async def entries_of(rienda: Rienda, run_id: str) -> list[Any]:
    """Every entry of a run's tree, page by page."""
    found: list[Any] = []
    cursor = None
    while True:
        query = {"limit": 100} | ({"cursor": cursor} if cursor else {})
        page = await rienda.get(f"/runs/{run_id}/entries", **query)
        found += page["items"]
        cursor = page["cursor"]
        if cursor is None:
            return found


async def spend_of(rienda: Rienda, cost_usd: str) -> Any:
    """`/spend` once it shows that sum."""
    spend: Any = None
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                spend = await rienda.get("/spend", **{"from": "2026-01-01T00:00:00Z"})
                if Decimal(spend["cost_usd"]) == Decimal(cost_usd):
                    return spend
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"/spend shows {spend}")


def transport_of(kind: str, rienda: Rienda, channel: Any) -> Transport:
    if kind == "http":
        return HttpTransport(rienda.url, channel["api_key"])
    credential = channel["nats"]
    return NatsTransport(
        credential["url"],
        org=rienda.org,
        channel_id=channel["channel_id"],
        nkey_seed=credential["nkey_seed"],
    )


@pytest.mark.parametrize("kind", ["http", "nats"])
async def test_a_used_up_budget_refuses_the_next_request(kind: str, rienda: Rienda) -> None:
    await rienda.new_org(f"small-{kind}")
    channel = await rienda.new_channel("c1")
    context: RunContext = {
        "run_id": "r1",
        "agent_id": "a1",
        "user_id": "u1",
        "started_by_user_id": "u1",
        "surface": Surface.API,
        "budget_nanousd": 1_000_000,
    }
    opened = Channel(transport_of(kind, rienda, channel))
    with pytest.raises(BudgetRefused) as caught:  # noqa: PT012 - the block is what is left
        async with opened, opened.run(**context) as run:
            async with run.request(model="claude-opus-5-5", provider="anthropic") as request:
                request.report(Tokens(input=1_000, output=100))
            await spend_of(rienda, "0.006")
            async with run.request(model="claude-opus-5-5", provider="anthropic"):
                pytest.fail("the request ran beyond the run's budget")
    refusal = caught.value.authorization.refusal
    assert refusal is not None
    assert (refusal.scope, refusal.limit_nanousd, refusal.spent_nanousd) == (
        "run",
        1_000_000,
        6_000_000,
    )
    async with asyncio.timeout(WAIT_S):
        while (run_row := await rienda.get("/runs/r1"))["status"] == "running":
            await asyncio.sleep(0.1)
    assert run_row["status"] == RunStatus.BUDGET_EXCEEDED
    assert run_row["error"] == caught.value.authorization.sentence


@pytest.mark.parametrize("kind", ["http", "nats"])
async def test_a_parked_run_goes_on_in_another_process(kind: str, rienda: Rienda) -> None:
    await rienda.new_org(f"parks-{kind}")
    channel = await rienda.new_channel("c1")
    context: RunContext = {
        "run_id": "r1",
        "agent_id": "a1",
        "user_id": "u1",
        "started_by_user_id": "u1",
        "surface": Surface.API,
    }
    call = ParkedCall(call_id="c1", tool_id="mail", tool_name="send_mail", arguments="{}")
    async with Channel(transport_of(kind, rienda, channel)) as opened, opened.run(**context) as run:
        await run.park([call], state_ref="kept")
    row = await run_of(rienda, "r1", RunStatus.AWAITING_APPROVAL)
    assert row["parked_at"] is not None
    async with (
        Channel(transport_of(kind, rienda, channel)) as other,
        other.resume_run("claim-1", **context) as run,
    ):
        row = await run_of(rienda, "r1", RunStatus.RUNNING)
        assert row["parked_at"] is None
        async with run.request(model="claude-opus-5-5", provider="anthropic") as request:
            request.report(Tokens(input=1_000, output=100))
    row = await run_of(rienda, "r1", RunStatus.COMPLETED)
    assert row["provisional"] is False
    await spend_of(rienda, "0.006")


async def run_of(rienda: Rienda, run_id: str, status: RunStatus) -> Any:
    """The run once it stands there."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(AssertionError):
                row = await rienda.get(f"/runs/{run_id}")
                if row["status"] == status:
                    return row
            await asyncio.sleep(0.1)


async def test_channels_hear_that_a_cap_stopped_a_run_over_the_bus_and_by_the_feed(
    rienda: Rienda,
) -> None:
    await rienda.new_org("stopped", monthly_budget_usd="0.005")
    asking, hearing = [await rienda.new_channel(name) for name in ("asking", "hearing")]
    transport = transport_of("nats", rienda, hearing)
    assert isinstance(transport, NatsTransport)
    heard = transport.listen()
    waiting = asyncio.ensure_future(anext(heard))
    context: RunContext = {
        "run_id": "r1",
        "agent_id": "a1",
        "user_id": "u1",
        "started_by_user_id": "u1",
        "surface": Surface.API,
    }
    with pytest.raises(BudgetRefused) as caught:  # noqa: PT012 - the block is what is left
        async with (
            Channel(transport_of("http", rienda, asking)) as opened,
            opened.run(**context) as run,
        ):
            async with run.request(model="claude-opus-5-5", provider="anthropic") as request:
                request.report(Tokens(input=1_000, output=100))
            await spend_of(rienda, "0.006")
            for _ in range(3):
                with contextlib.suppress(BudgetRefused):
                    async with run.request(model="claude-opus-5-5", provider="anthropic"):
                        pytest.fail("the request ran beyond the organization's budget")
            async with run.request(model="claude-opus-5-5", provider="anthropic"):
                pytest.fail("the request ran beyond the organization's budget")
    refusal = caught.value.authorization.refusal
    assert refusal is not None
    assert refusal.scope == "organization"
    async with asyncio.timeout(WAIT_S):
        event = await waiting
    assert event.type == "rienda.cap_stopped.v1"
    said = event.data
    assert (said.scope, said.id, said.run_id) == ("organization", "stopped", "r1")
    assert (said.limit_nanousd, said.spent_nanousd) == (5_000_000, 6_000_000)
    headers = {"Authorization": f"Bearer {hearing['api_key']}"}
    answer = await rienda.admin.get("/feed", params={"wait_s": 20}, headers=headers)
    (item,) = answer.json()["items"]
    assert (item["id"], item["type"]) == (event.id, event.type)
    assert item["data"]["spent_nanousd"] == 6_000_000
    await transport.close()
    async with asyncio.timeout(WAIT_S):
        assert [event async for event in heard] == []


async def test_a_clock_that_runs_ahead_is_told_so(rienda: Rienda) -> None:
    await rienda.new_org("clocks")
    channel = await rienda.new_channel("c1")
    context: RunContext = {
        "run_id": "r1",
        "agent_id": "a1",
        "user_id": None,
        "started_by_user_id": None,
        "surface": Surface.API,
    }
    ahead = FixedClock(datetime(2999, 1, 1, tzinfo=UTC))
    opened = Channel(HttpTransport(rienda.url, channel["api_key"]), clock=ahead)
    async with opened:
        with pytest.raises(EventRefused, match="time_in_future"):
            await opened.run(**context).__aenter__()


async def test_the_samples_have_their_exact_bill(rienda: Rienda) -> None:
    await rienda.new_org("samples")
    channel = await rienda.new_channel("importer", "backfill")
    summary = await run_import(rienda, channel["api_key"], SAMPLES)
    assert summary.refused.items == []
    spend = await spend_of(rienda, SAMPLES_USD)
    assert spend["cost_is_partial"]
    runs = (await rienda.get("/runs", limit=100))["items"]
    assert len(runs) == 13
    assert sum(Decimal(run["cost_usd"]) for run in runs) == Decimal(SAMPLES_USD)


@pytest.mark.parametrize("kind", ["http", "nats"])
async def test_ingestion_is_paid_for_until_the_organizations_cap(kind: str, rienda: Rienda) -> None:
    await rienda.new_org(f"ingests-{kind}", monthly_budget_usd="0.02")
    channel = await rienda.new_channel("c1")
    opened = Channel(transport_of(kind, rienda, channel))
    with pytest.raises(BudgetRefused) as caught:  # noqa: PT012 - the block is what is left
        async with opened:
            async with opened.ingest(
                ingestion_id="i1", model="text-embedding-3-small", provider="openai"
            ) as request:
                request.report(Tokens(input=1_000_000))
            spend = await spend_of(rienda, "0.02")
            async with opened.ingest(ingestion_id="i2", model="text-embedding-3-small"):
                pytest.fail("the request ran beyond the organization's cap")
    assert (spend["ingestion"]["request_count"], spend["by_agent"]) == (1, [])
    refusal = caught.value.authorization.refusal
    assert refusal is not None
    assert (refusal.scope, refusal.spent_nanousd) == ("organization", 20_000_000)
