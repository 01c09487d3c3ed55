"""`/spend` and `/caps`: what was spent and what remains (facts.md 2.5, http.md)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from contracts import caps, ledger
from contracts.errors import Invalid
from contracts.ledger import CapScope, Month
from contracts.types import YEAR_MIN, AgentId, Id, Instant, Revision, Wire
from services.gateway.domain.permissions import RUNS_VIEW
from services.gateway.http.asking import ask_ledger
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import NoBody, Page, PageQuery, Query, Usd

DAYS_DEFAULT: Final = 30
DAYS_MAX: Final = 365
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", json_schema_extra={"format": "date"})]


class SpendQuery(Query):
    """A window: `from` wins over `days`; without `to` it is open at the end."""

    days: Annotated[int, Field(ge=1, le=DAYS_MAX)] = DAYS_DEFAULT
    from_: Annotated[Instant | None, Field(alias="from")] = None
    to: Instant | None = None

    def question(self, now: datetime) -> ledger.GetSpend:
        """As the ledger hears it.

        Raises:
            Invalid: `window_reversed`, `window_out_of_range`.
        """
        started_from = self.from_ or (self.to or now) - timedelta(days=self.days)
        if started_from.year < YEAR_MIN:
            raise Invalid("to: lies too far back", reason="window_out_of_range")
        if self.to is not None and self.to < started_from:
            raise Invalid("from lies after to", reason="window_reversed")
        return ledger.GetSpend(started_from=started_from, started_to=self.to)


class AgentSpend(Wire):
    """An agent's top-level runs in the window, and its own month beside them."""

    agent_id: AgentId | None
    agent_name: str | None
    cost_usd: Usd
    cost_is_partial: bool
    run_count: int
    partial_run_count: int
    month_to_date_usd: Usd
    month_to_date_is_partial: bool
    monthly_cap_usd: Usd | None
    model_label: None = None


class ProviderSpend(Wire):
    """By the entries' own provider; null: not recorded."""

    provider: Id | None
    cost_usd: Usd
    cost_is_partial: bool
    run_count: int


class KeySpend(Wire):
    """By the entries' own provider key; null: not recorded."""

    key_id: Id | None
    label: str | None = None
    cost_usd: Usd
    cost_is_partial: bool
    run_count: int


class PersonSpend(Wire):
    """By who started the run; null: nobody did (a schedule, a visitor)."""

    user_id: Id | None
    cost_usd: Usd
    cost_is_partial: bool
    run_count: int
    partial_run_count: int


class DaySpend(Wire):
    """By the run's day in the billing time zone; days without runs are there with zero."""

    date: Day
    cost_usd: Usd
    cost_is_partial: bool
    run_count: int


class IngestionSpend(Wire):
    """What belongs to no run and no agent: documents that were made searchable."""

    basis: Literal["requests_by_occurred_at"] = "requests_by_occurred_at"
    """Requests that occurred in the window (design.md 3, *Windows*)."""
    cost_usd: Usd
    cost_is_partial: bool
    request_count: int


class DeletedSpend(Wire):
    """Top-level runs of the window that their platform deleted: in every figure, in no page."""

    cost_usd: Usd
    cost_is_partial: bool
    run_count: int


class Spend(Wire):
    """`by_provider`, `by_key` and `by_day` add up to `cost_usd`, `by_agent` with `ingestion`.

    Month figures ignore the window.
    """

    basis: Literal["runs_by_started_at"] = "runs_by_started_at"
    """Runs that started in the window, counted whole (design.md 3, *Windows*)."""
    period_days: int | None
    from_date: Instant
    to_date: Instant | None
    billing_timezone: str
    cost_usd: Usd
    cost_is_partial: bool
    run_count: int
    partial_run_count: int
    month: Month
    month_to_date_usd: Usd
    month_to_date_is_partial: bool
    by_agent: tuple[AgentSpend, ...]
    by_provider: tuple[ProviderSpend, ...]
    by_key: tuple[KeySpend, ...]
    by_day: tuple[DaySpend, ...]
    ingestion: IngestionSpend
    by_person: tuple[PersonSpend, ...]
    deleted: DeletedSpend


def _line(line: ledger.SpendLine) -> dict[str, Any]:
    return {
        "cost_usd": line.cost_nanousd,
        "cost_is_partial": line.is_partial,
        "run_count": line.run_count,
    }


