"""`/agents`: published specs; a version is frozen, an archived agent takes no new runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, Field, field_validator

from contracts.directory import AgentArchived, AgentPublished, PinnedDelegate
from contracts.types import AgentId, Details, Id, Instant, Name, Revision, Wire
from services.gateway.domain import directory
from services.gateway.domain.permissions import AGENTS_EDIT, AGENTS_PUBLISH, AGENTS_VIEW
from services.gateway.errors import AgentIsArchived, DelegatesMissing, Taken, Unknown
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import Body, NoBody, NoQuery, Page, PageQuery, Patch, Usd, UsdCap
from services.gateway.http.once import create_once
from services.gateway.store import agents
from services.gateway.store.acts import record_act
from services.gateway.store.agents import StoredAgent

if TYPE_CHECKING:
    from shared.db import Connection

SPEC_BYTES_MAX = 64 * 1024
DELEGATES_MAX = 100
Visibility = Literal["org", "private"]


class Budget(Body):
    """`monthly_usd`: the agent's cap per calendar month; null for none."""

    monthly_usd: UsdCap | None = None


class PinnedDelegateIn(Body):
    """A delegate at the version that the publisher saw."""

    agent_id: AgentId
    version: Annotated[int, Field(ge=1, strict=True)]


class AgentSpec(Body):
    """The whole governance part of a spec: an absent field takes its default."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "Researcher", "budget": {"monthly_usd": "25.00"}}]}
    )

    name: Name
    owner_user_id: Id | None = None
    visibility: Visibility = "org"
    budget: Budget = Budget()
    delegates: Annotated[tuple[PinnedDelegateIn, ...], Field(max_length=DELEGATES_MAX)] = ()
    max_steps: Annotated[int, Field(ge=1, le=10_000, strict=True)] | None = None
    max_depth: Annotated[int, Field(ge=0, le=100, strict=True)] | None = None
    max_fanout: Annotated[int, Field(ge=1, le=1_000, strict=True)] | None = None
    spec: Details = {}
    """The rest of the spec, kept as it is; at most 64 KiB."""

    @field_validator("spec")
    @classmethod
    def _is_bounded(cls, value: Details) -> Details:
        if len(orjson.dumps(value)) > SPEC_BYTES_MAX:
            raise ValueError(f"at most {SPEC_BYTES_MAX} bytes of JSON")
        return value

    def published_fields(self) -> dict[str, Any]:
        """As the contract's fields, money in nano-USD."""
        return {
            **dict(self),
            "budget": {"monthly_nanousd": self.budget.monthly_usd},
            "delegates": tuple(PinnedDelegate(**dict(pin)) for pin in self.delegates),
        }


class NewAgent(AgentSpec):
    """A spec and the id of the platform that the agent comes from."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "agent_id": "researcher",
                    "name": "Researcher",
                    "budget": {"monthly_usd": "25.00"},
                }
            ]
        }
    )

    agent_id: AgentId


class AgentPatch(Patch):
    """What may change without another version."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset({"owner_user_id"})
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Research desk"}]})

    name: Name | None = None
    owner_user_id: Id | None = None
    visibility: Visibility | None = None


class AgentRow(Wire):
    """An agent as lists show it."""

    agent_id: AgentId
    version: int
    name: Name
    owner_user_id: Id | None
    visibility: Visibility
    budget_monthly_usd: Usd | None
    cap_revision: Revision
    delegates: tuple[PinnedDelegate, ...]
    max_steps: int | None
    max_depth: int | None
    max_fanout: int | None
    archived_at: Instant | None
    entity_revision: Revision
    created_at: Instant
    published_at: Instant


class Agent(AgentRow):
    """An agent with the rest of its published spec."""

    spec: Details


class AgentQuery(PageQuery):
    """A page of agents."""

    include_archived: bool = False


AgentPage = Page[AgentRow]


def _fields(stored: StoredAgent) -> dict[str, Any]:
    return {
        **dict(stored.published),
        "budget_monthly_usd": stored.published.budget.monthly_nanousd,
        "archived_at": stored.archived_at,
        "entity_revision": stored.entity_revision,
        "created_at": stored.created_at,
    }


async def _require_pins(connection: Connection, org: str, spec: AgentSpec) -> None:
    locked = await agents.lock_agents(connection, org, {pin.agent_id for pin in spec.delegates})
    published = {
        name: agent.published.version for name, agent in locked.items() if agent.archived_at is None
    }
    pins = [(pin.agent_id, pin.version) for pin in spec.delegates]
    if missing := directory.missing_pins(pins, published):
        raise DelegatesMissing(missing)


async def _publish(
    connection: Connection, call: Call[Any, Any], before: StoredAgent | None, said: AgentPublished
) -> Agent:
    await agents.save_version(connection, call.org, said, published_by=call.caller.pseudonym)
    details = directory.changes(before.published if before else None, said)
    act = call.act("agent.published", "agent", said.agent_id, **details)
    await record_act(connection, act, said)
    created_at = before.created_at if before else said.published_at
    stored = StoredAgent(said.agent_id, said.entity_revision, said, created_at, None)
    return Agent(**_fields(stored))


@route(
    "POST",
    "/agents",
    Contract(
        summary="Create an agent and publish its first version",
        needs=(AGENTS_EDIT, AGENTS_PUBLISH),
        query=NoQuery,
        body=NewAgent,
        answer=Agent,
        status=201,
        takes_idempotency_key=True,
    ),
)
async def create_agent(call: Call[NoQuery, NewAgent]) -> Agent:
    """Pinned delegates have to exist at that version and not be archived."""
    said = directory.publish_agent(None, call.body.published_fields(), now=call.ports.clock.now())

    async def create(connection: Connection) -> Agent:
        await _require_pins(connection, call.org, call.body)
        if not await agents.save_new_agent(connection, call.org, said):
            raise Taken("agent", said.agent_id)
        return await _publish(connection, call, None, said)

    created = await create_once(call, create, model=Agent)
    return created.answer


