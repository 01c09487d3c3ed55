"""`authorize`: may this request be sent? Decided in groups, kept as one row per request.

Recorded mode reads what is entered and locks nothing: a cap is a ceiling on recorded spend
(the seed, *Se aplica antes de la petición*).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts.errors import AlreadyExists, Fault, Rejected
from contracts.ledger import Authorization, Authorize
from services.ledger.domain.books import MonthAmount, MonthKey, RunKey
from services.ledger.domain.caps import Cap, decide, refuse_unknown_organization
from services.ledger.domain.months import month_of
from services.ledger.domain.pricing import price_question
from services.ledger.domain.runs import Run, provisional_from, saw_sign, unheard
from services.ledger.requests.describing import describe_runs, enter_runs, hold_described
from services.ledger.requests.starters import load_bound, starter_of
from services.ledger.requests.stopping import say_stops
from services.ledger.store import admissions, caps, directory, runs
from services.ledger.store.admissions import Admission
from shared.group import Group

if TYPE_CHECKING:
    from datetime import datetime

    from services.ledger.domain.amounts import Amount
    from services.ledger.domain.rate_cards import RateBook
    from services.ledger.store.departments import Department
    from services.ledger.store.directory import Agent, Organization
    from shared.clock import Clock
    from shared.db import Connection, Database
    from shared.questions import Question


@dataclass(frozen=True, slots=True)
class Asked:
    """One question with who asked it."""

    org: str
    channel_id: str | None
    data: Authorize

    @property
    def key(self) -> tuple[str, str]:
        """What makes it idempotent."""
        return (self.org, self.data.request_id)

    @property
    def digest(self) -> bytes:
        """SHA-256 of what is asked."""
        return hashlib.sha256(self.data.model_dump_json().encode()).digest()


@dataclass(slots=True)
class Facts:
    """What a group of questions is decided on."""

    organizations: dict[str, Organization]
    agents: dict[tuple[str, str], Agent]
    runs: dict[RunKey, Run]
    run_amounts: dict[RunKey, Amount]
    months: dict[MonthKey, MonthAmount]
    departments: dict[tuple[str, str], tuple[Department, ...]]
    """By question: those with a cap that whoever started its tree belonged to."""


class Authorizer:
    """Answers `authorize`; run `group.run()` beside it."""

    def __init__(self, *, database: Database, book: RateBook, clock: Clock) -> None:
        """Decide with this book and clock."""
        self._database = database
        self._book = book
        self._clock = clock
        self.group: Group[Asked, Authorization | Fault] = Group(self._decide)

    async def answer_authorize(self, question: Question) -> Authorization:
        """Decide one question, together with those that wait beside it."""
        channel_id = question.asked.asker if question.asked.kind == "channel" else None
        if question.actor is not None:
            channel_id = question.actor.channel_id
        answer = await self.group.submit(Asked(question.org, channel_id, question.data))
        if isinstance(answer, Fault):
            raise answer
        return answer

    async def _decide(self, group: Sequence[Asked]) -> Sequence[Authorization | Fault]:
        now = self._clock.now()
        answers: dict[int, Authorization | Fault] = {}
        async with self._database.transaction() as connection:
            decided = await admissions.load(connection, {asked.key for asked in group})
            fresh: dict[tuple[str, str], Asked] = {}
            for position, asked in enumerate(group):
                if asked.key in decided:
                    answers[position] = _repeat(asked, *decided[asked.key])
                else:
                    fresh.setdefault(asked.key, asked)
            facts = await _load(connection, list(fresh.values()), now)
            made = {}
            for key, asked in fresh.items():
                made[key] = self._decide_one(asked, facts, now)
            await _save(connection, fresh, made, facts, now)
            lost = await self._keep(connection, fresh, made, facts, now)
        for position, asked in enumerate(group):
            if position not in answers:
                first = fresh[asked.key]
                answer = lost.get(asked.key, made[asked.key])
                same = first.digest == asked.digest
                answers[position] = answer if same else _conflict(asked)
        return [answers[position] for position in range(len(group))]

    def _decide_one(self, asked: Asked, facts: Facts, now: datetime) -> Authorization | Fault:
        organization = facts.organizations.get(asked.org)
        if organization is None:
            return refuse_unknown_organization(asked=asked.data, org=asked.org, at=now)
        for run_id in (asked.data.run_id, asked.data.root_run_id):
            run = facts.runs.get((asked.org, run_id or ""))
            if run is not None and run.channel_id != asked.channel_id:
                return Rejected(
                    f"run {run.run_id} belongs to another channel: use run ids of your own",
                    reason="run_of_other_channel",
                )
        return decide(
            asked=asked.data,
            caps=_caps(asked, organization, facts, now),
            policy=organization.policy,
            price=price_question(self._book, asked.data, at=now),
            at=now,
        )

    async def _keep(
        self,
        connection: Connection,
        fresh: dict[tuple[str, str], Asked],
        made: dict[tuple[str, str], Authorization | Fault],
        facts: Facts,
        now: datetime,
    ) -> dict[tuple[str, str], Authorization | Fault]:
        """Write one row per decision; where another process was first, its decision stands."""
        rows = []
        for key, answer in made.items():
            organization = facts.organizations.get(key[0])
            # Unknown organizations and faults are not decisions: asked again, they may differ.
            if organization is None or isinstance(answer, Fault):
                continue
            asked = fresh[key]
            rows.append(
                Admission(
                    org=asked.org,
                    request_id=asked.data.request_id,
                    run_id=asked.data.run_id,
                    channel_id=asked.channel_id,
                    model=asked.data.model,
                    month=month_of(now, organization.zones),
                    digest=asked.digest,
                    answer=answer,
                )
            )
        saved = await admissions.save(connection, rows)
        decided = [row for row in rows if (row.org, row.request_id) in saved]
        await say_stops(connection, decided, now=now)
        missing = {(row.org, row.request_id) for row in rows} - saved
        if not missing:
            return {}
        stored = await admissions.load(connection, missing)
        return {key: _repeat(fresh[key], *found) for key, found in stored.items()}


def _repeat(asked: Asked, digest: bytes, answer: Authorization) -> Authorization | Fault:
    return answer if digest == asked.digest else _conflict(asked)


def _conflict(asked: Asked) -> Fault:
    return AlreadyExists(
        f"request {asked.data.request_id} was asked before with other content: "
        "a new request needs a new id",
        reason="request_id_used",
    )


async def _load(connection: Connection, group: Sequence[Asked], now: datetime) -> Facts:
    organizations = await directory.load_organizations(connection, {asked.org for asked in group})
    run_keys = {
        (asked.org, run_id)
        for asked in group
        for run_id in (asked.data.run_id, asked.data.root_run_id)
        if run_id is not None
    }
    known = await runs.load_runs(connection, run_keys)
    roots = {(org, run.root_run_id) for (org, _), run in known.items()} - known.keys()
    known |= await runs.load_runs(connection, roots)
    agent_keys = {
        (asked.org, agent) for asked in group if (agent := _capped_agent(asked, known)) is not None
    }
    starters = {
        asked.key: starter
        for asked in group
        if (starter := starter_of(asked.org, asked.data, _root_of(asked, known), now)) is not None
    }
    bound = await load_bound(connection, starters)
    month_keys = {
        (asked.org, scope, scope_id, month_of(now, organizations[asked.org].zones))
        for asked in group
        if asked.org in organizations
        for scope, scope_id in (
            ("organization", asked.org),
            ("agent", _capped_agent(asked, known) or ""),
            *(("department", each.department_id) for each in bound.get(asked.key, ())),
        )
    }
    return Facts(
        organizations=organizations,
        agents=await directory.load_agents(connection, agent_keys),
        runs=known,
        run_amounts=await caps.load_run_amounts(connection, known.keys()),
        months=await caps.load_months(connection, month_keys),
        departments=bound,
    )


def _root_of(asked: Asked, known: dict[RunKey, Run]) -> Run | None:
    run_id = asked.data.run_id
    run = known.get((asked.org, run_id or ""))
    root_id = run.root_run_id if run is not None and not run.provisional else None
    return known.get((asked.org, root_id or asked.data.root_run_id or run_id or ""))


def _capped_agent(asked: Asked, known: dict[RunKey, Run]) -> str | None:
    """Inside a delegation the agent cap is that of the root's agent (design.md 4).

    What the start said goes before what the question says: the record decides.
    """
    data = asked.data
    if data.run_id is None:
        # Ingestion is in no agent's month, so no agent's cap binds it (facts.md 2.1).
        return None
    root = _root_of(asked, known)
    if root is not None and root.system_role is not None:
        return None
    if root is not None and root.agent_id is not None:
        return root.agent_id
    return data.root_agent_id or data.agent_id


def _caps(asked: Asked, organization: Organization, facts: Facts, now: datetime) -> list[Cap]:
    """The caps that bind, narrowest first: run, root, agent, departments, organization."""
    found = [cap for run_id in _runs_of(asked, facts) if (cap := _run_cap(asked, run_id, facts))]
    month = month_of(now, organization.zones)
    agent_id = _capped_agent(asked, facts.runs)
    agent = facts.agents.get((asked.org, agent_id or ""))
    if agent is not None and agent.monthly_nanousd is not None:
        spent = facts.months.get((asked.org, "agent", agent.agent_id, month), MonthAmount())
        found.append(
            Cap(
                "agent",
                agent.agent_id,
                agent.name or agent.agent_id,
                agent.monthly_nanousd,
                spent.cost_nanousd + spent.late_nanousd,
                spent.unpriced_count > 0,
                month,
                agent.cap_revision,
            )
        )
    for department in facts.departments.get(asked.key, ()):
        key = (asked.org, "department", department.department_id, month)
        spent = facts.months.get(key, MonthAmount())
        found.append(
            Cap(
                "department",
                department.department_id,
                department.name,
                department.monthly_nanousd,
                spent.cost_nanousd + spent.late_nanousd,
                spent.unpriced_count > 0,
                month,
                department.cap_revision,
            )
        )
    if organization.monthly_budget_nanousd is not None:
        spent = facts.months.get((asked.org, "organization", asked.org, month), MonthAmount())
        found.append(
            Cap(
                "organization",
                organization.org,
                organization.name,
                organization.monthly_budget_nanousd,
                spent.cost_nanousd + spent.late_nanousd,
                spent.unpriced_count > 0,
                month,
                organization.cap_revision,
            )
        )
    return found


def _runs_of(asked: Asked, facts: Facts) -> list[str]:
    data = asked.data
    if data.run_id is None:
        return []
    run = facts.runs.get((asked.org, data.run_id))
    root_id = run.root_run_id if run is not None and not run.provisional else data.root_run_id
    return [data.run_id] if root_id in (None, data.run_id) else [data.run_id, root_id or ""]


def _run_cap(asked: Asked, run_id: str, facts: Facts) -> Cap | None:
    run = facts.runs.get((asked.org, run_id))
    limit = run.budget_nanousd if run is not None else None
    if limit is None and run_id == asked.data.run_id and (run is None or run.provisional):
        limit = asked.data.run_budget_nanousd
    if limit is None:
        return None
    amount = facts.run_amounts.get((asked.org, run_id))
    return Cap(
        "run",
        run_id,
        run_id,
        limit,
        amount.cost_nanousd if amount else 0,
        amount.is_partial if amount else False,
        None,
        None,
    )


async def _save(
    connection: Connection,
    fresh: dict[tuple[str, str], Asked],
    made: dict[tuple[str, str], Authorization | Fault],
    facts: Facts,
    now: datetime,
) -> None:
    """Enter provisional runs that the questions speak of and nobody has started yet."""
    new: dict[RunKey, Run] = {}
    described: dict[RunKey, Run] = {}
    for key, asked in fresh.items():
        data = asked.data
        if (
            data.run_id is None
            or asked.channel_id is None
            or isinstance(made[key], Fault)
            or asked.org not in facts.organizations
        ):
            continue
        root = data.root_run_id
        if (asked.org, data.run_id) not in facts.runs:
            known_root = facts.runs.get((asked.org, root or data.run_id))
            new[(asked.org, data.run_id)] = provisional_from(
                data,
                run_id=data.run_id,
                root_run_id=known_root.root_run_id if known_root else root or data.run_id,
                channel_id=asked.channel_id,
                at=now,
            )
        if root is not None and root != data.run_id and (asked.org, root) not in facts.runs:
            new.setdefault((asked.org, root), saw_sign(unheard(root, asked.channel_id), now, now))
        known = facts.runs.get((asked.org, data.run_id))
        if known is not None and known.provisional and known.agent_id is None:
            described[(asked.org, data.run_id)] = provisional_from(
                data,
                run_id=data.run_id,
                root_run_id=known.root_run_id,
                channel_id=asked.channel_id,
                at=now,
            )
    books = await hold_described(connection, described)
    await enter_runs(connection, new, facts.runs)
    await describe_runs(connection, books, described, facts.organizations, now)
