"""`/holds` and `/overruns`: money held for requests under way, and what exceeded caps (http.md)."""

from __future__ import annotations

from typing import Any

from contracts import holds
from contracts.holds import HoldState, OverrunCause
from contracts.ledger import CapScope, Month
from contracts.types import AgentId, Id, Instant, ModelName, Wire
from services.gateway.domain.permissions import CHANNELS_PUBLISH, RUNS_VIEW
from services.gateway.http.asking import ask_ledger
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import NoBody, NoQuery, Page, PageQuery, Usd


class HoldsQuery(PageQuery):
    """A page of holds, of one state or of all."""

    state: HoldState | None = None


class HoldCap(Wire):
    """A cap that a hold counts against; a run's own has no month."""

    scope: CapScope
    id: AgentId
    month: Month | None


class Hold(Wire):
    """What is held for one request; `open` ones count against their caps."""

    hold_id: Id
    request_id: Id
    run_id: Id | None
    model: ModelName
    held_usd: Usd
    output_tokens_max: int | None
    """What was granted, where the question named no limit."""
    state: HoldState
    held_at: Instant
    expires_at: Instant
    closed_at: Instant | None
    actual_usd: Usd | None
    """What the first report of the request cost."""
    caps: tuple[HoldCap, ...]


class VoidedHold(Wire):
    """A hold after it was let go; `expired` where its time had passed before."""

    hold_id: Id
    request_id: Id
    state: HoldState
    held_usd: Usd


class Overrun(Wire):
    """One excess over one cap: spent + held <= limit + the sum of these, at every moment."""

    id: Id
    scope: CapScope
    scope_id: AgentId
    name: str
    month: Month | None
    cause: OverrunCause
    amount_usd: Usd
    limit_usd: Usd
    spent_usd: Usd
    held_usd: Usd
    request_id: Id | None
    """The request that exceeded most, where requests did."""
    noted_at: Instant


HoldPage = Page[Hold]
OverrunPage = Page[Overrun]


def _in_usd(row: Wire) -> dict[str, Any]:
    return {name.replace("_nanousd", "_usd"): value for name, value in row}


@route(
    "GET",
    "/holds",
    Contract(
        summary="List what is held for requests under way",
        needs=(RUNS_VIEW,),
        query=HoldsQuery,
        body=NoBody,
        answer=HoldPage,
    ),
)
async def list_holds(call: Call[HoldsQuery, NoBody]) -> HoldPage:
    """Newest first; closed ones stay, with what became of them."""
    question = holds.ListHolds(state=call.query.state, skip=call.query.skip, limit=call.query.limit)
    page = await ask_ledger(call, "list_holds", question, answer=holds.HoldPage)
    shown = (
        Hold(**{**_in_usd(row), "caps": tuple(HoldCap(**dict(cap)) for cap in row.caps)})
        for row in page.items
    )
    return HoldPage(items=tuple(shown), total=page.total)


@route(
    "DELETE",
    "/holds/{hold_id:str}",
    Contract(
        summary="Let go of what is held for a request that was not sent",
        needs=(CHANNELS_PUBLISH,),
        query=NoQuery,
        body=NoBody,
        answer=VoidedHold,
        refusals=(409,),
    ),
)
async def void_hold(call: Call[NoQuery, NoBody]) -> VoidedHold:
    """For the channel that asked. Idempotent; 409 where the request was reported."""
    call.caller.require_publisher()
    question = holds.VoidHold(request_id=call.path_id("hold_id"))
    voided = await ask_ledger(call, "void_hold", question, answer=holds.HoldVoided)
    return VoidedHold(**_in_usd(voided))


@route(
    "GET",
    "/overruns",
    Contract(
        summary="List by how much caps were exceeded, and why",
        needs=(RUNS_VIEW,),
        query=PageQuery,
        body=NoBody,
        answer=OverrunPage,
    ),
)
async def list_overruns(call: Call[PageQuery, NoBody]) -> OverrunPage:
    """Newest first. Strict mode only: in recorded mode a cap is a ceiling on what is recorded."""
    question = holds.ListOverruns(skip=call.query.skip, limit=call.query.limit)
    page = await ask_ledger(call, "list_overruns", question, answer=holds.OverrunPage)
    return OverrunPage(items=tuple(Overrun(**_in_usd(row)) for row in page.items), total=page.total)


ROUTES = (list_holds, void_hold, list_overruns)
