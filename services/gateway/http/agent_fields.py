"""What is sent and shown of agents: the governance part of their published specs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, Field, field_validator

from contracts.directory import (
    ENVIRONMENTS_MAX,
    AgentEnvironment,
    AgentGrant,
    PinnedDelegate,
    RequestsPerMinute,
)
from contracts.types import AgentId, Details, Id, Instant, Revision, Wire
from services.gateway.domain.names import clean_name
from services.gateway.http.fields import (
    Body,
    Page,
    PageQuery,
    Patch,
    SafeName,
    TakesEffect,
    Usd,
    UsdCap,
)

SPEC_BYTES_MAX = 64 * 1024
DELEGATES_MAX = 100
Visibility = Literal["org", "private"]


class Budget(Body):
    """`monthly_usd`: the agent's cap per calendar month; null for none."""

    monthly_usd: UsdCap | None = None
    requests_per_minute: RequestsPerMinute | None = None
    """Requests that it is allowed in any minute; null for as many as it asks for."""


class PinnedDelegateIn(Body):
    """A delegate at the version that the publisher saw."""

    agent_id: AgentId
    version: Annotated[int, Field(ge=1, strict=True)]


class AgentSpec(Body):
    """The whole governance part of a spec: an absent field takes its default."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "Researcher", "budget": {"monthly_usd": "25.00"}}]}
    )

    name: SafeName
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
            "budget": {
                "monthly_nanousd": self.budget.monthly_usd,
                "requests_per_minute": self.budget.requests_per_minute,
            },
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
    """`environments` is the whole list; it needs `agents:publish`, versions that exist."""
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Research desk"}]})

    name: SafeName | None = None
    owner_user_id: Id | None = None
    visibility: Visibility | None = None
    environments: Annotated[tuple[AgentEnvironment, ...], Field(max_length=ENVIRONMENTS_MAX)] | (
        None
    ) = None

    @field_validator("environments")
    @classmethod
    def _each_once(
        cls, value: tuple[AgentEnvironment, ...] | None
    ) -> tuple[AgentEnvironment, ...] | None:
        if value is None:
            return None
        if len({clean_name(each.name) for each in value}) < len(value):
            raise ValueError("an environment is named once")
        return tuple(sorted(value, key=lambda each: each.name))


class AgentRow(Wire):
    """An agent as lists show it."""

    agent_id: AgentId
    version: int
    name: str
    owner_user_id: Id | None
    visibility: Visibility
    budget_monthly_usd: Usd | None
    budget_requests_per_minute: int | None
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

    grants: tuple[AgentGrant, ...]
    environments: tuple[AgentEnvironment, ...]
    spec: Details


class PublishedAgent(Agent, TakesEffect):
    """An agent after a change, and whether its cap holds for the next request."""


class AgentQuery(PageQuery):
    """A page of agents."""

    include_archived: bool = False


AgentPage = Page[AgentRow]
