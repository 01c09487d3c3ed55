"""A live agent with a small budget, stopped by the ledger with a sentence that says why.

The one thing not to break: only the model is simulated. The questions go through the typed client
over HTTP, and the answers, costs and the refusal are the ledger's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from uuid_utils.compat import uuid7

from contracts.channel import Tokens
from contracts.errors import AlreadyExists
from contracts.ledger import Authorize
from contracts.types import Surface
from services.channels.client import Channel
from services.channels.errors import BudgetRefused, RiendaUnreachable
from services.channels.over_http import HttpTransport
from services.channels.run import RunSession
from services.host.errors import DemonstrationStuck
from services.host.first_run.api import Api
from services.host.first_run.seeding import Admin

AGENT: Final = "demo-agent"
AGENT_NAME: Final = "Demo"
MONTHLY_USD: Final = "0.05"
"""Four of the simulated requests: three fit, the fourth passes it, the fifth is refused."""
MODEL: Final = "claude-haiku-4-5"
PROVIDER: Final = "anthropic"
REQUESTS_MAX: Final = 20
"""Somebody may have raised the agent's cap: the demonstration then stops by itself."""
TRIES_MAX: Final = 3
WAIT_S: Final = 90.0
"""A report that a killed process of the ledger held is delivered again after 30 s."""
POLL_S: Final = 0.05
CAP_PAGES_MAX: Final = 20
_CAP_FIELDS: Final = ("limit", "spent", "remaining")


@dataclass(frozen=True, slots=True)
class Cap:
    """The agent's cap of this month as `GET /caps` shows it, in USD."""

    limit_usd: Decimal
    spent_usd: Decimal
    remaining_usd: Decimal


@dataclass(frozen=True, slots=True)
class Allowed:
    """One request that was allowed, sent to the simulated model and billed."""

    number: int
    prompt: str
    remaining_usd: Decimal
    """Before the request."""
    tokens: Tokens
    cost_usd: Decimal


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """Stands in for a provider: no network, the same counts every time."""

    tokens: Tokens
    prompts: tuple[str, ...] = (
        "Read last night's tide log.",
        "Compare it with the forecast.",
        "Find out why the gauge was late.",
        "Write a note for the harbour office.",
        "Translate the note.",
    )

    def prompt(self, number: int) -> str:
        """What the agent asks in its n-th request, counted from 1."""
        return self.prompts[(number - 1) % len(self.prompts)]

    async def answer(self, _: str) -> Tokens:
        """Return what a provider would report for the request."""
        return self.tokens


SIMULATED: Final = SimulatedModel(Tokens(input=4_200, output=1_700))


class Demonstration:
    """Drives the agent for one organization; `tell` hears of every request that was billed."""

    def __init__(
        self,
        admin: Admin,
        api: Api,
        *,
        tell: Callable[[Allowed], None],
        model: SimulatedModel = SIMULATED,
    ) -> None:
        """`api` speaks with the admin's key."""
        self._admin = admin
        self._api = api
        self._tell = tell
        self._model = model

    async def publish_agent(self) -> Cap | None:
        """Make the agent where it is missing, and return its cap once the ledger has applied it.

        None when somebody archived it or took its cap away: there is nothing to show then.

        Raises:
            contracts.errors.Fault: the gateway refuses or does not answer.
            DemonstrationStuck: the ledger does not apply the cap.
        """
        spec = {"agent_id": AGENT, "name": AGENT_NAME, "budget": {"monthly_usd": MONTHLY_USD}}
        try:
            agent = await self._api.post("/agents", spec)
        except AlreadyExists:
            agent = await self._api.get(f"/agents/{AGENT}")
        if agent["archived_at"] is not None or agent["budget_monthly_usd"] is None:
            return None
        limit_usd = Decimal(agent["budget_monthly_usd"])
        return await self._cap_when(lambda cap: cap.limit_usd == limit_usd)

    async def run(self, cap: Cap) -> str | None:
        """Ask and send until the ledger refuses, and return its sentence.

        Where the cap is used up already, the first question is refused and nothing is recorded.
        None when a cap that somebody raised is not reached in `REQUESTS_MAX` requests.

        Raises:
            ChannelError, contracts.errors.Fault: nobody answers, or the key is refused.
            DemonstrationStuck: the ledger does not count what was reported.
        """
        for _ in range(TRIES_MAX - 1):
            try:
                return await self._try(cap)
            except RiendaUnreachable:
                # An answer has one second (design.md 2); rooms that just started may need more.
                cap = await self._cap_when(lambda _: True)
        return await self._try(cap)

    async def _try(self, cap: Cap) -> str | None:
        transport = HttpTransport(self._admin.base_url, self._admin.api_key)
        async with Channel(transport) as channel:
            if cap.remaining_usd <= 0:
                return await self._ask_once(channel)
            try:
                async with channel.run(
                    run_id=f"demo-{uuid7()}",
                    agent_id=AGENT,
                    user_id=None,
                    started_by_user_id=None,
                    surface=Surface.CLI,
                    model=MODEL,
                    provider=PROVIDER,
                ) as run:
                    for number in range(1, REQUESTS_MAX + 1):
                        cap = await self._send(run, cap, number)
            except BudgetRefused as refused:
                return str(refused)
        return None

    async def _send(self, run: RunSession, cap: Cap, number: int) -> Cap:
        """Ask, send, report; return the cap with the request counted."""
        prompt = self._model.prompt(number)
        async with run.request(model=MODEL, provider=PROVIDER) as request:
            tokens = await self._model.answer(prompt)
            request.report(tokens)
        billed = await self._cap_when(lambda now: now.spent_usd > cap.spent_usd)
        cost_usd = billed.spent_usd - cap.spent_usd
        self._tell(Allowed(number, prompt, cap.remaining_usd, tokens, cost_usd))
        return billed

    async def _ask_once(self, channel: Channel) -> str | None:
        """Put one question in the name of the run that used the cap up; no new run is made."""
        run_id = await self._newest_run()
        answer = await channel.ask(
            Authorize(
                request_id=str(uuid7()),
                run_id=run_id,
                root_run_id=run_id,
                agent_id=AGENT,
                root_agent_id=AGENT,
                user_id=None,
                started_by_user_id=None,
                model=MODEL,
                provider=PROVIDER,
            )
        )
        return None if answer is None or answer.allowed else answer.sentence

    async def _newest_run(self) -> str | None:
        """The agent's newest run; a used-up cap has one."""
        async for row in self._api.rows("/runs", pages_max=1, agent_id=AGENT):
            return str(row["id"])
        return None

    async def _cap_when(self, holds: Callable[[Cap], bool]) -> Cap:
        """Return the agent's cap as soon as `holds` says so of it."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + WAIT_S
        while loop.time() < ends_at:
            async for row in self._api.rows("/caps", pages_max=CAP_PAGES_MAX):
                if (row["scope"], row["id"]) == ("agent", AGENT):
                    cap = Cap(*(Decimal(row[f"{name}_usd"]) for name in _CAP_FIELDS))
                    if holds(cap):
                        return cap
            await asyncio.sleep(POLL_S)
        raise DemonstrationStuck(AGENT, WAIT_S)
