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
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from pydantic import StringConstraints, TypeAdapter, ValidationError

from contracts.envelope import decode_mapping, invalid_from
from contracts.errors import Invalid
from contracts.types import AgentId, ChannelId, Id, OrgId, Wire
from services.gateway.domain.json_text import parse, refuse_unstorable
from services.gateway.domain.permissions import CATALOGUE
from services.gateway.errors import (
    DeploymentKeyNeeded,
    OrganizationMissing,
    OrganizationUnknown,
    PermissionMissing,
    Unknown,
    UnsupportedMedia,
)
from services.gateway.http.callers import NOBODY, Caller, CallerKind
from services.gateway.http.edge import SLASH
from services.gateway.http.fields import Body, NoBody, Query, TakesEffect
from services.gateway.http.ports import Ports
from services.gateway.store.acts import Act
from services.gateway.store.organizations import load_organization

Q = TypeVar("Q", bound=Query)
B = TypeVar("B", bound=Body)
A = TypeVar("A", bound=Wire | None)
Method = Literal["GET", "POST", "PATCH", "DELETE"]
CONTRACT: Final = "contract"
PUBLIC: Final = "public"
COOKIES: Final = "cookies"
NOT_YET_EFFECTIVE: Final = 202
ORGANIZATION_HEADER: Final = "X-Organization-Id"
JSON: Final = "application/json"


class Needs(StrEnum):
    """Marks for routes that no single permission opens."""

    NOTHING = "nothing"
    """Public."""
    SELF = "self"
    """Any credential, about the caller alone: no organization is acted in."""
    MEMBERSHIP = "membership"
    """Any credential; the organization is the caller's own."""
    ORGANIZATION = "organization"
    """Any credential, in one organization; what is answered depends on what the caller holds."""
    DEPLOYMENT = "deployment"
    """The deployment key, or an app admin."""
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
    on_agent: bool = False
    """A person's access to the very agent decides: the handler asks (`http/access.py`)."""
    own_session: bool = False
    """A person does it in their own session; no key does."""
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
            org=self.request.state.org or (target_id if kind == "organization" else None),
            target_type=kind,
            target_id=target_id,
            actor=self.caller.pseudonym,
            at=self.ports.clock.now(),
            details=details,
            ip_address=self.ip_address,
        )

    def send_cookie(self, cookie: Cookie) -> None:
        """Let the answer set a cookie."""
        self.request.state[COOKIES] = (*self.request.state.get(COOKIES, ()), cookie)

    def path_id(self, name: str) -> str:
        """An id of the path; one that has not the form of an id is unknown.

        Raises:
            Unknown: as for any other id that does not exist.
        """
        return _path_id(self.request.path_params, name)


GrantKind = Annotated[str, StringConstraints(pattern=r"^(user|department)$")]
PATH_IDS: Final[dict[str, tuple[str, TypeAdapter[str]]]] = {
    "org": ("organization", TypeAdapter(OrgId)),
    "agent_id": ("agent", TypeAdapter(AgentId)),
    "channel_id": ("channel", TypeAdapter(ChannelId)),
    "key_id": ("API key", TypeAdapter(Id)),
    "run_id": ("run", TypeAdapter(Id)),
    "entry_id": ("entry", TypeAdapter(Id)),
    "ingestion_id": ("ingestion", TypeAdapter(Id)),
    "hold_id": ("hold", TypeAdapter(Id)),
    "user_id": ("member", TypeAdapter(Id)),
    "department_id": ("department", TypeAdapter(Id)),
    "invitation_id": ("invitation", TypeAdapter(Id)),
    "grantee_id": ("grant", TypeAdapter(Id)),
    "kind": ("grant", TypeAdapter(GrantKind)),
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
            caller = request.scope.get("user") or NOBODY
            answer = await function(Call(request, caller, query, body))
            response = respond(answer, _status_of(answer, contract))
            for cookie in request.state.get(COOKIES, ()):
                response.set_cookie(cookie)
            return response

        endpoint.__doc__ = function.__doc__
        return HTTPRouteHandler(
            path,
            http_method=method,
            name=function.__name__,
            opt={CONTRACT: contract, PUBLIC: contract.needs is Needs.NOTHING},
            # Every answer brings its own; the framework's default for DELETE forbids a body.
            status_code=200,
        )(endpoint)

    return wrap


def _status_of(answer: Wire | None, contract: Contract[Any, Any, Any]) -> int:
    """202 where the change is made and not in effect yet."""
    waits = isinstance(answer, TakesEffect) and not answer.effective
    return NOT_YET_EFFECTIVE if waits else contract.status


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
    connection.state.org = None
    if contract is None or contract.needs is Needs.NOTHING:
        return
    caller = await _acting(connection, connection.user, contract)
    connection.scope["user"] = caller
    if contract.needs is Needs.DEPLOYMENT and not caller.rules_deployment:
        raise DeploymentKeyNeeded
    if contract.own_session:
        caller.require_session()
    if isinstance(contract.needs, tuple):
        missing = caller.lacks(contract.needs)
        if missing and not (contract.on_agent and caller.kind is CallerKind.PERSON):
            raise PermissionMissing(missing)


async def _acting(
    connection: ASGIConnection[Any, Any, Any, Any],
    caller: Caller,
    contract: Contract[Any, Any, Any],
) -> Caller:
    """The caller in the organization that is acted in; `state.org` names it."""
    if contract.needs is Needs.SELF:
        return caller
    named = set(connection.headers.getall(ORGANIZATION_HEADER.lower(), []))
    if "org" in connection.path_params:
        named.add(_path_id(connection.path_params, "org"))
    if len(named) > 1 or (caller.org is not None and not named <= {caller.org}):
        raise OrganizationUnknown
    org = caller.org or _named_or_only(named, caller, contract)
    if org is not None and caller.rules_deployment:
        await _require_organization(connection, org)
    connection.state.org = org
    if org is None or caller.signed_in is None:
        return caller
    return caller.acting_in(org)


def _named_or_only(
    named: set[str], caller: Caller, contract: Contract[Any, Any, Any]
) -> str | None:
    if contract.needs is Needs.DEPLOYMENT:
        return None
    if named:
        return named.pop()
    if contract.needs is Needs.MEMBERSHIP:
        return None
    belongings = caller.signed_in.belongings if caller.signed_in else ()
    if len(belongings) == 1:
        return belongings[0].org
    raise OrganizationMissing


async def _require_organization(connection: ASGIConnection[Any, Any, Any, Any], org: str) -> None:
    ports: Ports = connection.app.state.ports
    pool = await ports.database.pool()
    async with pool.acquire() as database:
        if "\x00" in org or await load_organization(database, org) is None:
            raise OrganizationUnknown


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
