"""What questions are decided on, read in one statement: what they name, and what binds them.

Every statement finds rows by their keys, so that it can run on a connection that plans it once
(`shared.db.BY_KEY_ONLY`). One question waits for each round trip to the database; a group waits
for no more of them than one. Whose caps bind follows from the runs that are read with them; it is
guessed from what the questions say, and read again where the guess was wrong (ADR 0040).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from contracts.directory import PROACTIVE_LIMIT_NANOUSD
from contracts.ledger import Authorization
from services.ledger.domain.books import MonthAmount, RunKey
from services.ledger.domain.caps import Cap
from services.ledger.domain.departments import FOREVER, Interval
from services.ledger.store.directory import organization_of

if TYPE_CHECKING:
    from services.ledger.store.directory import Organization
    from shared.db import Connection

RequestKey = tuple[str, str]
"""Organization and request id."""


class Named(NamedTuple):
    """What one question names."""

    org: str
    request_id: str
    run_id: str | None
    root_run_id: str | None
    """Null where it is the run itself."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    """What is decided on of a run. Its figure: the whole tree's for a root, else its own."""

    run_id: str
    channel_id: str
    root_run_id: str
    provisional: bool
    agent_id: str | None
    user_id: str | None
    started_by_user_id: str | None
    surface: str | None
    system_role: str | None
    routine_id: str | None
    goal_id: str | None
    budget_nanousd: int | None
    shown_start: datetime | None
    is_deleted: bool
    spent_nanousd: int
    is_partial: bool


class Bearer(NamedTuple):
    """Whose caps bind a question, in which month: those of several questions may be one."""

    org: str
    month: str
    agent_id: str | None
    user_id: str | None
    """Who started the tree."""
    person_id: str | None
    """Whose budget of proactive work it counts in."""
    routine_id: str | None
    """The routine that started the tree."""
    goal_id: str | None
    """The goal that it works at."""


class Limited(NamedTuple):
    """An agent whose requests are counted, and how many it may send in a minute."""

    agent_id: str
    name: str
    requests_per_minute: int


@dataclass(slots=True)
class Binding:
    """Caps that are set over one bearer, with what is spent under them; and the organization's."""

    organization: MonthAmount = field(default_factory=MonthAmount)
    unattended: dict[str, Cap] = field(default_factory=dict)
    """By scope: of a routine, a goal, and the proactive work that is done for somebody."""
    agent: Cap | None = None
    limited: Limited | None = None
    """The agent, where its requests are counted."""
    departments: dict[str, Cap] = field(default_factory=dict)
    """By id: those with a cap that the starter belongs or ever belonged to."""
    belongs: list[Interval] = field(default_factory=list)
    """When the starter belongs to them."""


@dataclass(slots=True)
class Known:
    """What is known of the things that questions name."""

    decided: dict[RequestKey, tuple[bytes, Authorization]] = field(default_factory=dict)
    """Earlier decisions: the question's digest, and the answer."""
    organizations: dict[str, Organization] = field(default_factory=dict)
    runs: dict[RunKey, KnownRun] = field(default_factory=dict)
    """The named ones and their roots, as they were said and as they hold; of a run that is not
    known, the root that holds of the one that it is said to have."""
    binding: dict[Bearer, Binding] = field(default_factory=dict)
    """What binds the bearers that were guessed."""


_RUNS_FROM = 2
"""Columns before the first run's."""
_RUN_COLUMNS = len(KnownRun.__dataclass_fields__)


def _run_columns(name: str) -> str:
    figure = f"CASE WHEN {name}.run_id = {name}.root_run_id THEN {name}.tree_{{0}} ELSE {{1}} END"
    shown = {
        column: figure.format(column, f"{name}.own_{column}")
        for column in ("cost_nanousd", "unpriced_count", "missing_delegate_count")
    }
    columns = (
        *(f"{name}.{column}" for column in KnownRun.__slots__[:-3]),
        f"{name}.deleted_at IS NOT NULL",
        shown["cost_nanousd"],
        f"{shown['unpriced_count']} > 0 OR {shown['missing_delegate_count']} > 0",
    )
    # Names of their own: a row that holds three runs is read by place.
    return ", ".join(f"{column} AS {name}_{place}" for place, column in enumerate(columns))


