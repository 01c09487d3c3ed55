"""`/orgs/{org}/departments/spend`: what each department spent in a month (facts.md 2.7)."""

from __future__ import annotations

from contracts import caps
from contracts.caps import AskedMonth
from contracts.ledger import Month
from contracts.types import Id, Instant, Wire
from services.gateway.domain.permissions import RUNS_VIEW
from services.gateway.http.asking import ask_ledger
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import NoBody, PageQuery, Usd


class DepartmentsSpendQuery(PageQuery):
    """Without a month: the one that the organization is in."""

    month: AskedMonth | None = None


class DepartmentSpend(Wire):
    """One department. Somebody who belongs to two counts in full in both."""

    department_id: Id
    name: str
    member_count: int
    """Who belongs to it now."""
    monthly_budget_usd: Usd | None
    spent_usd: Usd
    """Billed in the month, in runs that a member started."""
    run_count: int
    """Top-level runs that a member started in the month."""
    is_partial: bool
    removed: bool
    """No longer there; listed in the months that it spent in."""


class DepartmentsSpend(Wire):
    """A page of departments; `since` is the month's begin in the billing time zone."""

    month: Month
    since: Instant
    items: tuple[DepartmentSpend, ...]
    total: int


def _shown(row: caps.DepartmentSpend) -> DepartmentSpend:
    return DepartmentSpend(
        **{name: value for name, value in row if name in DepartmentSpend.model_fields},
        monthly_budget_usd=row.monthly_budget_nanousd,
        spent_usd=row.spent_nanousd,
    )


@route(
    "GET",
    "/orgs/{org:str}/departments/spend",
    Contract(
        summary="What departments spent in a month",
        needs=(RUNS_VIEW,),
        query=DepartmentsSpendQuery,
        body=NoBody,
        answer=DepartmentsSpend,
    ),
)
async def list_departments_spend(
    call: Call[DepartmentsSpendQuery, NoBody],
) -> DepartmentsSpend:
    """Costliest first, then by name; departments without cap or spend are there."""
    question = caps.ListDepartmentsSpend(
        month=call.query.month, skip=call.query.skip, limit=call.query.limit
    )
    page = await ask_ledger(call, "list_departments_spend", question, answer=caps.DepartmentsSpend)
    return DepartmentsSpend(
        month=page.month,
        since=page.since,
        items=tuple(_shown(row) for row in page.items),
        total=page.total,
    )


ROUTES = (list_departments_spend,)
