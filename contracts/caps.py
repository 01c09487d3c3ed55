"""What the ledger says of caps, and what departments spend (events.md 2 and 3, facts.md 2.7).

Units as in `contracts.ledger`: integer nano-USD, floors named beside their figure.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from contracts.ledger import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, CapScope, Month
from contracts.types import (
    AgentId,
    Count,
    Id,
    Instant,
    Name,
    NanoUsd,
    Revision,
    SumNanoUsd,
    Wire,
)


class CapWarned(Wire):
    """Most of a cap is spent; said once per revision of the cap, month and threshold."""

    scope: CapScope
    id: Id | AgentId
    name: str
    lead_user_id: Id | None = None
    """Of a department that has one."""
    month: Month
    limit_nanousd: NanoUsd
    spent_nanousd: SumNanoUsd
    """As the cap counts: what came late for an earlier month included."""
    held_nanousd: SumNanoUsd
    partial: bool
    """What is spent is a floor."""
    cap_revision: Revision
    threshold_percent: Annotated[int, Field(ge=1, le=100, strict=True)]
    at: Instant


class CapStopped(CapWarned):
    """A cap that is used up refused a request; said once per revision of the cap and month."""

    run_id: Id | None
    """The first run that it stopped; null is a statement: ingestion, which belongs to no run."""


AskedMonth = Annotated[str, Field(pattern=r"^(20[1-9]\d|2[1-9]\d\d)-(0[1-9]|1[0-2])$")]
"""A month of the calendar, from 2010 on."""


class ListDepartmentsSpend(Wire):
    """What departments spent in a month, costliest first."""

    month: AskedMonth | None = None
    """Null: the month that the organization is in."""
    skip: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX, strict=True)] = PAGE_ROWS_DEFAULT


class DepartmentSpend(Wire):
    """One department. Somebody in two counts in full in both: these do not add up to the bill."""

    department_id: Id
    name: Name
    member_count: Count
    """Who belongs to it now."""
    monthly_budget_nanousd: NanoUsd | None
    spent_nanousd: SumNanoUsd
    """Entries billed in the month, of trees that a member started."""
    run_count: Count
    """Top-level runs that a member started in the month."""
    is_partial: bool
    removed: bool
    """No longer there; listed in the months that it spent in."""


class DepartmentsSpend(Wire):
    """A page of departments: by spend, then by name; those without cap or spend included."""

    month: Month
    since: Instant
    """The month's begin in the billing time zone."""
    items: tuple[DepartmentSpend, ...]
    total: Count


class ListCaps(Wire):
    """Every cap with what is spent under it this month."""

    skip: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX, strict=True)] = PAGE_ROWS_DEFAULT


class CapRow(Wire):
    """One cap of the current month in the billing time zone."""

    scope: CapScope
    id: Id | AgentId
    name: str
    month: Month
    limit_nanousd: NanoUsd
    spent_nanousd: SumNanoUsd
    """Entries billed in this month, those of runs still running included."""
    late_nanousd: SumNanoUsd
    """Arrived this month for an earlier one: billed there, charged to this cap as well."""
    remaining_nanousd: SumNanoUsd
    is_partial: bool
    cap_revision: Revision
    held_nanousd: SumNanoUsd = 0
    """For requests under way, beside what is spent."""
    overrun_nanousd: SumNanoUsd = 0
    """By how much it was exceeded (`list_overruns`)."""


class CapPage(Wire):
    """A page of caps: the organization first, then departments, agents, people, routines by id.

    Of people those that proactive work was done for in the month.
    """

    items: tuple[CapRow, ...]
    total: Count