_NAMED = f"""
    SELECT t.org AS asked_org, t.request_id, {_run_columns("r")}, {_run_columns("s")},
        {_run_columns("h")}, a.digest, a.answer, o.org, o.name, o.monthly_budget_nanousd,
        o.cap_revision, o.cap_mode, o.unpriced_policy, o.on_unreachable, o.billing_timezone,
        o.billing_zones::text AS billing_zones, o.proactive_limit_nanousd
    FROM unnest($8::text[], $9::text[], $10::text[], $11::text[])
        AS t (org, request_id, run_id, root_run_id)
    LEFT JOIN admission a ON a.org = t.org AND a.request_id = t.request_id
    LEFT JOIN organization o ON o.org = t.org
    LEFT JOIN run r ON r.org = t.org AND r.run_id = t.run_id
    LEFT JOIN run s ON s.org = t.org AND s.run_id = t.root_run_id
    LEFT JOIN run h ON h.org = t.org AND h.run_id = CASE
        WHEN r.root_run_id <> r.run_id THEN r.root_run_id
        WHEN r.run_id IS NULL AND s.root_run_id <> s.run_id THEN s.root_run_id END
"""

_BOUND = """
    WITH t AS MATERIALIZED (
        SELECT *
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
            $7::text[]) WITH ORDINALITY
            AS t (org, month, agent_id, user_id, person_id, routine_id, goal_id, place)
    ), capped AS (
        SELECT t.place, t.org, t.month, 'organization' AS scope, t.org AS id, NULL AS label,
            NULL::bigint AS limit_nanousd, NULL::bigint AS revision,
            NULL::timestamptz AS since, NULL::timestamptz AS until, NULL::integer AS a_minute
        FROM t
        UNION ALL
        SELECT t.place, t.org, t.month, 'agent', a.agent_id, coalesce(nullif(a.name, ''),
            a.agent_id), a.monthly_nanousd, a.cap_revision, NULL, NULL, a.requests_per_minute
        FROM t JOIN agent a ON a.org = t.org AND a.agent_id = t.agent_id
        WHERE a.monthly_nanousd IS NOT NULL OR a.requests_per_minute IS NOT NULL
        UNION ALL
        SELECT t.place, t.org, t.month, 'department', d.department_id, d.name, d.monthly_nanousd,
            d.cap_revision, m.effective_at, m.ends_at, NULL
        FROM t JOIN department_member m ON m.org = t.org AND m.user_id = t.user_id
        JOIN department d ON d.org = m.org AND d.department_id = m.department_id
        WHERE d.monthly_nanousd IS NOT NULL AND d.removed_revision < d.changed_revision
        {unattended}
    )
    SELECT c.place, c.scope, c.id, c.label, c.limit_nanousd, c.revision, c.since, c.until,
        c.a_minute, m.cost_nanousd, m.unpriced_count, m.late_nanousd
    FROM capped c LEFT JOIN month_spend m
        ON m.org = c.org AND m.scope = c.scope AND m.scope_id = c.id AND m.month = c.month
"""

_UNATTENDED = f"""
        UNION ALL
        SELECT t.place, t.org, t.month, 'person', t.person_id, coalesce(p.name, t.person_id),
            coalesce(o.proactive_limit_nanousd, {PROACTIVE_LIMIT_NANOUSD}), o.cap_revision,
            NULL, NULL, NULL
        FROM t JOIN organization o ON o.org = t.org
        LEFT JOIN member p ON p.org = t.org AND p.user_id = t.person_id
        WHERE t.person_id IS NOT NULL
        UNION ALL
        SELECT t.place, t.org, t.month, 'routine', u.routine_id, u.name, u.monthly_nanousd,
            u.config_revision, NULL, NULL, NULL
        FROM t JOIN routine u ON u.org = t.org AND u.routine_id = t.routine_id
        WHERE u.monthly_nanousd IS NOT NULL
        UNION ALL
        SELECT t.place, t.org, '', 'goal', g.goal_id, g.goal_id, g.budget_nanousd, NULL, NULL,
            NULL, NULL
        FROM t JOIN goal g ON g.org = t.org AND g.goal_id = t.goal_id
"""
"""Read only where somebody's budgets of unattended work may bind: most questions have none."""


