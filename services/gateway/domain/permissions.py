"""The catalogue of permissions and what each role holds (facts.md 11).

The one thing not to break: call sites ask for permissions, never for roles; no permission implies
another; an unknown role or permission holds nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

CHANNELS_PUBLISH: Final = "channels:publish"
CHANNELS_MANAGE: Final = "channels:manage"
BUDGETS_MANAGE: Final = "budgets:manage"
ORG_SETTINGS: Final = "org:settings"
APPROVALS_DECIDE: Final = "approvals:decide"
RUNS_VIEW: Final = "runs:view"
MEMBERS_MANAGE: Final = "members:manage"
AGENTS_RUN: Final = "agents:run"
AGENTS_VIEW: Final = "agents:view"
AGENTS_EDIT: Final = "agents:edit"
AGENTS_PUBLISH: Final = "agents:publish"

GLOBAL: Final = (
    APPROVALS_DECIDE,
    "audit:read",
    BUDGETS_MANAGE,
    CHANNELS_MANAGE,
    "connections:manage",
    "connections:view",
    "mcp:manage",
    MEMBERS_MANAGE,
    "ml:invoke",
    "org:delete",
    ORG_SETTINGS,
    "promotions:override",
    "roles:manage",
    RUNS_VIEW,
    "tables:create",
    "workflows:view",
)
"""Held or not, without a scope."""
_VIEW_EDIT: Final = ("view", "edit")
RESOURCES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "agents": ("view", "edit", "publish", "run"),
        "collections": _VIEW_EDIT,
        "skills": _VIEW_EDIT,
        "context": _VIEW_EDIT,
        "tables": _VIEW_EDIT,
        "secrets": _VIEW_EDIT,
        "artifacts": _VIEW_EDIT,
    }
)
"""Held at a scope; in a key they mean `all`."""
SCOPED: Final = tuple(f"{kind}:{act}" for kind, acts in RESOURCES.items() for act in acts)
KEYS_ONLY: Final = (CHANNELS_PUBLISH,)
"""Held by keys of channels, by no role (http.md, *Channels and deployment*)."""
CATALOGUE: Final = frozenset((*GLOBAL, *SCOPED, *KEYS_ONLY))


@functools.total_ordering
class Scope(Enum):
    """How far a resource permission reaches; compared by rank, with scopes only."""

    NONE = 0
    OWN = 1
    SHARED = 2
    TEAM = 3
    ALL = 4

    def __lt__(self, other: object) -> bool:
        """Whether this reaches less far."""
        if not isinstance(other, Scope):
            return NotImplemented
        return int(self.value) < int(other.value)


def _at(scope: Scope, names: Iterable[str]) -> dict[str, Scope]:
    return dict.fromkeys(names, scope)


_EVERYTHING: Final = _at(Scope.ALL, (*GLOBAL, *SCOPED))
ROLES: Final[Mapping[str, Mapping[str, Scope]]] = MappingProxyType(
    {
        "owner": MappingProxyType(_EVERYTHING),
        "admin": MappingProxyType(
            {name: scope for name, scope in _EVERYTHING.items() if name != "org:delete"}
        ),
        "builder": MappingProxyType(
            _at(Scope.ALL, (RUNS_VIEW, "connections:view", "connections:manage", "mcp:manage"))
            | _at(Scope.ALL, (AGENTS_VIEW, "agents:run"))
            | _at(Scope.SHARED, (AGENTS_EDIT, AGENTS_PUBLISH))
        ),
        "operator": MappingProxyType(
            _at(Scope.ALL, (APPROVALS_DECIDE, RUNS_VIEW, "connections:view"))
            | _at(Scope.ALL, (AGENTS_VIEW, "agents:run"))
        ),
        "member": MappingProxyType(
            _at(Scope.SHARED, (AGENTS_VIEW, "agents:run")) | _at(Scope.OWN, (AGENTS_EDIT,))
        ),
        "viewer": MappingProxyType(_at(Scope.SHARED, (AGENTS_VIEW,))),
    }
)
"""Role to permission to scope (facts.md 11.2); a global permission stands at `ALL`."""


Held = Mapping[str, Scope]
"""What somebody holds, and how far each permission reaches."""
OWNER: Final = "owner"


def held_by_role(role: str) -> Held:
    """What a role holds; nothing for an unknown one."""
    return ROLES.get(role, {})


def held_by_key(names: Iterable[str]) -> Held:
    """What a key holds: each permission reaches everywhere or is not there."""
    return dict.fromkeys(names, Scope.ALL)


def narrowed(held: Held, role: str) -> Held:
    """What remains of a key when its maker's role is `role` now: the narrower of both."""
    limits = held_by_role(role)
    # A resource permission of a key means everywhere: where the maker's reaches less, it is lost.
    return {name: scope for name, scope in held.items() if limits.get(name, Scope.NONE) >= scope}


def whole(held: Held) -> frozenset[str]:
    """The permissions that are held without any limit; what a key may be given."""
    return frozenset(name for name, scope in held.items() if scope is Scope.ALL)


def exceeds(held: Held, role: str) -> bool:
    """Whether somebody holds all that a role holds, and more (facts.md 11.2).

    Nobody exceeds the owner, and nobody their own role. An unknown role holds nothing, yet is no
    role to be assigned: `ROLES` says which are.
    """
    role_held = held_by_role(role)
    reaches = {name: scope for name, scope in held.items() if name not in KEYS_ONLY}
    return all(reaches.get(name, Scope.NONE) >= scope for name, scope in role_held.items()) and any(
        scope > role_held.get(name, Scope.NONE) for name, scope in reaches.items()
    )


def scope_of(role: str, permission: str) -> Scope:
    """How far a role's permission reaches; `NONE` for what it lacks and for unknown names."""
    return ROLES.get(role, {}).get(permission, Scope.NONE)


def missing_from(held: Iterable[str], needed: Iterable[str]) -> frozenset[str]:
    """The needed permissions that are not held, all of them."""
    return frozenset(needed).difference(held)
