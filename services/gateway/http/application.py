"""The Litestar application: routes, guard, middleware, and what becomes of exceptions.

The one thing not to break: every route says what it needs. `require_contracts` looks at what the
application really serves, so a route that was added elsewhere is found too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.middleware import DefineMiddleware

from contracts.errors import Fault
from services.gateway.http import (
    agents,
    api_keys,
    authorize,
    channels,
    department_spend,
    departments,
    entries,
    events,
    feed,
    grants,
    holds,
    invitations,
    live,
    members,
    orgs,
    roles,
    runs,
    sessions,
    spend,
)
from services.gateway.http.callers import Authentication
from services.gateway.http.contract import CONTRACT, PUBLIC, Contract, admit
from services.gateway.http.edge import Asgi, Edge
from services.gateway.http.openapi import describe
from services.gateway.http.pages import description_pages, health_pages
from services.gateway.http.ports import Ports
from services.gateway.http.problems import on_fault, on_framework, on_other
from shared.health import Check

PREFIX: Final = "/api/v1"
BODY_BYTES_MAX: Final = 1024 * 1024
"""Of one request; an event alone has its own limit (design.md 2, *Envelope*)."""
RESOURCES: Final[tuple[HTTPRouteHandler, ...]] = (
    *sessions.ROUTES,
    *invitations.ROUTES,
    *orgs.ROUTES,
    *members.ROUTES,
    *departments.ROUTES,
    *department_spend.ROUTES,
    *api_keys.ROUTES,
    *agents.ROUTES,
    *grants.ROUTES,
    *channels.ROUTES,
    *events.ROUTES,
    *feed.ROUTES,
    *live.ROUTES,
    *authorize.ROUTES,
    *runs.ROUTES,
    *entries.ROUTES,
    *spend.ROUTES,
    *holds.ROUTES,
    *roles.ROUTES,
)


class ContractMissing(Exception):
    """A route does not say what it needs: the process must not start."""


def description() -> dict[str, Any]:
    """The API as OpenAPI 3.1; the same wherever it is made."""
    return describe(RESOURCES, prefix=PREFIX)


def build(ports: Ports, checks: Mapping[str, Check]) -> Asgi:
    """Put the application together.

    Raises:
        ContractMissing: a route declares no permission and is not marked as public.
    """
    app = litestar_app(ports, checks)
    require_contracts(app)
    return Edge(app)  # type: ignore[arg-type]


def litestar_app(ports: Ports, checks: Mapping[str, Check]) -> Litestar:
    """The application without its outermost layer."""
    api = Router(path=PREFIX, route_handlers=[*RESOURCES, *description_pages(description())])
    return Litestar(
        route_handlers=[api, *health_pages(checks)],
        guards=[admit],
        middleware=[DefineMiddleware(Authentication, exclude_from_auth_key=PUBLIC)],
        exception_handlers={
            Fault: on_fault,
            HTTPException: on_framework,
            Exception: on_other,
        },
        openapi_config=None,
        logging_config=None,
        request_max_body_size=BODY_BYTES_MAX,
        state=State({"ports": ports}),
    )


def declared(app: Litestar) -> Iterator[tuple[str, str, Contract[Any, Any, Any] | None]]:
    """Every route as (method, path, contract); what Litestar adds for OPTIONS is left out."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            for method in sorted(handler.http_methods - {"OPTIONS"}):
                yield method, route.path, handler.opt.get(CONTRACT)


def require_contracts(app: Litestar) -> None:
    """Refuse an application with a route that does not say what it needs.

    Raises:
        ContractMissing: names the routes.
    """
    missing = [f"{method} {path}" for method, path, contract in declared(app) if contract is None]
    if missing:
        raise ContractMissing(f"routes without a declared permission: {', '.join(missing)}")