@route(
    "GET",
    "/agents",
    Contract(
        summary="List agents",
        needs=(AGENTS_VIEW,),
        query=AgentQuery,
        body=NoBody,
        answer=AgentPage,
    ),
)
async def list_agents(call: Call[AgentQuery, NoBody]) -> AgentPage:
    """By id, archived ones only where asked for."""
    async with call.ports.database.reading() as connection:
        rows, total = await agents.list_agents(
            connection,
            call.org,
            include_archived=call.query.include_archived,
            skip=call.query.skip,
            limit=call.query.limit,
        )
    return AgentPage(items=tuple(AgentRow(**_fields(row)) for row in rows), total=total)


@route(
    "GET",
    "/agents/{agent_id:str}",
    Contract(
        summary="Read an agent",
        needs=(AGENTS_VIEW,),
        query=NoQuery,
        body=NoBody,
        answer=Agent,
    ),
)
async def get_agent(call: Call[NoQuery, NoBody]) -> Agent:
    """Its newest published version. A slash in the id is sent as `%2F`."""
    async with call.ports.database.reading() as connection:
        stored = await agents.load_agent(connection, call.org, call.path_id("agent_id"))
    if stored is None:
        raise Unknown("agent")
    return Agent(**_fields(stored))


async def _lock_live(connection: Connection, org: str, agent_id: str) -> StoredAgent:
    stored = (await agents.lock_agents(connection, org, (agent_id,))).get(agent_id)
    if stored is None:
        raise Unknown("agent")
    if stored.archived_at is not None:
        raise AgentIsArchived(agent_id)
    return stored


@route(
    "PATCH",
    "/agents/{agent_id:str}",
    Contract(
        summary="Rename an agent, give it another owner or visibility",
        needs=(AGENTS_EDIT,),
        query=NoQuery,
        body=AgentPatch,
        answer=Agent,
        refusals=(400,),
    ),
)
async def change_agent(call: Call[NoQuery, AgentPatch]) -> Agent:
    """The published version stays; everything else takes a new one."""
    agent_id = call.path_id("agent_id")
    async with call.ports.database.transaction() as connection:
        stored = await _lock_live(connection, call.org, agent_id)
        said = directory.change_agent(
            stored.published, call.body.given(), now=call.ports.clock.now()
        )
        if said is None:
            return Agent(**_fields(stored))
        await agents.save_agent(connection, call.org, said)
        details = directory.changes(stored.published, said)
        act = call.act("agent.published", "agent", agent_id, **details)
        await record_act(connection, act, said)
    changed = StoredAgent(agent_id, said.entity_revision, said, stored.created_at, None)
    return Agent(**_fields(changed))


@route(
    "POST",
    "/agents/{agent_id:str}/versions",
    Contract(
        summary="Publish an agent's next version",
        needs=(AGENTS_PUBLISH,),
        query=NoQuery,
        body=AgentSpec,
        answer=Agent,
        refusals=(400,),
        status=201,
        takes_idempotency_key=True,
    ),
)
async def publish_version(call: Call[NoQuery, AgentSpec]) -> Agent:
    """The body is the whole spec. Pinned delegates have to exist and not be archived."""
    agent_id = call.path_id("agent_id")

    async def create(connection: Connection) -> Agent:
        pinned = {pin.agent_id for pin in call.body.delegates}
        # All at once and in one order: two agents that pin one another must not deadlock.
        await agents.lock_agents(connection, call.org, {agent_id, *pinned})
        before = await _lock_live(connection, call.org, agent_id)
        await _require_pins(connection, call.org, call.body)
        said = directory.publish_agent(
            before.published, call.body.published_fields(), now=call.ports.clock.now()
        )
        await agents.save_agent(connection, call.org, said)
        return await _publish(connection, call, before, said)

    created = await create_once(call, create, model=Agent)
    return created.answer


@route(
    "POST",
    "/agents/{agent_id:str}/archive",
    Contract(
        summary="Archive an agent",
        needs=(AGENTS_EDIT, AGENTS_PUBLISH),
        query=NoQuery,
        body=NoBody,
        answer=Agent,
    ),
)
async def archive_agent(call: Call[NoQuery, NoBody]) -> Agent:
    """It takes no new runs; its history stays. Archiving it again changes nothing."""
    agent_id, now = call.path_id("agent_id"), call.ports.clock.now()
    async with call.ports.database.transaction() as connection:
        stored = (await agents.lock_agents(connection, call.org, (agent_id,))).get(agent_id)
        if stored is None:
            raise Unknown("agent")
        if stored.archived_at is not None:
            return Agent(**_fields(stored))
        revision = stored.entity_revision + 1
        said = AgentArchived(entity_revision=revision, agent_id=agent_id, archived_at=now)
        await agents.save_archived(connection, call.org, agent_id, entity_revision=revision, at=now)
        act = call.act("agent.archived", "agent", agent_id, name=stored.published.name)
        await record_act(connection, act, said)
    archived = StoredAgent(agent_id, revision, stored.published, stored.created_at, now)
    return Agent(**_fields(archived))


ROUTES = (
    create_agent,
    list_agents,
    get_agent,
    change_agent,
    publish_version,
    archive_agent,
)
