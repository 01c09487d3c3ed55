"""The reading questions: runs, entries, spend, caps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from contracts.caps import (
    CapPage,
    CapRow,
    DepartmentSpend,
    DepartmentsSpend,
    ListCaps,
    ListDepartmentsSpend,
)
from contracts.channel import Tokens
from contracts.directory import Applied, GetApplied
from contracts.entries import EntryPage, EntryRow, ListEntries
from contracts.errors import Invalid
from contracts.ledger import (
    AgentSpend,
    CapScope,
    DaySpend,
    GetRun,
    GetSpend,
    KeySpend,
    ListRuns,
    PersonSpend,
    ProviderSpend,
    RunPage,
    RunRow,
    Spend,
    SpendLine,
)
from services.ledger.domain.books import MonthAmount
from services.ledger.domain.months import (
    UTC_ALWAYS,
    Zone,
    day_of,
    month_begin,
    month_of,
    next_month,
    zone_starts,
)
from services.ledger.domain.spend import Sum, costliest_first, ingestion_spend, merged
from services.ledger.errors import RunUnknown
from services.ledger.store import caps, departments, directory, holds, ingestion, reading, spend
from services.ledger.store.departments import SpendMonth
from services.ledger.store.holds import CapState
from services.ledger.store.runs import amount_of
from shared.pages import read_cursor, write_cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.ledger.store.directory import Organization
    from shared.clock import Clock
    from shared.db import Connection, Database
    from shared.questions import Question

DAYS_MAX = 3_700
"""Longest window whose days are listed: ten years."""
UTC_ZONE = "UTC"
NOTHING_HELD = CapState(0, 0)


class Reader:
    """Answers what people read."""

    def __init__(self, *, database: Database, clock: Clock) -> None:
        """Read from the room's own tables."""
        self._database = database
        self._clock = clock

    async def answer_list_runs(self, question: Question) -> RunPage:
        """One page of runs with the exact total of the filter."""
        asked: ListRuns = question.data
        async with self._database.reading() as connection:
            rows, total = await reading.list_runs(connection, question.org, asked)
        return RunPage(items=tuple(_run_row(row) for row in rows), total=total)

    async def answer_get_run(self, question: Question) -> RunRow:
        """One run; another organization's id answers like an unknown one."""
        asked: GetRun = question.data
        async with self._database.reading() as connection:
            row = await reading.load_run(connection, question.org, asked.run_id)
        if row is None:
            raise RunUnknown
        return _run_row(row)

    async def answer_list_entries(self, question: Question) -> EntryPage:
        """Entries behind a run's figure, by cursor, up to the first page's horizon."""
        asked: ListEntries = question.data
        after, as_of = read_cursor(asked.cursor, 2) if asked.cursor else (0, 0)
        async with self._database.reading() as connection:
            run = await reading.load_run(connection, question.org, asked.run_id)
            if run is None:
                raise RunUnknown
            as_of = as_of or await reading.horizon(connection)
            rows = await reading.list_entries(
                connection,
                question.org,
                asked.run_id,
                tree=asked.scope == "tree" and run["run_id"] == run["root_run_id"],
                after=after,
                as_of=as_of,
                limit=asked.limit + 1,
            )
        more = len(rows) > asked.limit
        rows = rows[: asked.limit]
        return EntryPage(
            items=tuple(_entry_row(row) for row in rows),
            cursor=write_cursor(rows[-1]["sequence"], as_of) if more else None,
            as_of=str(as_of),
        )

    async def answer_list_caps(self, question: Question) -> CapPage:
        """Every cap with what is spent under it this month, the organization's first."""
        asked: ListCaps = question.data
        async with self._database.reading() as connection:
            organization = await _organization(connection, question.org)
            own = organization is not None and organization.monthly_budget_nanousd is not None
            month = month_of(self._clock.now(), organization.zones if organization else ())
            total = await caps.count_narrower_caps(connection, question.org, month) + own
            page: list[tuple[CapScope, str, str, int, int]] = []
            if own and asked.skip == 0 and organization is not None:
                limit = organization.monthly_budget_nanousd or 0
                name, revision = organization.name, organization.cap_revision
                page.append(("organization", question.org, name, limit, revision))
            page += await caps.list_narrower_caps(
                connection,
                question.org,
                month,
                skip=max(asked.skip - own, 0),
                limit=asked.limit - len(page),
            )
            keys = {(question.org, scope, cap_id, month) for scope, cap_id, *_ in page}
            spent = await caps.load_months(connection, keys)
            states = await holds.load_states(connection, keys)
        rows = (
            _cap_row(cap, spent.get(key, MonthAmount()), states.get(key, NOTHING_HELD), month)
            for cap in page
            for key in [(question.org, cap[0], cap[1], month)]
        )
        return CapPage(items=tuple(rows), total=total)

    async def answer_get_applied(self, question: Question) -> Applied:
        """How far the directory's entries are applied, for whoever waits for a change."""
        asked: GetApplied = question.data
        async with self._database.reading() as connection:
            revision = await directory.load_revision(connection, question.org, asked.kind, asked.id)
        return Applied(entity_revision=revision)

    async def answer_get_spend(self, question: Question) -> Spend:
        """Every breakdown of one window; each adds up to the same figure."""
        asked: GetSpend = question.data
        now = self._clock.now()
        start, end = asked.started_from, asked.started_to
        async with self._database.reading() as connection:
            organization = await _organization(connection, question.org)
            zone = organization.billing_timezone if organization else UTC_ZONE
            zones = organization.zones if organization else UTC_ALWAYS
            month = month_of(now, zones)
            days = _days(start, end or now, zones)
            window = (question.org, start, end)
            figures = await spend.load_figures(connection, *window, month)
            by_day = await spend.list_days(connection, *window, zone_starts(zones))
            ingested = await ingestion.sum_window(connection, *window, zone_starts(zones))
            deleted = await reading.spend_of_deleted(connection, *window)
            month_key = (question.org, "organization", question.org, month)
            spent = await caps.load_months(connection, {month_key})
        to_date = spent.get(month_key, MonthAmount())
        agents = figures["agent"]
        partial = sum(int(row["floor_count"]) for row in agents)
        apart = ingestion_spend(ingested)
        return Spend(
            started_from=start,
            started_to=end,
            billing_timezone=zone,
            cost_nanousd=sum(int(row["cost_nanousd"]) for row in agents) + apart.cost_nanousd,
            run_count=sum(row["run_count"] for row in agents),
            partial_run_count=partial,
            is_partial=partial > 0 or apart.is_partial,
            month=month,
            month_to_date_nanousd=to_date.cost_nanousd,
            month_to_date_is_partial=to_date.unpriced_count > 0,
            by_agent=tuple(_agent_spend(row) for row in agents),
            by_provider=tuple(
                ProviderSpend(provider=value, **asdict(line))
                for value, line in costliest_first(
                    merged(
                        _lines(figures["provider"]),
                        ((each.provider, each.sum) for each in ingested),
                    )
                )
            ),
            by_key=tuple(
                KeySpend(key_id=value, **asdict(line))
                for value, line in costliest_first(
                    merged(_lines(figures["key"]), ((each.key_id, each.sum) for each in ingested))
                )
            ),
            by_day=_dense(
                merged(_day_sums(by_day), ((each.day, each.sum) for each in ingested)), days
            ),
            by_person=tuple(_person_spend(row) for row in figures["person"]),
            ingestion=apart,
            deleted=SpendLine(
                cost_nanousd=int(deleted["cost_nanousd"]),
                run_count=deleted["run_count"],
                is_partial=deleted["is_partial"],
            ),
        )

    async def answer_list_departments_spend(self, question: Question) -> DepartmentsSpend:
        """What departments spent in a month, costliest first."""
        asked: ListDepartmentsSpend = question.data
        now = self._clock.now()
        async with self._database.reading() as connection:
            organization = await _organization(connection, question.org)
            zones = organization.zones if organization else ()
            month = asked.month or month_of(now, zones)
            begins_at = month_begin(month, zones)
            rows, total = await departments.list_spend(
                connection,
                question.org,
                SpendMonth(month, begins_at, month_begin(next_month(month), zones)),
                now=now,
                page=(asked.skip, asked.limit),
            )
        items = tuple(_department_spend(row) for row in rows)
        return DepartmentsSpend(month=month, since=begins_at, items=items, total=total)