_BOUND_BY = {each: _BOUND.format(unattended=_UNATTENDED if each else "") for each in (False, True)}
_NAMED_AND_BOUND_BY = {
    each: f"""
        WITH named AS ({_NAMED}), bound AS ({bound})
        SELECT * FROM named FULL JOIN bound ON FALSE
    """
    for each, bound in _BOUND_BY.items()
}
"""Neither half has to do with the other: they share a round trip, an eighth of an answer's time."""


def known_statement(
    asked: Sequence[Named], bearers: Sequence[Bearer]
) -> tuple[str, list[list[str | None]]]:
    """What `load_known` asks the server, and with which values: columns of bearers, then names."""
    statement = _NAMED_AND_BOUND_BY[_is_any_unattended(bearers)]
    return statement, [*_columns(Bearer, bearers), *_columns(Named, asked)]


def _is_any_unattended(bearers: Sequence[Bearer]) -> bool:
    return any(each.person_id or each.routine_id or each.goal_id for each in bearers)


def _columns(
    kind: type[Named] | type[Bearer], rows: Sequence[Named] | Sequence[Bearer]
) -> list[list[str | None]]:
    return [[each[n] for each in rows] for n in range(len(kind._fields))]


async def load_known(
    connection: Connection, asked: Sequence[Named], guessed: Collection[Bearer]
) -> Known:
    """What questions name, and what binds these bearers: those that are expected to be theirs."""
    bearers = list(guessed)
    statement, values = known_statement(asked, bearers)
    rows = await connection.fetch(statement, *values)
    known = Known(binding={bearer: Binding() for bearer in bearers})
    for row in rows:
        if row["place"] is not None:
            _read_bound(row, bearers, known.binding)
        else:
            _read_named(row, known)
    return known


async def load_binding(
    connection: Connection, bearers: Collection[Bearer]
) -> dict[Bearer, Binding]:
    """The caps over these bearers; a removed department binds nobody."""
    ordered = list(bearers)
    rows = await connection.fetch(
        _BOUND_BY[_is_any_unattended(ordered)], *_columns(Bearer, ordered)
    )
    found = {bearer: Binding() for bearer in ordered}
    for row in rows:
        _read_bound(row, ordered, found)
    return found


def _read_named(row: Any, known: Known) -> None:
    org = row["asked_org"]
    if row["digest"] is not None:
        answer = Authorization.model_validate(row["answer"])
        known.decided[(org, row["request_id"])] = (bytes(row["digest"]), answer)
    if row["org"] is not None and org not in known.organizations:
        known.organizations[org] = organization_of(row)
    for place in range(3):
        start = _RUNS_FROM + place * _RUN_COLUMNS
        values: Any = row[start : start + _RUN_COLUMNS]
        if values[0] is not None and (org, values[0]) not in known.runs:
            known.runs[(org, values[0])] = _known_run(values)


def _read_bound(row: Any, bearers: Sequence[Bearer], into: Mapping[Bearer, Binding]) -> None:
    bearer = bearers[row["place"] - 1]
    binding = into[bearer]
    if row["scope"] == "organization":
        binding.organization = _spent(row)
    elif row["scope"] == "agent":
        if row["limit_nanousd"] is not None:
            binding.agent = _cap(row, bearer.month)
        if row["a_minute"] is not None:
            binding.limited = Limited(row["id"], row["label"], row["a_minute"])
    elif row["scope"] in ("routine", "person"):
        binding.unattended[row["scope"]] = _cap(row, bearer.month)
    elif row["scope"] == "goal":
        binding.unattended["goal"] = _cap(row, None)
    else:
        binding.departments[row["id"]] = _cap(row, bearer.month)
        binding.belongs.append(Interval(row["id"], row["since"], row["until"] or FOREVER))


def _known_run(values: Any) -> KnownRun:
    *facts, spent_nanousd, is_partial = values
    known: tuple[Any, ...] = (*facts, int(spent_nanousd), is_partial)
    return KnownRun(*known)


def _spent(row: Any) -> MonthAmount:
    if row["cost_nanousd"] is None:
        return MonthAmount()
    return MonthAmount(
        int(row["cost_nanousd"]), int(row["unpriced_count"]), int(row["late_nanousd"])
    )


def _cap(row: Any, month: str | None) -> Cap:
    spent = _spent(row)
    return Cap(
        row["scope"],
        row["id"],
        row["label"],
        row["limit_nanousd"],
        spent.cost_nanousd + spent.late_nanousd,
        spent.unpriced_count > 0,
        month,
        row["revision"],
    )
