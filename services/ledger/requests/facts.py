"""What a group of questions is decided on: who asks, what is known, which caps bind."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from contracts.ledger import Refusal
from services.ledger.domain.caps import Cap
from services.ledger.domain.departments import departments_at
from services.ledger.domain.months import month_of
from services.ledger.domain.unattended import proactive_person
from services.ledger.requests.starters import starter_of
from services.ledger.store import directory, questions
from services.ledger.store.questions import Bearer, Binding, Known, KnownRun, Named

if TYPE_CHECKING:
    from datetime import datetime

    from contracts.ledger import Authorize
    from services.ledger.domain.books import RunKey
    from services.ledger.domain.delegates import Published
    from services.ledger.domain.months import Zone
    from services.ledger.requests.starters import Starter
    from services.ledger.store.directory import Organization
    from shared.db import Connection

ORGANIZATIONS_MAX: Final = 10_000
"""Whose time zones one process remembers."""
UNATTENDED: Final = ("routine", "goal", "person")
"""Scopes between a run's own cap and its agent's, narrowest first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question with who asked it."""

    org: str
    channel_id: str | None
    data: Authorize
    digest: bytes = field(init=False)
    """SHA-256 of what is asked and by which channel: one hold is not for two."""

    def __post_init__(self) -> None:
        said = f"{self.channel_id or ''}\n{self.data.model_dump_json()}"
        object.__setattr__(self, "digest", hashlib.sha256(said.encode()).digest())

    @property
    def key(self) -> tuple[str, str]:
        """What makes it idempotent."""
        return (self.org, self.data.request_id)


@dataclass(slots=True)
class Facts:
    """What a group of questions is decided on."""

    organizations: Mapping[str, Organization]
    months: Mapping[str, str]
    """The month that the organizations are in."""
    runs: Mapping[RunKey, KnownRun]
    binding: dict[Bearer, Binding]
    starters: Mapping[tuple[str, str], Starter | None]
    """By question: who started its tree."""
    published: Mapping[tuple[str, str], Published] = field(default_factory=dict)
    """Agents that are delegated to, and those whose trees they work in."""
    bearers: dict[tuple[str, str], Bearer] = field(default_factory=dict)
    """By question: whose caps bind it."""

    def bearer_of(self, asked: Asked) -> Bearer:
        """Whose caps bind a question."""
        known = self.bearers.get(asked.key)
        if known is None:
            starter = self.starters[asked.key]
            agent_id = capped_agent(asked, self.runs)
            user_id = starter.user_id if starter is not None else None
            unattended = unattended_of(asked, self.runs)
            known = Bearer(asked.org, self.months[asked.org], agent_id, user_id, *unattended)
            self.bearers[asked.key] = known
        return known


async def load_facts(
    connection: Connection, known: Known, group: Collection[Asked], now: datetime
) -> Facts:
    """Load what binds questions of which everything that they name is known."""
    asked_of_known = [asked for asked in group if asked.org in known.organizations]
    facts = Facts(
        organizations=known.organizations,
        months={org: month_of(now, each.zones) for org, each in known.organizations.items()},
        runs=known.runs,
        binding={},
        starters={
            asked.key: starter_of(asked.org, asked.data, _root_of(asked, known.runs), now)
            for asked in asked_of_known
        },
    )
    facts.binding = known.binding
    unforeseen = {facts.bearer_of(asked) for asked in asked_of_known} - facts.binding.keys()
    if unforeseen:
        facts.binding |= await questions.load_binding(connection, unforeseen)
    delegated = {
        (asked.org, agent_id)
        for asked in asked_of_known
        for root in [facts.bearer_of(asked).agent_id]
        if root is not None and asked.data.agent_id not in (None, root)
        for agent_id in (asked.data.agent_id or "", root)
    }
    if delegated:
        facts.published = await directory.load_published(connection, delegated)
    return facts


class Foresight:
    """Whose caps will bind a question, as it says itself: right but where the record differs.

    What is guessed decides nothing: what binds is looked up by the runs that are read.
    """

    def __init__(self) -> None:
        """Know no organization's month yet."""
        self._zones: dict[str, tuple[Zone, ...]] = {}

    async def load(self, connection: Connection, group: Collection[Asked], now: datetime) -> Known:
        """What questions name, and most likely all that binds them."""
        known = await questions.load_known(
            connection,
            [named_by(asked) for asked in group],
            {self._guess(asked, now) for asked in group if asked.org in self._zones},
        )
        if len(self._zones) > ORGANIZATIONS_MAX:
            self._zones.clear()
        for org, organization in known.organizations.items():
            self._zones[org] = organization.zones
        return known

    def _guess(self, asked: Asked, now: datetime) -> Bearer:
        starter = starter_of(asked.org, asked.data, None, now)
        return Bearer(
            asked.org,
            month_of(now, self._zones[asked.org]),
            capped_agent(asked, {}),
            starter.user_id if starter is not None else None,
            *unattended_of(asked, {}),
        )


