"""Askers of an organization in strict mode, who report, report too much, give up, or vanish."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import asyncpg
import httpx

from contracts.channel import ProviderCost, Tokens
from contracts.errors import Fault
from contracts.types import Surface
from services.channels.client import Channel
from services.channels.errors import BudgetRefused, ChannelError
from services.channels.over_http import HttpTransport
from services.channels.request import RequestGuard
from services.channels.run import RunSession
from tests.admission_checker import Checker
from tests.servers import DEPLOYMENT_KEY
from tests.simulation.world import PARTS, World

EARLIER_S = 3_600
"""The ledger's clock is behind, so that no hold expires before it is put right: then all do."""
AGENTS = ("coder", "helper", "reader")
TOKENS = Tokens(input=1_000, output=200)
NANOUSD_PER_USD = 10**9


class Earlier:
    """The clock of whoever lives with this ledger."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def now(self) -> datetime:
        return datetime.now(UTC) - timedelta(seconds=self.seconds)


class SpendingWorld(World):
    """Two processes answer; caps, modes, processes and servers change while everybody asks."""

    parts = (*PARTS, ("ledger", "answer"))
    environment = MappingProxyType(
        {
            "RIENDA_LEDGER_REAP_EVERY_S": "0.2",
            "RIENDA_LEDGER_STALE_RUN_REAPED_AFTER_SECONDS": "0",
        }
    )
    outcomes: Counter[str]

    async def begin(self, stack: AsyncExitStack) -> None:
        """Start everything, with an organization in strict mode whose agents have caps."""
        self.outcomes = Counter()
        await self.start(stack)
        self.earlier = Earlier(EARLIER_S)
        if self.earlier.now().month != (self.earlier.now() + timedelta(minutes=30)).month:
            self.earlier.seconds *= 2
        self.step_clock(-self.earlier.seconds)
        self.checker = Checker(self.database.url("ledger"), f"{self.earlier.now():%Y-%m}")
        await self.change_org(cap_mode="strict", monthly_budget_usd="2.00")
        for agent_id in AGENTS:
            body = {"agent_id": agent_id, "name": agent_id, "budget": {"monthly_usd": "3.00"}}
            await self._post("/agents", body, {"X-Organization-Id": "acme"})

    async def change_org(self, **fields: Any) -> None:
        """PATCH the organization, again and again until somebody takes it."""
        while True:
            try:
                answer = await self.http.patch(
                    f"{self.url}/orgs/acme",
                    json=fields,
                    headers={"Authorization": f"Bearer {DEPLOYMENT_KEY}"},
                )
            except httpx.HTTPError:
                continue
            if answer.is_success:
                return
            assert answer.status_code in (500, 503), answer.text
            await asyncio.sleep(0.1)

    async def change_cap(self) -> None:
        """Another cap: below what is spent and held, or with some room above it."""
        figures = await self.checker.look()
        used = max(
            (one.spent + one.held for one in figures if one.scope == "organization"), default=0
        )
        cents = used // 10**7 + self.chance.randint(-40, 250)
        await self.change_org(monthly_budget_usd=f"{max(cents, 1) / 100:.2f}")

    async def switch_modes(self) -> None:
        """There and back, with everything in flight."""
        await self.change_org(cap_mode="recorded")
        await asyncio.sleep(0.2 * self.chance.random())
        await self.change_org(cap_mode="strict")

    async def kill_a_ledger(self) -> None:
        """SIGKILL a process of the ledger and start it again."""
        process = self.chance.choice([p for p in self.processes if p.name.startswith("ledger")])
        await process.kill()
        process.launch()

    async def ask_for_ever(self, asker: int, channel: Channel, stop: asyncio.Event) -> None:
        """Run after run, until told to stop."""
        number = 0
        while not stop.is_set():
            number += 1
            run_id = f"s{asker}-{number}"
            try:
                async with channel.run(
                    run_id=run_id,
                    agent_id=self.chance.choice(AGENTS),
                    user_id="ada",
                    started_by_user_id="ada",
                    surface=Surface.API,
                    budget_nanousd=NANOUSD_PER_USD // 4,
                ) as run:
                    await self._work(run, run_id, stop)
            except (ChannelError, Fault) as error:
                self.outcomes[type(error).__name__] += 1
                await asyncio.sleep(0.05)

    async def _work(self, run: RunSession, run_id: str, stop: asyncio.Event) -> None:
        for _ in range(3):
            if not stop.is_set():
                await self._one_request(run)
        if self.chance.random() < 0.3 and not stop.is_set():
            async with run.delegate(
                run_id=f"{run_id}-d", agent_id=self.chance.choice(AGENTS), delegation_id="d1"
            ) as child:
                await self._one_request(child)

    async def _one_request(self, run: RunSession) -> None:
        most = self.chance.randint(1, 60) * 10**6
        if self.chance.random() < 0.2:
            request = run.request(model="gpt-5", provider="openai", input_tokens_max=2_000)
        else:
            request = run.request(
                model="gpt-5", provider="openai", cost_nanousd_max=most, request_timeout_s=30
            )
        try:
            async with request:
                await asyncio.sleep(0.02 * self.chance.random())
                self._end(request)
        except BudgetRefused:
            self.outcomes["refused"] += 1

    def _end(self, request: RequestGuard) -> None:
        answer = request.authorization
        fate = self.chance.random()
        if fate < 0.08:
            self.outcomes["unsent"] += 1
            request.not_sent()
        elif fate < 0.2:
            # Killed with its provider's answer in its hands: nobody hears of it again.
            self.outcomes["vanished"] += 1
        else:
            held = (answer.held_nanousd if answer else None) or 10**6
            share = 10.0 if fate < 0.23 else self.chance.random()
            self.outcomes["reported"] += 1
            cost = f"{int(held * share) / NANOUSD_PER_USD:.9f}"
            request.report(TOKENS, provider_cost=ProviderCost(amount=cost, currency="USD"))

    def open_channel(self, channel_id: str) -> Channel:
        """The typed client of a channel, by the ledger's clock."""
        transport = HttpTransport(self.url.removesuffix("/api/v1"), self.keys[channel_id])
        return Channel(transport, clock=self.earlier, spool_path=self.spool_of(channel_id))

    def spool_of(self, channel_id: str) -> Path:
        """Where a channel keeps what nobody took; its next life sends it."""
        return Path(self.servers.directory.path) / f"{self.database.name}-{channel_id}.spool"

    async def send_what_was_kept(self) -> bool:
        """Open each channel once more; whether nothing is left that nobody took."""
        for channel_id in self.keys:
            async with self.open_channel(channel_id):
                pass
        spools = [self.spool_of(channel_id) for channel_id in self.keys]
        return not any(spool.exists() and spool.stat().st_size for spool in spools)

    async def left_over(self) -> dict[str, int]:
        """What is still open, held, unfolded, or waits to be handled."""
        connection = await asyncpg.connect(self.database.url("ledger"), ssl=False)
        try:
            row = await connection.fetchrow(
                """
                SELECT (SELECT count(*) FROM ledger.hold WHERE state = 'open') AS open,
                    (SELECT count(*) FROM ledger.cap_state WHERE held_nanousd <> 0) AS held,
                    (SELECT count(*) FROM ledger.settlement) AS unfolded,
                    (SELECT count(*) FROM ledger.retry) AS retries,
                    (SELECT count(*) FROM ledger.outbox WHERE published_at IS NULL) AS unsaid
                """
            )
            return dict(row)
        finally:
            await connection.close()

    async def states(self) -> dict[str, int]:
        """How many holds ended how, and how many overruns there are for which cause."""
        connection = await asyncpg.connect(self.database.url("ledger"), ssl=False)
        try:
            rows = await connection.fetch(
                """
                SELECT state AS name, count(*) FROM ledger.hold GROUP BY 1
                UNION ALL SELECT cause, count(*) FROM ledger.overrun GROUP BY 1
                """
            )
            return {row["name"]: row["count"] for row in rows}
        finally:
            await connection.close()