async def _organization(connection: Connection, org: str) -> Organization | None:
    return (await directory.load_organizations(connection, [org])).get(org)


def _days(start: datetime, end: datetime, zones: Sequence[Zone]) -> tuple[date, date]:
    if end - start > timedelta(days=DAYS_MAX):
        raise Invalid(
            f"the window is longer than {DAYS_MAX} days: narrow it", reason="window_too_long"
        )
    try:
        return day_of(start, zones), day_of(end, zones)
    except OverflowError as error:
        raise Invalid("the window leaves the calendar", reason="window_too_long") from error


def _dense(found: Mapping[date, Sum], days: tuple[date, date]) -> tuple[DaySpend, ...]:
    first, last = days
    # A publisher's clock may be ahead, past midnight: its run is in the window and has a day.
    last = max([last, *found])
    result = []
    for offset in range((last - first).days + 1):
        day = first + timedelta(days=offset)
        row = found.get(day, Sum(0, 0, is_partial=False))
        result.append(DaySpend(day=day.isoformat(), **asdict(row)))
    return tuple(result)


def _lines(rows: Any) -> dict[str | None, Sum]:
    return {
        row["value"]: Sum(
            int(row["cost_nanousd"]), row["run_count"], is_partial=row["floor_count"] > 0
        )
        for row in rows
    }


