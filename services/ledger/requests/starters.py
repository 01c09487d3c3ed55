"""Who started the tree that a question is about, and which departments' caps bind them.

What the root's start said goes before what the question says: the record decides. Until then the
starter is who the question names, and the run begins with the question (design.md 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from services.ledger.domain.departments import departments_at
from services.ledger.store import departments

if TYPE_CHECKING:
    from datetime import datetime

    from contracts.ledger import Authorize
    from services.ledger.domain.runs import Run
    from services.ledger.store.departments import Department
    from shared.db import Connection

RequestKey = tuple[str, str]
"""Organization and request id."""


class Starter(NamedTuple):
    """A person, and when what they started began."""

    org: str
    user_id: str
    at: datetime


def starter_of(org: str, asked: Authorize, root: Run | None, now: datetime) -> Starter | None:
    """Who started the tree; None for ingestion and for what nobody started."""
    if asked.run_id is None:
        return None
    says = root is not None and (not root.provisional or root.started_by_user_id is not None)
    user_id = root.started_by_user_id if root is not None and says else asked.started_by_user_id
    begun = root.shown_start if root is not None else None
    return None if user_id is None else Starter(org, user_id, begun or now)


async def load_bound(
    connection: Connection, starters: Mapping[RequestKey, Starter]
) -> dict[RequestKey, tuple[Department, ...]]:
    """The departments with a cap that questions' starters belonged to, by id."""
    if not starters:
        return {}
    people = {(each.org, each.user_id) for each in starters.values()}
    belongs = await departments.load_belonging(connection, people)
    bound = {
        key: [(each.org, one) for one in departments_at(belongs[each[:2]], each.at)]
        for key, each in starters.items()
    }
    capped = await departments.load_capped(
        connection, {one for found in bound.values() for one in found}
    )
    return {
        key: tuple(capped[one] for one in found if one in capped) for key, found in bound.items()
    }
