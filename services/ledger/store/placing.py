"""Runs put into the trees and months where they belong: what they have entered moves along.

Whoever learns something of runs does so: reports, changes of departments, questions. Directories
are shared, and the runs held, before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.ledger.store import departments, entries, runs

if TYPE_CHECKING:
    from services.ledger.domain.books import Books
    from shared.db import Connection


async def place(connection: Connection, books: Books) -> None:
    """Move what was entered before to the trees and months that it turns out to belong to."""
    if trees := books.trees_to_reroot():
        books.load(await runs.lock_members(connection, trees))
    while missing := books.roots_missing():
        held = await runs.lock_runs(connection, missing)
        books.load(held)
        if not held:
            break
    books.reroot()
    if roots := books.roots_with_new_agent():
        books.load(await runs.lock_members(connection, roots))
    if moved := books.moved():
        books.move(await runs.load_own_amounts(connection, moved))
    books.show_roots()
    await count_again(connection, books)


async def count_again(connection: Connection, books: Books) -> None:
    """Move what held runs have entered to the months of the agents and departments they are of."""
    if starters := books.starters():
        books.belongs |= await departments.load_belonging(connection, starters)
    if roots := books.roots_with_new_departments():
        books.load(await runs.lock_members(connection, roots))
    if counted := books.to_recount():
        entered = await entries.load_month_amounts(connection, counted.keys())
        books.recount(counted, entered)
