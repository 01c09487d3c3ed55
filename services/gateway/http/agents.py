"""`/agents`: published specs; a version is frozen, an archived agent takes no new runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contracts.directory import AgentArchived, AgentBudget, AgentPublished
from services.gateway.domain import directory
from services.gateway.domain.permissions import AGENTS_EDIT, AGENTS_PUBLISH, AGENTS_VIEW
from services.gateway.errors import (
    AgentIsArchived,
    DelegatesCycle,
    DelegatesMissing,
    PermissionMissing,
    Taken,
    Unknown,
)
from services.gateway.http.access import asking_of, lacking_on, require_on_agent
from services.gateway.http.agent_fields import (
    Agent,
    AgentPage,
    AgentPatch,
    AgentQuery,
    AgentRow,
    AgentSpec,
    NewAgent,
    PublishedAgent,
)
from services.gateway.http.applied import is_applied
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import NoBody, NoQuery
from services.gateway.http.once import create_once
from services.gateway.store import agents
from services.gateway.store.acts import record_act
from services.gateway.store.agents import StoredAgent

if TYPE_CHECKING:
    from shared.db import Connection


def fields_of(stored: StoredAgent) -> dict[str, Any]:
    """A stored agent as an answer shows it."""
    return {
        **dict(stored.published),
        "budget_monthly_usd": stored.published.budget.monthly_nanousd,
        "budget_requests_per_minute": stored.published.budget.requests_per_minute,
        "archived_at": stored.archived_at,
        "entity_revision": stored.entity_revision,
        "created_at": stored.created_at,
    }


async def _require_pins(connection: Connection, call: Call[Any, Any], spec: AgentSpec) -> None:
    """Every pinned delegate is published, not archived, and seen by whoever pins it."""
    org = call.org
    locked = await agents.lock_agents(connection, org, {pin.agent_id for pin in spec.delegates})
    asking = await asking_of(connection, call)
    seen = {
        name: agent.published
        for name, agent in locked.items()
        if agent.archived_at is None
        and (call.caller.signed_in is None or not lacking_on(asking, agent.published, AGENTS_VIEW))
    }
    pins = [(pin.agent_id, pin.version) for pin in spec.delegates]
    published = {name: state.version for name, state in seen.items()}
    if missing := directory.missing_pins(pins, published):
        raise DelegatesMissing(missing)


async def _publish(
    connection: Connection, call: Call[Any, Any], before: StoredAgent | None, said: AgentPublished
) -> PublishedAgent:
    await agents.save_version(connection, call.org, said, published_by=call.caller.pseudonym)
    details = directory.changes(before.published if before else None, said)
    act = call.act("agent.published", "agent", said.agent_id, **details)
    await record_act(connection, act, said)
    created_at = before.created_at if before else said.published_at
    stored = StoredAgent(said.agent_id, said.entity_revision, said, created_at, None)
    changed = said.budget != AgentBudget() or (
        before is not None and before.published.budget != said.budget
    )
    # What still has to be applied is asked for after the commit.
    return PublishedAgent(**fields_of(stored), effective=not changed)


async def _once_applied(call: Call[Any, Any], answer: PublishedAgent) -> PublishedAgent:
    effective = answer.effective or await is_applied(
        call, "agent", answer.agent_id, answer.entity_revision
    )
    return answer.model_copy(update={"effective": effective})


@route(
    "POST",
    "/agents",
    Contract(
        summary="Create an agent and publish its first version",
        needs=(AGENTS_EDIT, AGENTS_PUBLISH),
        query=NoQuery,
        body=NewAgent,
        answer=PublishedAgent,
        status=201,
        takes_idempotency_key=True,
    ),
)
async def create_agent(call: Call[NoQuery, NewAgent]) -> PublishedAgent:
    """Pinned delegates have to exist at that version and not be archived.

    A person who names no owner is the owner.
    """
    spec = call.body.published_fields()
    if "owner_user_id" not in call.body.model_fields_set:
        spec["owner_user_id"] = call.caller.user_id
    said = directory.publish_agent(None, spec, now=call.ports.clock.now())

    async def create(connection: Connection) -> PublishedAgent:
        asking = await asking_of(connection, call)
        if lacking := lacking_on(asking, said, AGENTS_EDIT, AGENTS_PUBLISH):
            raise PermissionMissing(lacking)
        await _require_pins(connection, call, call.body)
        if not await agents.save_new_agent(connection, call.org, said):
            raise Taken("agent", said.agent_id)
        return await _publish(connection, call, None, said)

    created = await create_once(call, create, model=PublishedAgent)
    return await _once_applied(call, created.answer)


@route(
    "GET",
    "/agents",
    Contract(
        summary="List agents",
        needs=(AGENTS_VIEW,),
        query=AgentQuery,
        body=NoBody,
        answer=AgentPage,
        on_agent=True,
    ),
)
async def list_agents(call: Call[AgentQuery, NoBody]) -> AgentPage:
    """By id, those that the caller may see; archived ones only where asked for."""
    async with call.ports.database.reading() as connection:
        rows, total = await agents.list_agents(
            connection,
            call.org,
            asking=await asking_of(connection, call),
            include_archived=call.query.include_archived,
            skip=call.query.skip,
            limit=call.query.limit,
        )
    return AgentPage(items=tuple(AgentRow(**fields_of(row)) for row in rows), total=total)


@route(
    "GET",
    "/agents/{agent_id:str}",
    Contract(
        summary="Read an agent",
        needs=(AGENTS_VIEW,),
        query=NoQuery,
        body=NoBody,
        answer=Agent,
        on_agent=True,
    ),
)
async def get_agent(call: Call[NoQuery, NoBody]) -> Agent:
    """Its newest published version. A slash in the id is sent as `%2F`."""
    async with call.ports.database.reading() as connection:
        stored = await agents.load_agent(connection, call.org, call.path_id("agent_id"))
        if stored is None:
            raise Unknown("agent")
        await require_on_agent(connection, call, stored.published, AGENTS_VIEW)
    return Agent(**fields_of(stored))


async def lock_live(
    connection: Connection, call: Call[Any, Any], agent_id: str, *needed: str
) -> StoredAgent:
    """An agent that takes runs and on which the caller holds what is needed, locked.

    Raises:
        Unknown, PermissionMissing, AgentIsArchived.
    """
    stored = (await agents.lock_agents(connection, call.org, (agent_id,))).get(agent_id)
    if stored is None:
        raise Unknown("agent")
    await require_on_agent(connection, call, stored.published, *needed)
    if stored.archived_at is not None:
        raise AgentIsArchived(agent_id)
    return stored


@route(
    "PATCH",
    "/agents/{agent_id:str}",
    Contract(
        summary="Change an agent's name, owner, visibility or environments",
        needs=(AGENTS_EDIT,),
        query=NoQuery,
        body=AgentPatch,
        answer=Agent,
        refusals=(400,),
        on_agent=True,
    ),
)
async def change_agent(call: Call[NoQuery, AgentPatch]) -> Agent:
    """The published version stays; environments also need `agents:publish`."""
    agent_id, given = call.path_id("agent_id"), call.body.given()
    needed = (AGENTS_EDIT, AGENTS_PUBLISH) if "environments" in given else (AGENTS_EDIT,)
    async with call.ports.database.transaction() as connection:
        stored = await lock_live(connection, call, agent_id, *needed)
        for environment in given.get("environments", ()):
            if environment.version > stored.published.version:
                raise Unknown("agent version")
        said = directory.change_agent(stored.published, given, now=call.ports.clock.now())
        if said is None:
            return Agent(**fields_of(stored))
        await agents.save_agent(connection, call.org, said)
        details = directory.changes(stored.published, said)
        act = call.act("agent.published", "agent", agent_id, **details)
        await record_act(connection, act, said)
    changed = StoredAgent(agent_id, said.entity_revision, said, stored.created_at, None)
    return Agent(**fields_of(changed))


@route(
    "POST",
    "/agents/{agent_id:str}/versions",
    Contract(
        summary="Publish an agent's next version",
        needs=(AGENTS_PUBLISH,),
        query=NoQuery,
        body=AgentSpec,
        answer=PublishedAgent,
        refusals=(400,),
        status=201,
        takes_idempotency_key=True,
        on_agent=True,
    ),
)
async def publish_version(call: Call[NoQuery, AgentSpec]) -> PublishedAgent:
    """The body is the whole spec. Pinned delegates have to exist and not be archived.

    Grants and environments belong to the agent and stay.
    """
    agent_id = call.path_id("agent_id")

    async def create(connection: Connection) -> PublishedAgent:
        pinned = {pin.agent_id for pin in call.body.delegates}
        # All at once and in one order: two agents that pin one another must not deadlock.
        await agents.lock_agents(connection, call.org, {agent_id, *pinned})
        before = await lock_live(connection, call, agent_id, AGENTS_PUBLISH)
        await _require_pins(connection, call, call.body)
        await _refuse_cycle(connection, call.org, agent_id, call.body)
        said = directory.publish_agent(
            before.published, call.body.published_fields(), now=call.ports.clock.now()
        )
        # What the body names of the agent itself is a change of it.
        asking = await asking_of(connection, call)
        if lacking := lacking_on(asking, said, AGENTS_PUBLISH):
            raise PermissionMissing(lacking)
        await agents.save_agent(connection, call.org, said)
        return await _publish(connection, call, before, said)

    created = await create_once(call, create, model=PublishedAgent)
    return await _once_applied(call, created.answer)


async def _refuse_cycle(connection: Connection, org: str, agent_id: str, spec: AgentSpec) -> None:
    """Follow the pins, each at its frozen version; the agent itself must not be among them."""
    waiting = {(pin.agent_id, pin.version) for pin in spec.delegates}
    walked: set[tuple[str, int]] = set()
    while waiting:
        if any(name == agent_id for name, _ in waiting):
            raise DelegatesCycle(agent_id)
        walked |= waiting
        waiting = await agents.load_pins(connection, org, waiting) - walked


@route(
    "POST",
    "/agents/{agent_id:str}/archive",
    Contract(
        summary="Archive an agent",
        needs=(AGENTS_EDIT, AGENTS_PUBLISH),
        query=NoQuery,
        body=NoBody,
        answer=Agent,
        on_agent=True,
    ),
)
async def archive_agent(call: Call[NoQuery, NoBody]) -> Agent:
    """It takes no new runs; its history stays. Archiving it again changes nothing."""
    agent_id, now = call.path_id("agent_id"), call.ports.clock.now()
    async with call.ports.database.transaction() as connection:
        stored = (await agents.lock_agents(connection, call.org, (agent_id,))).get(agent_id)
        if stored is None:
            raise Unknown("agent")
        await require_on_agent(connection, call, stored.published, AGENTS_EDIT, AGENTS_PUBLISH)
        if stored.archived_at is not None:
            return Agent(**fields_of(stored))
        revision = stored.entity_revision + 1
        said = AgentArchived(entity_revision=revision, agent_id=agent_id, archived_at=now)
        await agents.save_archived(connection, call.org, agent_id, entity_revision=revision, at=now)
        act = call.act("agent.archived", "agent", agent_id, name=stored.published.name)
        await record_act(connection, act, said)
    archived = StoredAgent(agent_id, revision, stored.published, stored.created_at, now)
    return Agent(**fields_of(archived))


ROUTES = (
    create_agent,
    list_agents,
    get_agent,
    change_agent,
    publish_version,
    archive_agent,
)