def _day_sums(rows: Any) -> dict[date, Sum]:
    return {
        row["day"]: Sum(
            int(row["cost_nanousd"]), row["run_count"], is_partial=bool(row["is_partial"])
        )
        for row in rows
    }


def _agent_spend(row: Any) -> AgentSpend:
    return AgentSpend(
        agent_id=row["value"],
        agent_name=row["agent_name"],
        cost_nanousd=int(row["cost_nanousd"]),
        run_count=row["run_count"],
        partial_run_count=int(row["floor_count"]),
        is_partial=row["floor_count"] > 0,
        month_to_date_nanousd=int(row["month_nanousd"]),
        month_to_date_is_partial=row["month_unpriced"] > 0,
        monthly_cap_nanousd=row["monthly_nanousd"],
    )


def _person_spend(row: Any) -> PersonSpend:
    return PersonSpend(
        user_id=row["value"],
        cost_nanousd=int(row["cost_nanousd"]),
        run_count=row["run_count"],
        partial_run_count=int(row["floor_count"]),
        is_partial=row["floor_count"] > 0,
    )


def _department_spend(row: Any) -> DepartmentSpend:
    return DepartmentSpend(
        department_id=row["department_id"],
        name=row["name"],
        member_count=row["member_count"],
        monthly_budget_nanousd=row["monthly_nanousd"],
        spent_nanousd=int(row["spent_nanousd"]),
        run_count=row["run_count"],
        is_partial=row["floors"] > 0,
        removed=row["removed"],
    )


def _cap_row(
    cap: tuple[CapScope, str, str, int, int], spent: MonthAmount, state: CapState, month: str
) -> CapRow:
    scope, cap_id, name, limit, revision = cap
    counted = spent.cost_nanousd + spent.late_nanousd
    return CapRow(
        scope=scope,
        id=cap_id,
        name=name,
        month=month,
        limit_nanousd=limit,
        spent_nanousd=spent.cost_nanousd,
        late_nanousd=spent.late_nanousd,
        remaining_nanousd=max(limit - counted - state.held_nanousd, 0),
        is_partial=spent.unpriced_count > 0,
        cap_revision=revision,
        held_nanousd=state.held_nanousd,
        overrun_nanousd=state.overrun_nanousd,
    )


def _run_row(row: Any) -> RunRow:
    shown, own = amount_of(row), amount_of(row, "own_")
    columns = set(row.keys())
    return RunRow(
        **{
            name: row[name]
            for name in RunRow.model_fields
            if name in columns and name != "started_at"
        },
        started_at=row["shown_start"],
        totals=shown.totals,
        own=own.totals,
        is_partial=shown.is_partial,
    )


def _entry_row(row: Any) -> EntryRow:
    told = EntryRow.model_fields.keys() - {"id", "tokens", "corrects_entry_id"}
    values = {name: row[name] for name in told}
    if row["withholds_delegation"]:
        # Its parent was deleted, and with it what the delegation was of (facts.md 2.3).
        values["delegation_id"] = None
    corrects = row["corrects_entry_id"]
    return EntryRow(
        id=str(row["id"]),
        tokens=Tokens(**{name: row[name] for name in Tokens.model_fields}),
        corrects_entry_id=str(corrects) if corrects else None,
        **values,
    )
