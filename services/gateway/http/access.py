"""How far a caller's permissions reach to one agent: the wider of role and grant.

The one thing not to break: an agent that a caller may not see answers like one that does not
exist. A grant never narrows (facts.md 11.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.gateway.domain.access import Asking, agent_scope_fits
from services.gateway.domain.departments import members_at
from services.gateway.domain.permissions import AGENTS_VIEW, Scope
from services.gateway.errors import PermissionMissing, Unknown
from services.gateway.store.departments import list_departments_of

if TYPE_CHECKING:
    from contracts.directory import AgentPublished
    from services.gateway.http.contract import Call
    from shared.db import Connection


async def asking_of(connection: Connection, call: Call[Any, Any]) -> Asking:
    """The caller as access to agents sees them; departments are read where they matter."""
    caller = call.caller
    departments: frozenset[str] = frozenset()
    if caller.user_id is not None and caller.scope(AGENTS_VIEW) is not Scope.ALL:
        now = call.ports.clock.now()
        departments = frozenset(
            stored.state.department_id
            for stored in await list_departments_of(connection, call.org, caller.user_id)
            if caller.user_id in members_at(stored.state.members, now)
        )
    return Asking(caller.held, caller.user_id, departments)


def lacking_on(asking: Asking, agent: AgentPublished, *needed: str) -> list[str]:
    """The needed permissions that reach the agent neither by role nor by grant."""
    return [name for name in needed if not agent_scope_fits(asking, agent, name)]


async def require_on_agent(
    connection: Connection, call: Call[Any, Any], agent: AgentPublished, *needed: str
) -> Asking:
    """Refuse a caller who lacks one of the needed permissions on this agent.

    Raises:
        Unknown: they may not even see it.
        PermissionMissing: all that they lack.
    """
    asking = await asking_of(connection, call)
    lacking = lacking_on(asking, agent, *needed)
    if not lacking:
        return asking
    if AGENTS_VIEW not in needed and not lacking_on(asking, agent, AGENTS_VIEW):
        raise PermissionMissing(lacking)
    if call.caller.signed_in is None:
        raise PermissionMissing(lacking)
    raise Unknown("agent")
