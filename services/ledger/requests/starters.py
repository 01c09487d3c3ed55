"""Who started the tree that a question is about: whose departments' caps bind it.

What the root's start said goes before what the question says: the record decides. Until then the
starter is who the question names, and the run begins with the question (design.md 4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime

    from contracts.ledger import Authorize
    from services.ledger.store.questions import KnownRun


class Starter(NamedTuple):
    """A person, and when what they started began."""

    org: str
    user_id: str
    at: datetime


def starter_of(org: str, asked: Authorize, root: KnownRun | None, now: datetime) -> Starter | None:
    """Who started the tree; None for ingestion and for what nobody started."""
    if asked.run_id is None:
        return None
    says = root is not None and (not root.provisional or root.started_by_user_id is not None)
    user_id = root.started_by_user_id if root is not None and says else asked.started_by_user_id
    begun = root.shown_start if root is not None else None
    return None if user_id is None else Starter(org, user_id, begun or now)
