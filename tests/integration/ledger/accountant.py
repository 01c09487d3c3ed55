"""The bill a second time: rules of facts.md 2 and design.md 4 over a whole story at once.

Shares with the product the price of one report and the digest that breaks ties, nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from contracts.channel import IngestionReported, RunFinished, RunStarted, UsageReported
from contracts.types import Surface
from services.ledger.domain.merging import report_digest
from services.ledger.domain.pricing import price_usage
from tests.ledger_room import BOOK, RATES

Report = UsageReported | IngestionReported
INGESTION = None
"""Who bears what belongs to no run."""


@dataclass(frozen=True)
class Amount:
    """Money, and how many prices are missing from it."""

    cost: int = 0
    floors: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cost + other.cost, self.floors + other.floors)


@dataclass(frozen=True)
class Line:
    """One priced request, or a mark that something is missing."""

    run_id: str | None
    provider: str | None
    key_id: str | None
    at: datetime
    amount: Amount


@dataclass
class Story:
    """All that was ever said."""

    at: datetime = datetime(2026, 10, 31, 23, 58, tzinfo=UTC)
    """Around when; two minutes before a month ends."""
    zones: tuple[tuple[str, str], ...] = (("0001-01", "UTC"),)
    """Billing time zones, oldest first: the month that each holds from, and its name."""
    starts: dict[str, RunStarted] = field(default_factory=dict)
    ends: list[RunFinished] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    corrected: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By request: what corrections of billed entries added to it."""
    deleted: set[str] = field(default_factory=set)
    """Runs that their platform deleted."""
    memberships: dict[str, list[tuple[str, datetime, datetime | None]]] = field(
        default_factory=dict
    )
    """Department to who belonged to it, from when, until when."""


class Accountant:
    """Every figure of a story, each by its own rule."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.lines = [
            line
            for group in self._requests()
            for line in _billed(group, story.corrected[group[0].request_id])
        ]
        self.lines += self._missing_delegates()

    def _requests(self) -> list[list[Report]]:
        found: dict[str, list[Report]] = defaultdict(list)
        for report in self.story.reports:
            found[report.request_id].append(report)
        return list(found.values())

    def _missing_delegates(self) -> list[Line]:
        order = ("completed", "failed")
        ends: dict[str, RunFinished] = {}
        for end in self.story.ends:
            known = ends.get(end.run_id)
            rank = (end.ended_at, order.index(end.status.value), -end.missing_delegates)
            if known is None or rank > (
                known.ended_at,
                order.index(known.status.value),
                -known.missing_delegates,
            ):
                ends[end.run_id] = end
        return [
            Line(end.run_id, None, None, end.ended_at, Amount(0, end.missing_delegates))
            for end in ends.values()
            if end.missing_delegates
        ]

    def root(self, run_id: str) -> RunStarted:
        """The way up ends at what nobody delegated, or where the parent was deleted."""
        start = self.story.starts[run_id]
        while start.parent_run_id is not None and start.parent_run_id not in self.story.deleted:
            start = self.story.starts[start.parent_run_id]
        return start

    def of_deleted(self) -> Amount:
        """What trees cost whose root was deleted."""
        return _sum(
            line
            for line in self.lines
            if line.run_id is not INGESTION and self.root(line.run_id).run_id in self.story.deleted
        )

    def total(self) -> Amount:
        return _sum(self.lines)

    def by_agent(self) -> dict[str, Amount]:
        return _grouped(self.lines, lambda line: line.run_id and self.root(line.run_id).agent_id)

    def by_person(self) -> dict[str, Amount]:
        """Unattended work under `nobody`."""
        return _grouped(
            self.lines,
            lambda line: line.run_id and (self.root(line.run_id).started_by_user_id or "nobody"),
        )

    def by_provider(self) -> dict[str, Amount]:
        return _grouped(self.lines, lambda line: line.provider or "none")

    def by_key(self) -> dict[str, Amount]:
        return _grouped(self.lines, lambda line: line.key_id or "none")

    def by_day(self) -> dict[str, Amount]:
        """A tree's whole sum on the day of its start; ingestion on its own day."""

        def day(line: Line) -> str:
            at = line.at if line.run_id is INGESTION else self.root(line.run_id).started_at
            return f"{self.local(at):%Y-%m-%d}"

        return _grouped(self.lines, day)

    def months(self) -> dict[tuple[str, str, str], Amount]:
        """By scope, id and month: the organization's under the empty id."""
        found: dict[tuple[str, str, str], Amount] = defaultdict(Amount)
        for line in self.lines:
            for scope, scope_id in self._scopes(line.run_id):
                month = "" if scope == "goal" else f"{self.local(line.at):%Y-%m}"
                found[(scope, scope_id, month)] += line.amount
        return {key: amount for key, amount in found.items() if amount != Amount()}

    def local(self, at: datetime) -> datetime:
        """An instant on the calendar of the newest zone whose own month has begun."""
        clocks = [(month, at.astimezone(ZoneInfo(name))) for month, name in self.story.zones]
        return [clock for month, clock in clocks if f"{clock:%Y-%m}" >= month][-1]

    def _scopes(self, run_id: str | None) -> list[tuple[str, str]]:
        scopes = [("organization", "")]
        if run_id is INGESTION:
            return scopes
        run, root = self.story.starts[run_id], self.root(run_id)
        if run.system_role is None and root.system_role is None:
            scopes += [("agent", agent) for agent in {run.agent_id, root.agent_id}]
        if root.surface is Surface.PROACTIVE and root.user_id is not None:
            scopes.append(("person", root.user_id))
        if root.routine_id is not None:
            scopes.append(("routine", root.routine_id))
        if root.goal_id is not None:
            scopes.append(("goal", root.goal_id))
        scopes += [
            ("department", name)
            for name, people in self.story.memberships.items()
            if any(
                person == root.started_by_user_id
                and since <= root.started_at
                and (until is None or root.started_at < until)
                for person, since, until in people
            )
        ]
        return scopes

    def own(self, run_id: str) -> Amount:
        return _sum(line for line in self.lines if line.run_id == run_id)

    def tree(self, root_id: str) -> Amount:
        return _sum(
            line
            for line in self.lines
            if line.run_id is not INGESTION and self.root(line.run_id).run_id == root_id
        )