def _agent(line: ledger.AgentSpend) -> AgentSpend:
    return AgentSpend(
        **_line(line),
        agent_id=line.agent_id,
        agent_name=line.agent_name,
        partial_run_count=line.partial_run_count,
        month_to_date_usd=line.month_to_date_nanousd,
        month_to_date_is_partial=line.month_to_date_is_partial,
        monthly_cap_usd=line.monthly_cap_nanousd,
    )


def _person(line: ledger.PersonSpend) -> PersonSpend:
    return PersonSpend(
        **_line(line), user_id=line.user_id, partial_run_count=line.partial_run_count
    )


def _shown(spend: ledger.Spend, period_days: int | None) -> Spend:
    return Spend(
        period_days=period_days,
        from_date=spend.started_from,
        to_date=spend.started_to,
        billing_timezone=spend.billing_timezone,
        cost_usd=spend.cost_nanousd,
        cost_is_partial=spend.is_partial,
        run_count=spend.run_count,
        partial_run_count=spend.partial_run_count,
        month=spend.month,
        month_to_date_usd=spend.month_to_date_nanousd,
        month_to_date_is_partial=spend.month_to_date_is_partial,
        by_agent=tuple(_agent(line) for line in spend.by_agent),
        by_provider=tuple(
            ProviderSpend(**_line(line), provider=line.provider) for line in spend.by_provider
        ),
        by_key=tuple(KeySpend(**_line(line), key_id=line.key_id) for line in spend.by_key),
        by_day=tuple(DaySpend(**_line(line), date=line.day) for line in spend.by_day),
        ingestion=IngestionSpend(
            cost_usd=spend.ingestion.cost_nanousd,
            cost_is_partial=spend.ingestion.is_partial,
            request_count=spend.ingestion.request_count,
        ),
        by_person=tuple(_person(line) for line in spend.by_person),
        deleted=DeletedSpend(**_line(spend.deleted)),
    )


@route(
    "GET",
    "/spend",
    Contract(
        summary="What was spent, by agent, provider, key, day and person",
        needs=(RUNS_VIEW,),
        query=SpendQuery,
        body=NoBody,
        answer=Spend,
    ),
)
async def get_spend(call: Call[SpendQuery, NoBody]) -> Spend:
    """Runs that started in the window and ingestion that occurred in it, both ends included.

    Costliest first; days in order.
    """
    question = call.query.question(call.ports.clock.now())
    spend = await ask_ledger(call, "get_spend", question, answer=ledger.Spend)
    return _shown(spend, None if call.query.from_ else call.query.days)


class Cap(Wire):
    """One cap of the current month; `late_usd` arrived now for a month that is over."""

    scope: CapScope
    id: AgentId
    name: str
    month: Month
    limit_usd: Usd
    spent_usd: Usd
    held_usd: Usd
    """For requests under way, beside what is spent (strict mode)."""
    late_usd: Usd
    overrun_usd: Usd
    """By how much it was exceeded: `/overruns`."""
    remaining_usd: Usd
    is_partial: bool
    cap_revision: Revision


CapPage = Page[Cap]


def _cap(row: caps.CapRow) -> Cap:
    return Cap(
        **{name: value for name, value in row if name in Cap.model_fields},
        limit_usd=row.limit_nanousd,
        spent_usd=row.spent_nanousd,
        held_usd=row.held_nanousd,
        late_usd=row.late_nanousd,
        overrun_usd=row.overrun_nanousd,
        remaining_usd=row.remaining_nanousd,
    )


@route(
    "GET",
    "/caps",
    Contract(
        summary="List the caps of this month",
        needs=(RUNS_VIEW,),
        query=PageQuery,
        body=NoBody,
        answer=CapPage,
    ),
)
async def list_caps(call: Call[PageQuery, NoBody]) -> CapPage:
    """The organization's first, then departments, agents, people, routines by id."""
    question = caps.ListCaps(skip=call.query.skip, limit=call.query.limit)
    page = await ask_ledger(call, "list_caps", question, answer=caps.CapPage)
    return CapPage(items=tuple(_cap(row) for row in page.items), total=page.total)


ROUTES = (get_spend, list_caps)
