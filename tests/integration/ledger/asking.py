"""Questions of an organization in strict mode, and what it holds."""

from __future__ import annotations

from contracts.channel import ProviderCost
from contracts.envelope import Actor
from contracts.holds import HoldPage, HoldVoided, ListHolds, ListOverruns, OverrunPage, VoidHold
from contracts.ledger import Authorize
from contracts.subjects import Asked
from contracts.types import CapMode
from shared.questions import Question
from tests.factories import (
    Feed,
    organization,
    started,
    usage,
)
from tests.ledger_room import LedgerRoom

USD = 10**9


def ask(request_id: str = "a1", cost: int | None = USD, **changes) -> Authorize:
    values = {
        "request_id": request_id,
        "run_id": "r1",
        "root_run_id": "r1",
        "agent_id": "coder",
        "root_agent_id": "coder",
        "user_id": "user-1",
        "started_by_user_id": "user-1",
        "model": "claude-opus-4-6",
        "provider": "anthropic",
        "cost_nanousd_max": cost,
    }
    return Authorize(**(values | changes))


def paid(request_id: str, usd: str, run_id: str = "r1", **changes):
    cost = ProviderCost(amount=usd, currency="USD")
    return usage(request_id, run_id, provider_cost=cost, **changes)


async def know(room: LedgerRoom, feed: Feed, *, org_cap: int | None = 10 * USD, **changes) -> None:
    await room.know(feed)
    strict = organization(
        entity_revision=2,
        monthly_budget_nanousd=org_cap,
        cap_mode=CapMode.STRICT,
        **changes,
    )
    await room.hear([feed.directory(strict, "acme"), feed.channel(started("r1"))])


async def void(room: LedgerRoom, request_id: str, channel_id: str = "c1") -> HoldVoided:
    asked = Question(VoidHold(request_id=request_id), Asked("acme", "channel", channel_id), None)
    return await room.desk.answer_void_hold(asked)


async def held(room: LedgerRoom, **asked) -> HoldPage:
    question = Question(ListHolds(**asked), Asked("acme", "room", "gateway"), None)
    return await room.desk.answer_list_holds(question)


async def overruns(room: LedgerRoom) -> OverrunPage:
    question = Question(ListOverruns(), Asked("acme", "room", "gateway"), Actor(pseudonym="p"))
    return await room.desk.answer_list_overruns(question)


async def handle_until(room: LedgerRoom, at) -> None:
    """Let the ledger have handled everything that was said before a moment."""
    await room.rows(
        "INSERT INTO watermark SELECT s, $1, $1 FROM unnest(ARRAY['CHANNEL', 'PULSE']) AS s "
        "ON CONFLICT (stream) DO UPDATE SET handled_until = $1",
        at,
    )
    room.clock.at = at
