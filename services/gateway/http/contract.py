"""What every route declares, and the one way from a request to its handler and back.

The one thing not to break: the order. Credential (middleware), organization, permission (`admit`),
query, body, handler. A route without a declared permission stops the start.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, Literal, TypeVar

from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from pydantic import TypeAdapter, ValidationError

from contracts.envelope import decode_mapping, invalid_from
from contracts.errors import Invalid
from contracts.types import AgentId, ChannelId, Id, OrgId, Wire
from services.gateway.domain.json_text import parse, refuse_unstorable
from services.gateway.domain.permissions import CATALOGUE, missing_from
from services.gateway.errors import (
    DeploymentKeyNeeded,
    OrganizationMissing,
    OrganizationUnknown,
    PermissionMissing,
    Unknown,
    UnsupportedMedia,
)
from services.gateway.http.callers import Caller
from services.gateway.http.edge import SLASH
from services.gateway.http.fields import Body, NoBody, Query
from services.gateway.http.ports import Ports
from services.gateway.store.acts import Act
from services.gateway.store.organizations import load_organization

Q = TypeVar("Q", bound=Query)
B = TypeVar("B", bound=Body)
A = TypeVar("A", bound=Wire | None)
Method = Literal["GET", "POST", "PATCH", "DELETE"]
CONTRACT: Final = "contract"
PUBLIC: Final = "public"
ORGANIZATION_HEADER: Final = "X-Organization-Id"
JSON: Final = "application/json"


class Needs(StrEnum):
    """Marks for routes that no single permission opens."""

    NOTHING = "nothing"
    """Public."""
    MEMBERSHIP = "membership"
    """Any credential; the organization is the caller's own."""
    DEPLOYMENT = "deployment"
    """The deployment key."""
    BY_FIELD = "by_field"
    """Depends on what is changed: the handler asks, and its summary says so."""


@dataclass(frozen=True, slots=True)
class Contract(Generic[Q, B, A]):
    """A route's declaration; `openapi.py` describes the API from it."""

    summary: str
    needs: tuple[str, ...] | Needs
    query: type[Q]
    body: type[B]
    answer: type[A]
    status: int = 200
    takes_idempotency_key: bool = False
    refusals: tuple[int, ...] = ()
    """Statuses beyond those that every route has."""
    documented_body: type[Any] | None = None
    """Where the handler reads the body itself."""
    media_type: str = JSON

    def __post_init__(self) -> None:
        """Refuse a permission that the catalogue does not have."""
        if isinstance(self.needs, tuple) and (
            not self.needs or not CATALOGUE.issuperset(self.needs)
        ):
            raise ValueError(f"{self.summary}: {self.needs} are no permissions of the catalogue")


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, B]):
    """A request that was admitted and understood."""

    request: Request[Any, Any, Any]
    caller: Caller
    query: Q
    body: B

    @property
    def ports(self) -> Ports:
        """What the handler may reach."""
        ports: Ports = self.request.app.state.ports
        return ports

    @property
    def org(self) -> str:
        """The organization that is acted in, checked by `admit`."""
        org: str = self.request.state.org
        return org

    @property
    def ip_address(self) -> str | None:
        """Where the request came from; stored with audit entries, never shown."""
        client = self.request.client
        return client.host if client else None

    def act(self, action: str, kind: str, target_id: str, **details: Any) -> Act:
        """What the caller does to an entity of the organization, for the audit.

        `details`: old and new values of settings; never a secret.
        """
        return Act(
            action=action,
            org=self.request.state.org or target_id,
            target_type=kind,
            target_id=target_id,
            actor=self.caller.pseudonym,
            at=self.ports.clock.now(),
            details=details,
            ip_address=self.ip_address,
        )

    def path_id(self, name: str) -> str:
        """An id of the path; one that has not the form of an id is unknown.

        Raises:
            Unknown: as for any other id that does not exist.
        """
        return _path_id(self.request.path_params, name)


PATH_IDS: Final[dict[str, tuple[str, TypeAdapter[str]]]] = {
    "org": ("organization", TypeAdapter(OrgId)),
    "agent_id": ("agent", TypeAdapter(AgentId)),
    "channel_id": ("channel", TypeAdapter(ChannelId)),
    "key_id": ("API key", TypeAdapter(Id)),
    "run_id": ("run", TypeAdapter(Id)),
}


def _path_id(params: dict[str, Any], name: str) -> str:
    kind, adapter = PATH_IDS[name]
    try:
        return adapter.validate_python(params[name].replace(SLASH, "/"))
    except ValidationError:
        raise Unknown(kind) from None


