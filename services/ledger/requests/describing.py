"""Runs that a question speaks of before their start has arrived: entered, or put where they belong.

The one thing not to break: what a run has spent counts where it is said to belong, from the moment
that it is said. Locks are those of a batch of reports, in the same order: directories, runs that
are there by key, new ones by key, sums. They are taken only for a run that was heard of before it
was described; who asks for a new one waits for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from services.ledger.domain.books import Books, RunKey
from services.ledger.domain.months import month_of
from services.ledger.domain.overruns import Moved
from services.ledger.domain.runs import Run, describe
from services.ledger.store import departments, entries, runs
from services.ledger.store.exceeding import note_moved, strict_months
from services.ledger.store.notices import warn_of_caps
from services.ledger.store.placing import place
from services.ledger.store.slots import move_slots

if TYPE_CHECKING:
    from datetime import datetime

    from services.ledger.store.directory import Organization
    from services.ledger.store.questions import KnownRun
    from shared.db import Connection


async def enter_runs(
    connection: Connection, new: Mapping[RunKey, Run], known: Mapping[RunKey, KnownRun]
) -> None:
    """Enter runs that nobody has heard of, counted where they belong; `known`: their roots."""
    if not new:
        return
    books = Books()
    books.load({key: _as_said(run) for key, run in known.items()})
    books.load(new)
    if starters := books.starters():
        books.belongs = await departments.load_belonging(connection, starters)
    counted = books.to_recount()
    await runs.enter_asked(
        connection, ((key[0], counted.get(key, run)) for key, run in new.items())
    )


def _as_said(known: KnownRun) -> Run:
    """As much of a run as says where what its tree spends is counted."""
    return Run(
        run_id=known.run_id,
        channel_id=known.channel_id,
        root_run_id=known.root_run_id,
        said_root_run_id=known.root_run_id,
        provisional=known.provisional,
        agent_id=known.agent_id,
        user_id=known.user_id,
        surface=known.surface,
        routine_id=known.routine_id,
        goal_id=known.goal_id,
        started_by_user_id=known.started_by_user_id,
        system_role=known.system_role,
        started_at=known.shown_start,
    )


async def hold_described(connection: Connection, described: Mapping[RunKey, Run]) -> Books:
    """Lock runs that were heard of, with the roots that they are said to have."""
    books = Books()
    if described:
        await departments.share_directories(connection, {org for org, _ in described})
        roots = {(org, run.said_root_run_id) for (org, _), run in described.items()}
        books.load(await runs.lock_with_roots(connection, described.keys() | roots))
    return books


async def describe_runs(
    connection: Connection,
    books: Books,
    described: Mapping[RunKey, Run],
    organizations: Mapping[str, Organization],
    now: datetime,
) -> None:
    """Let questions say what held runs are, and move what these have spent so far."""
    if not described:
        return
    for key, said in described.items():
        root = books.runs.get((key[0], said.said_root_run_id))
        # Another channel may have said the root first, meanwhile.
        if key in books.runs and (root is None or root.channel_id == said.channel_id):
            books.runs[key] = describe(books.runs[key], said)
    await place(connection, books)
    await runs.save_runs(connection, [(key[0], run) for key, run in books.changed()])
    sums = runs.Sums(books.own, books.tree, books.signs, books.own_signs)
    await runs.add_to_runs(connection, sums, now=now)
    spent = await entries.add_to_months(connection, books.months)
    await move_slots(connection, books)
    months = {key[0]: month_of(now, organizations[key[0]].zones) for key in spent}
    await warn_of_caps(connection, spent, months, now=now)


async def note_described(
    connection: Connection, books: Books, organizations: Mapping[str, Organization], now: datetime
) -> None:
    """Record what described runs exceed: a cap of their own, or those that they count in now.

    Last of all that a question does, since it locks the rows of caps.
    """
    if books.runs:
        strict = strict_months(organizations, now)
        await note_moved(connection, Moved(books, strict, cause="reattributed"), now=now)
