"""`/roles/catalog`: the permissions that exist and what each role holds (facts.md 11)."""

from __future__ import annotations

from typing import Literal

from contracts.types import Wire
from services.gateway.domain.permissions import GLOBAL, KEYS_ONLY, ROLES, SCOPED
from services.gateway.http.contract import Call, Contract, Needs, route
from services.gateway.http.fields import NoBody, NoQuery


class Permission(Wire):
    """`global`: held or not; `resource`: held at a scope; `key`: held by keys only."""

    name: str
    kind: Literal["global", "resource", "key"]


class Role(Wire):
    """A role with its permissions and how far each reaches."""

    name: str
    permissions: dict[str, str]


class RoleCatalog(Wire):
    """The whole catalogue."""

    permissions: tuple[Permission, ...]
    roles: tuple[Role, ...]


@route(
    "GET",
    "/roles/catalog",
    Contract(
        summary="Read the catalogue of permissions and roles",
        needs=Needs.MEMBERSHIP,
        query=NoQuery,
        body=NoBody,
        answer=RoleCatalog,
    ),
)
async def get_role_catalog(_: Call[NoQuery, NoBody]) -> RoleCatalog:
    """The same for every organization."""
    return RoleCatalog(
        permissions=(
            *(Permission(name=name, kind="global") for name in GLOBAL),
            *(Permission(name=name, kind="resource") for name in SCOPED),
            *(Permission(name=name, kind="key") for name in KEYS_ONLY),
        ),
        roles=tuple(
            Role(
                name=role,
                permissions={name: scope.name.lower() for name, scope in held.items()},
            )
            for role, held in ROLES.items()
        ),
    )


ROUTES = (get_role_catalog,)