def route(
    method: Method, path: str, contract: Contract[Q, B, A]
) -> Callable[[Callable[[Call[Q, B]], Awaitable[A]]], HTTPRouteHandler]:
    """Make a Litestar route of a function from a `Call` to an answer."""

    def wrap(function: Callable[[Call[Q, B]], Awaitable[A]]) -> HTTPRouteHandler:
        async def endpoint(request: Request[Any, Any, Any]) -> Response[bytes]:
            query = read_query(request, contract.query)
            body = await read_body(request, contract.body)
            answer = await function(Call(request, request.user, query, body))
            return respond(answer, contract.status)

        endpoint.__doc__ = function.__doc__
        return HTTPRouteHandler(
            path,
            http_method=method,
            name=function.__name__,
            opt={CONTRACT: contract},
            # Every answer brings its own; the framework's default for DELETE forbids a body.
            status_code=200,
        )(endpoint)

    return wrap


def respond(answer: Wire | None, status: int) -> Response[bytes]:
    """Write an answer; None has no body."""
    content = b"" if answer is None else answer.model_dump_json().encode()
    return Response(content=content, status_code=status, media_type=JSON)


async def admit(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Guard of every route: the organization first, then the permissions.

    Raises:
        OrganizationUnknown: foreign and unknown organizations alike, before permissions are read.
        OrganizationMissing, DeploymentKeyNeeded, PermissionMissing.
    """
    contract: Contract[Any, Any, Any] | None = handler.opt.get(CONTRACT)
    if contract is None or contract.needs is Needs.NOTHING:
        return
    caller: Caller = connection.user
    connection.state.org = await _organization_of(connection, caller, contract)
    if contract.needs is Needs.DEPLOYMENT and not caller.is_deployment:
        raise DeploymentKeyNeeded
    if isinstance(contract.needs, tuple):
        missing = missing_from(caller.permissions, contract.needs)
        if missing:
            raise PermissionMissing(missing)


async def _organization_of(
    connection: ASGIConnection[Any, Any, Any, Any],
    caller: Caller,
    contract: Contract[Any, Any, Any],
) -> str | None:
    named = set(connection.headers.getall(ORGANIZATION_HEADER.lower(), []))
    if "org" in connection.path_params:
        named.add(_path_id(connection.path_params, "org"))
    if len(named) > 1 or (caller.org is not None and not named <= {caller.org}):
        raise OrganizationUnknown
    if caller.org is not None:
        return caller.org
    if contract.needs is Needs.DEPLOYMENT:
        return None
    if not named:
        if contract.needs is Needs.MEMBERSHIP:
            return None
        raise OrganizationMissing
    ports: Ports = connection.app.state.ports
    pool = await ports.database.pool()
    org = named.pop()
    async with pool.acquire() as database:
        if "\x00" in org or await load_organization(database, org) is None:
            raise OrganizationUnknown
    return org


def read_query(request: Request[Any, Any, Any], model: type[Q]) -> Q:
    """Read the query string; a parameter that the route does not know is refused.

    Raises:
        Invalid: `unknown_parameter`, `repeated_parameter`, `invalid_field`, `naive_time`.
    """
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    given: dict[str, Any] = {}
    for name in dict.fromkeys(request.query_params.keys()):
        values = request.query_params.getall(name)
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise Invalid(
                f"there is no parameter {name[:64]!r} here: known are {known}",
                reason="unknown_parameter",
            )
        if _is_list(fields[name].annotation):
            given[name] = values
        elif len(values) == 1:
            given[name] = values[0]
        else:
            raise Invalid(f"{name} is given twice", reason="repeated_parameter")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise invalid_from(error) from None


def _is_list(annotation: Any) -> bool:
    if isinstance(annotation, types.UnionType):
        return any(_is_list(part) for part in typing.get_args(annotation))
    return typing.get_origin(annotation) in (tuple, list)


async def read_body(request: Request[Any, Any, Any], model: type[B]) -> B:
    """Read a JSON body; NUL, lone surrogates, repeated keys and NaN are refused anywhere in it.

    Raises:
        UnsupportedMedia: announced as something else.
        Invalid: `not_json`, `invalid_field` and the reasons of `refuse_unstorable`.
    """
    if issubclass(model, NoBody):
        return model()
    require_media(request, (JSON,))
    value = parse(await request.body())
    refuse_unstorable(value)
    return decode_mapping(value, model)  # type: ignore[arg-type]


def require_media(request: Request[Any, Any, Any], allowed: tuple[str, ...]) -> str:
    """The body's media type, one of `allowed`; the first where none is announced.

    Raises:
        UnsupportedMedia: another one, or a charset that is not UTF-8.
    """
    announced = request.headers.get("content-type", allowed[0]).lower()
    media, *parameters = (part.strip() for part in announced.split(";"))
    charset = [part for part in parameters if part.startswith("charset=")]
    if media not in allowed or charset not in ([], ["charset=utf-8"], ['charset="utf-8"']):
        raise UnsupportedMedia(allowed)
    return media