def named_by(asked: Asked) -> Named:
    """What a question names."""
    run_id, root_run_id = asked.data.run_id, asked.data.root_run_id
    other = root_run_id if root_run_id != run_id else None
    return Named(asked.org, asked.data.request_id, run_id, other)


def _root_of(asked: Asked, runs: Mapping[RunKey, KnownRun]) -> KnownRun | None:
    run_id = asked.data.run_id
    run = runs.get((asked.org, run_id or ""))
    root_id = run.root_run_id if run is not None and not run.provisional else None
    named = runs.get((asked.org, root_id or asked.data.root_run_id or run_id or ""))
    # One that is named as root may have been delegated itself: its root is whose tree it is.
    return runs.get((asked.org, named.root_run_id), named) if named is not None else None


def capped_agent(asked: Asked, runs: Mapping[RunKey, KnownRun]) -> str | None:
    """Inside a delegation the agent cap is that of the root's agent (design.md 4).

    What the start said goes before what the question says: the record decides.
    """
    data = asked.data
    if data.run_id is None:
        # Ingestion is in no agent's month, so no agent's cap binds it (facts.md 2.1).
        return None
    root = _root_of(asked, runs)
    if root is not None and root.system_role is not None:
        return None
    if root is not None and root.agent_id is not None:
        return root.agent_id
    return data.root_agent_id or data.agent_id


class Unattended(NamedTuple):
    """Whose budgets of unattended work bind."""

    person_id: str | None = None
    routine_id: str | None = None
    goal_id: str | None = None


def unattended_of(asked: Asked, runs: Mapping[RunKey, KnownRun]) -> Unattended:
    """Whose budgets of unattended work bind: as the root said, else as the question says."""
    data = asked.data
    if data.run_id is None:
        return Unattended()
    root = _root_of(asked, runs)
    if root is not None and not root.provisional:
        person_id = proactive_person(root.surface, root.user_id)
        return Unattended(person_id, root.routine_id, root.goal_id)
    person_id = proactive_person(data.surface.value if data.surface else None, data.user_id)
    routine_id, goal_id = data.routine_id, data.goal_id
    if root is not None and root.surface is not None:
        person_id = proactive_person(root.surface, root.user_id)
    if root is not None:
        routine_id, goal_id = root.routine_id or routine_id, root.goal_id or goal_id
    return Unattended(person_id, routine_id, goal_id)


def caps_over(asked: Asked, organization: Organization, facts: Facts) -> list[Cap]:
    """The caps that bind, narrowest first.

    Run, root, routine, goal, person, agent, departments, organization.
    """
    found = [cap for run_id in _runs_of(asked, facts) if (cap := _run_cap(asked, run_id, facts))]
    binding = facts.binding[facts.bearer_of(asked)]
    found += [binding.unattended[each] for each in UNATTENDED if each in binding.unattended]
    if binding.agent is not None:
        found.append(binding.agent)
    starter = facts.starters[asked.key]
    if starter is not None:
        bound = departments_at(binding.belongs, starter.at)
        found += (binding.departments[each] for each in bound)
    if organization.monthly_budget_nanousd is not None:
        spent = binding.organization
        found.append(
            Cap(
                "organization",
                organization.org,
                organization.name,
                organization.monthly_budget_nanousd,
                spent.cost_nanousd + spent.late_nanousd,
                spent.unpriced_count > 0,
                facts.months[asked.org],
                organization.cap_revision,
            )
        )
    return found


def refusal_of_deleted(asked: Asked, facts: Facts) -> Refusal | None:
    """That the run itself was deleted; what it had delegated goes on (facts.md 2.3)."""
    run = facts.runs.get((asked.org, asked.data.run_id or ""))
    if run is None or not run.is_deleted:
        return None
    return Refusal(code="run_deleted", scope="run", id=run.run_id, name=run.run_id)


def _runs_of(asked: Asked, facts: Facts) -> list[str]:
    data = asked.data
    if data.run_id is None:
        return []
    run = facts.runs.get((asked.org, data.run_id))
    root_id = run.root_run_id if run is not None and not run.provisional else data.root_run_id
    if (named := facts.runs.get((asked.org, root_id or ""))) is not None:
        root_id = named.root_run_id
    return [data.run_id] if root_id in (None, data.run_id) else [data.run_id, root_id or ""]


def _run_cap(asked: Asked, run_id: str, facts: Facts) -> Cap | None:
    run = facts.runs.get((asked.org, run_id))
    limit = run.budget_nanousd if run is not None else None
    if limit is None and run_id == asked.data.run_id and (run is None or run.provisional):
        limit = asked.data.run_budget_nanousd
    if limit is None:
        return None
    spent_nanousd, is_partial = (run.spent_nanousd, run.is_partial) if run else (0, False)
    return Cap("run", run_id, run_id, limit, spent_nanousd, is_partial, None, None)
