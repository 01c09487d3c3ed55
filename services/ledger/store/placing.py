"""Runs put into the trees and months where they belong: what they have entered moves along.

Whoever learns something of runs does so: reports, changes of departments, questions. Directories
are shared, and the runs held, before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.ledger.store import departments, entries, runs

if TYPE_CHECKING:
    from collections.abc import Collection

    from services.ledger.domain.books import Books, RunKey
    from shared.db import Connection


async def place(connection: Connection, books: Books) -> None:
    """Move what was entered before to the trees and months that it turns out to belong to."""
    if changed := books.to_cut():
        await _cut(connection, books, changed)
    if trees := books.trees_to_reroot():
        books.load(await runs.lock_members(connection, trees))
    await _reroot(connection, books)
    if roots := books.roots_counted_anew():
        books.load(await runs.lock_members(connection, roots))
    if moved := books.moved():
        books.move(await runs.load_own_amounts(connection, moved))
    books.show_roots()
    await count_again(connection, books)


async def _reroot(connection: Connection, books: Books) -> None:
    """Give runs the roots that they have now, with all that was in the trees that they left."""
    looked_at: set[RunKey] = set()
    while True:
        while missing := books.roots_missing():
            held = await runs.lock_runs(connection, missing)
            books.load(held)
            if not held:
                break
        books.reroot()
        left = books.trees_left() - looked_at
        if not left:
            return
        books.load(await runs.lock_members(connection, left))
        looked_at |= left


async def _cut(connection: Connection, books: Books, changed: Collection[RunKey]) -> None:
    """Cut trees off where a parent was deleted, with all that is above and below what changed.

    Deletions are few: an organization without one is left after a look at an index. Whoever
    deletes is alone in it (`handlers/work.py`).
    """
    deleting = {key[0] for key, run in books.runs.items() if run.deleted_at is not None}
    deleting |= await runs.list_deleting(connection, {key[0] for key in changed} - deleting)
    concerned = [key for key in changed if key[0] in deleting]
    if not concerned:
        return
    books.load(await runs.lock_descendants(connection, concerned))
    while missing := books.parents_missing(concerned):
        held = await runs.lock_runs(connection, missing)
        books.load(held)
        if not held:
            break
    books.cut(concerned)


async def count_again(connection: Connection, books: Books) -> None:
    """Move what held runs have entered to the months of the agents and departments they are of."""
    if starters := books.starters():
        books.belongs |= await departments.load_belonging(connection, starters)
    if roots := books.roots_with_new_departments():
        books.load(await runs.lock_members(connection, roots))
    if counted := books.to_recount():
        entered = await entries.load_month_amounts(connection, counted.keys())
        books.recount(counted, entered)