def _billed(reports: Sequence[Report], corrected: int) -> list[Line]:
    """One request is one amount: the earliest claim's best report; others are marks at 0.

    What was corrected of it is borne by whoever bears it in the end.
    """
    contexts: dict[tuple[str, ...], list[Report]] = defaultdict(list)
    for report in reports:
        if isinstance(report, UsageReported):
            context = (report.run_id, "", report.model)
        else:
            context = ("", report.ingestion_id, report.model)
        contexts[context].append(report)
    owner = min(contexts, key=lambda key: (min(r.occurred_at for r in contexts[key]), key))
    lines = [_line(contexts[context], owns=context == owner) for context in sorted(contexts)]
    bearer = lines[sorted(contexts).index(owner)]
    return [*lines, replace(bearer, amount=Amount(corrected))]


def _line(reports: Sequence[Report], *, owns: bool) -> Line:
    best = max(reports, key=_rank)
    price = price_usage(BOOK, best, RATES)
    amount = Amount(price.cost_nanousd, 0 if price.priced else 1) if owns else Amount(0, 1)
    run_id = INGESTION
    if isinstance(best, UsageReported):
        run_id = best.billed_run_id or best.run_id
    return Line(run_id, best.provider, best.key_id, best.occurred_at, amount)


def _rank(report: Report) -> tuple[Any, ...]:
    return (
        price_usage(BOOK, report, RATES).reason != "bad_usage",
        not report.interrupted,
        report.tokens.output,
        report.tokens.input,
        report_digest(report),
    )


def _sum(lines) -> Amount:
    total = Amount()
    for line in lines:
        total += line.amount
    return total


def _grouped(lines, key) -> dict[str, Amount]:
    found: dict[str, Amount] = defaultdict(Amount)
    for line in lines:
        group = key(line)
        if group is not None:
            found[group] += line.amount
    return dict(found)
