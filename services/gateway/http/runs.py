"""`/runs`: the history of runs and the entries behind each figure (facts.md 3)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from contracts import entries, ledger
from contracts.channel import Tokens
from contracts.entries import ENTRIES_ROWS_MAX, EntryReason, PriceSource
from contracts.ledger import RunFilter, RunOrder
from contracts.types import (
    AgentId,
    ChannelId,
    EntryKind,
    Id,
    Instant,
    ModelName,
    RunStatus,
    Surface,
    Wire,
)
from services.gateway.domain.permissions import RUNS_VIEW
from services.gateway.http.asking import ask_ledger
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import NoBody, NoQuery, Page, PageQuery, Query, Usd


class RunsQuery(PageQuery):
    """Every filter narrows page and total alike (facts.md 3.4)."""

    agent_id: AgentId | None = None
    project_id: Id | None = None
    status: Annotated[tuple[RunStatus, ...], Field(max_length=len(RunStatus))] = ()
    started_from: Instant | None = None
    started_to: Instant | None = None
    parent_run_id: Id | None = None
    include_delegations: bool = False
    order_by: RunOrder = "started_at"
    descending: bool = True

    def question(self) -> ledger.ListRuns:
        """As the ledger hears it."""
        return ledger.ListRuns(
            filter=RunFilter(
                agent_id=self.agent_id,
                project_id=self.project_id,
                statuses=self.status,
                started_from=self.started_from,
                started_to=self.started_to,
                parent_run_id=self.parent_run_id,
                include_delegations=self.include_delegations,
            ),
            order_by=self.order_by,
            descending=self.descending,
            skip=self.skip,
            limit=self.limit,
        )


class Run(Wire):
    """A run; where `cost_is_partial`, its cost is a floor.

    Cost and tokens are those of the whole tree for a top-level run, `own_*` those without delegated
    runs.
    """

    id: Id
    agent_id: AgentId | None
    agent_name: str | None
    agent_version: Id | None
    parent_run_id: Id | None
    root_run_id: Id
    delegation_id: Id | None
    delegation_count: int
    channel_id: ChannelId
    user_id: Id | None
    started_by_user_id: Id | None
    surface: Surface | None
    status: RunStatus
    provisional: bool
    started_at: Instant | None
    ended_at: Instant | None
    last_sign_at: Instant | None
    parked_at: Instant | None
    """Since when it waits for people."""
    reaped_at: Instant | None
    """When it was failed for its silence; a sign of life reopens it, its own end replaces this."""
    error: str | None
    model_label: ModelName | None
    provider: Id | None
    key_id: Id | None
    conversation_id: Id | None
    project_id: Id | None
    environment_id: Id | None
    budget_usd: Usd | None
    cost_usd: Usd
    cost_is_partial: bool
    request_count: int
    unpriced_request_count: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    own_cost_usd: Usd
    own_cost_is_partial: bool
    own_request_count: int
    own_unpriced_request_count: int
    own_input_tokens: int
    own_output_tokens: int
    own_cache_read_tokens: int
    own_cache_write_tokens: int


RunPage = Page[Run]


def _totals(totals: ledger.Totals, prefix: str) -> dict[str, Any]:
    tokens = totals.tokens
    return {
        f"{prefix}cost_usd": totals.cost_nanousd,
        f"{prefix}request_count": totals.request_count,
        f"{prefix}unpriced_request_count": totals.unpriced_count,
        f"{prefix}input_tokens": tokens.input,
        f"{prefix}output_tokens": tokens.output,
        f"{prefix}cache_read_tokens": tokens.cache_read,
        f"{prefix}cache_write_tokens": tokens.cache_write_5m + tokens.cache_write_1h,
    }


def _run(row: ledger.RunRow) -> Run:
    return Run(
        **{name: value for name, value in row if name in Run.model_fields},
        **_totals(row.totals, ""),
        **_totals(row.own, "own_"),
        id=row.run_id,
        model_label=row.model,
        budget_usd=row.budget_nanousd,
        cost_is_partial=row.is_partial,
        own_cost_is_partial=row.own.unpriced_count != 0,
    )


@route(
    "GET",
    "/runs",
    Contract(
        summary="List runs",
        needs=(RUNS_VIEW,),
        query=RunsQuery,
        body=NoBody,
        answer=RunPage,
    ),
)
async def list_runs(call: Call[RunsQuery, NoBody]) -> RunPage:
    """Top-level runs, unless delegations are included or a parent is named."""
    page = await ask_ledger(call, "list_runs", call.query.question(), answer=ledger.RunPage)
    return RunPage(items=tuple(_run(row) for row in page.items), total=page.total)


@route(
    "GET",
    "/runs/{run_id:str}",
    Contract(
        summary="Read a run",
        needs=(RUNS_VIEW,),
        query=NoQuery,
        body=NoBody,
        answer=Run,
    ),
)
async def get_run(call: Call[NoQuery, NoBody]) -> Run:
    """One run, delegated or not."""
    question = ledger.GetRun(run_id=call.path_id("run_id"))
    return _run(await ask_ledger(call, "get_run", question, answer=ledger.RunRow))


Cursor = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7E]{1,512}$")]


class EntriesQuery(Query):
    """A page of entries, by cursor."""

    scope: Literal["tree", "own"] = "tree"
    cursor: Cursor | None = None
    limit: Annotated[int, Field(ge=1, le=ENTRIES_ROWS_MAX)] = 100


class Entry(Wire):
    """One immutable entry. A report that grew and a correction are further ones: differences."""

    id: Id
    request_id: Id
    run_id: Id
    billed_run_id: Id
    delegation_id: Id | None
    turn_id: Id | None
    kind: EntryKind
    model: ModelName
    provider: Id | None
    key_id: Id | None
    tokens: Tokens
    cost_usd: Usd
    priced: bool
    reason: EntryReason | None
    price_source: PriceSource
    price_set: str
    provider_amount: str | None
    provider_currency: str | None
    provider_rate: str | None
    """Units of the currency per US dollar, where the amount was converted."""
    interrupted: bool
    occurred_at: Instant
    billed_at: Instant
    recorded_at: Instant
    corrects_entry_id: Id | None
    """Of a correction: the entry whose amount it changes."""
    correction_reason: str | None


class EntryPage(Wire):
    """`cursor` is null when nothing follows; `as_of` is the horizon of all pages."""

    items: tuple[Entry, ...]
    cursor: str | None
    as_of: str


def _entry(row: entries.EntryRow) -> Entry:
    shown = {name: value for name, value in row if name in Entry.model_fields}
    return Entry(**shown, cost_usd=row.cost_nanousd)


@route(
    "GET",
    "/runs/{run_id:str}/entries",
    Contract(
        summary="List the entries behind a run's figure",
        needs=(RUNS_VIEW,),
        query=EntriesQuery,
        body=NoBody,
        answer=EntryPage,
        refusals=(400,),
    ),
)
async def list_entries(call: Call[EntriesQuery, NoBody]) -> EntryPage:
    """Oldest first. `scope=tree` adds up to `cost_usd`, `scope=own` to `own_cost_usd`."""
    question = entries.ListEntries(run_id=call.path_id("run_id"), **dict(call.query))
    page = await ask_ledger(call, "list_entries", question, answer=entries.EntryPage)
    return EntryPage(
        items=tuple(_entry(row) for row in page.items), cursor=page.cursor, as_of=page.as_of
    )


ROUTES = (list_runs, get_run, list_entries)
