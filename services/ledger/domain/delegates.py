"""Whether a delegated request may still be sent (design.md 4, *Ask first*; facts.md 2.3). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from contracts.ledger import Refusal


class Published(NamedTuple):
    """An agent as the directory says it."""

    agent_id: str
    name: str | None
    version: int | None
    is_archived: bool
    pins: Mapping[str, int]
    """Delegates of its published spec, each with its version."""


def refuse_delegate(
    agent_id: str, delegate: Published | None, root: Published | None
) -> Refusal | None:
    """Refuse a delegate that is archived, or pinned at a version that was never published.

    `root` is the agent that started the tree. What it does not pin, an inline specialist for one,
    is nobody's business here.
    """
    if delegate is not None and delegate.is_archived:
        return Refusal(code="delegate_archived", scope="agent", id=agent_id, name=delegate.name)
    pinned = root.pins.get(agent_id) if root is not None else None
    if pinned is not None and (delegate is None or (delegate.version or 0) < pinned):
        return Refusal(
            code="delegate_version_missing", scope="agent", id=agent_id, name=str(pinned)
        )
    return None
