"""Whether a permission reaches an agent: scope by role, or a grant (facts.md 11).

The one thing not to break: scopes are compared by rank, and a grant only ever adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.directory import AgentGrant, AgentPublished
from services.gateway.domain.permissions import Held, Scope

SHARED_VISIBILITY = "org"
"""An agent that everybody of the organization sees; one that is `private` is its owner's."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks: what they hold by role, which member they are, where they belong now."""

    held: Held
    user_id: str | None
    """None: a key, which owns nothing and is granted nothing."""
    departments: frozenset[str] = frozenset()


def agent_scope_fits(asking: Asking, agent: AgentPublished, permission: str) -> bool:
    """Whether somebody holds a permission on an agent."""
    if asking.held.get(permission, Scope.NONE) >= distance(asking, agent):
        return True
    return any(
        permission in grant.permissions and _is_meant(asking, grant) for grant in agent.grants
    )


def distance(asking: Asking, agent: AgentPublished) -> Scope:
    """The narrowest scope that reaches an agent from where somebody stands."""
    if asking.user_id is not None and agent.owner_user_id == asking.user_id:
        return Scope.OWN
    return Scope.SHARED if agent.visibility == SHARED_VISIBILITY else Scope.ALL


def _is_meant(asking: Asking, grant: AgentGrant) -> bool:
    if grant.kind == "user":
        return grant.id == asking.user_id
    return grant.id in asking.departments
