"""`/agents/{agent}/grants`: what a person or a department may do with one agent beyond their role.

The one thing not to break: nobody grants what they do not hold on that agent, and a grant only
adds. It belongs to the agent and stays when a version is published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from contracts.directory import GRANTS_MAX, AgentGrant
from contracts.errors import Rejected
from contracts.types import Id
from services.gateway.domain import directory
from services.gateway.domain.permissions import AGENTS_EDIT, AGENTS_VIEW, RESOURCES
from services.gateway.errors import PermissionMissing, Unknown
from services.gateway.http.access import asking_of, lacking_on, require_on_agent
from services.gateway.http.agent_fields import Agent
from services.gateway.http.agents import fields_of, lock_live
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import Body, NoBody, NoQuery, Page, PageQuery
from services.gateway.store import agents, departments, members
from services.gateway.store.acts import record_act
from services.gateway.store.agents import StoredAgent

if TYPE_CHECKING:
    from shared.db import Connection

GRANTABLE = tuple(f"agents:{act}" for act in RESOURCES["agents"])


class NewGrant(Body):
    """Replaces what the person or department was granted on this agent before."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"kind": "user", "id": "u-17", "permissions": ["agents:run"]}]
        }
    )

    kind: Literal["user", "department"]
    id: Id
    permissions: Annotated[tuple[str, ...], Field(min_length=1, max_length=len(GRANTABLE))]

    @field_validator("permissions")
    @classmethod
    def _on_agents(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not set(value) <= set(GRANTABLE):
            raise ValueError(f"granted on an agent are {', '.join(GRANTABLE)}")
        return tuple(sorted(set(value)))


GrantPage = Page[AgentGrant]


@route(
    "GET",
    "/agents/{agent_id:str}/grants",
    Contract(
        summary="List the grants on an agent",
        needs=(AGENTS_VIEW,),
        query=PageQuery,
        body=NoBody,
        answer=GrantPage,
        on_agent=True,
    ),
)
async def list_grants(call: Call[PageQuery, NoBody]) -> GrantPage:
    """People first, then departments, each by id."""
    async with call.ports.database.reading() as connection:
        stored = await agents.load_agent(connection, call.org, call.path_id("agent_id"))
        if stored is None:
            raise Unknown("agent")
        await require_on_agent(connection, call, stored.published, AGENTS_VIEW)
    found, skip = stored.published.grants, call.query.skip
    return GrantPage(items=found[skip : skip + call.query.limit], total=len(found))


@route(
    "POST",
    "/agents/{agent_id:str}/grants",
    Contract(
        summary="Grant permissions on an agent",
        needs=(AGENTS_EDIT,),
        query=NoQuery,
        body=NewGrant,
        answer=Agent,
        refusals=(400,),
        on_agent=True,
    ),
)
async def grant(call: Call[NoQuery, NewGrant]) -> Agent:
    """To a member or a department, and only what the caller holds on the agent."""
    given = AgentGrant(**dict(call.body))
    async with call.ports.database.transaction() as connection:
        stored = await lock_live(connection, call, call.path_id("agent_id"), AGENTS_EDIT)
        asking = await asking_of(connection, call)
        if lacking := lacking_on(asking, stored.published, *given.permissions):
            raise PermissionMissing(lacking)
        await _require_grantee(connection, call.org, given)
        kept = _without(stored.published.grants, given.kind, given.id)
        if len(kept) >= GRANTS_MAX:
            raise Rejected(
                f"an agent has at most {GRANTS_MAX} grants: grant to a department",
                reason="grants_full",
            )
        return await _save(connection, call, stored, (*kept, given))


@route(
    "DELETE",
    "/agents/{agent_id:str}/grants/{kind:str}/{grantee_id:str}",
    Contract(
        summary="Take grants on an agent back",
        needs=(AGENTS_EDIT,),
        query=NoQuery,
        body=NoBody,
        answer=Agent,
        refusals=(400,),
        on_agent=True,
    ),
)
async def revoke_grant(call: Call[NoQuery, NoBody]) -> Agent:
    """All that a `user` or a `department` was granted on the agent. Needs no membership of them."""
    kind, grantee_id = call.path_id("kind"), call.path_id("grantee_id")
    async with call.ports.database.transaction() as connection:
        stored = await lock_live(connection, call, call.path_id("agent_id"), AGENTS_EDIT)
        kept = _without(stored.published.grants, kind, grantee_id)
        return await _save(connection, call, stored, kept)


def _without(grants: tuple[AgentGrant, ...], kind: str, grantee_id: str) -> tuple[AgentGrant, ...]:
    return tuple(each for each in grants if (each.kind, each.id) != (kind, grantee_id))


async def _require_grantee(connection: Connection, org: str, given: AgentGrant) -> None:
    if given.kind == "user":
        if await members.load_member(connection, org, given.id) is None:
            raise Unknown("member")
    elif await departments.load_department(connection, org, given.id) is None:
        raise Unknown("department")


async def _save(
    connection: Connection,
    call: Call[Any, Any],
    stored: StoredAgent,
    grants: tuple[AgentGrant, ...],
) -> Agent:
    ordered = tuple(sorted(grants, key=lambda each: (each.kind == "department", each.id)))
    said = directory.change_agent(stored.published, {"grants": ordered}, now=call.ports.clock.now())
    if said is None:
        return Agent(**fields_of(stored))
    await agents.save_agent(connection, call.org, said)
    details = directory.changes(stored.published, said)
    await record_act(
        connection, call.act("agent.published", "agent", said.agent_id, **details), said
    )
    changed = StoredAgent(said.agent_id, said.entity_revision, said, stored.created_at, None)
    return Agent(**fields_of(changed))


ROUTES = (list_grants, grant, revoke_grant)
