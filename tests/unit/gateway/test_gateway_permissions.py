"""The catalogue and the roles of facts.md 11."""

from __future__ import annotations

import pytest

from services.gateway.domain.permissions import (
    CATALOGUE,
    GLOBAL,
    KEYS_ONLY,
    ROLES,
    SCOPED,
    Scope,
    missing_from,
    scope_of,
)

TABLE = {
    "runs:view": ("owner", "admin", "builder", "operator"),
    "approvals:decide": ("owner", "admin", "operator"),
    "budgets:manage": ("owner", "admin"),
    "audit:read": ("owner", "admin"),
    "org:settings": ("owner", "admin"),
    "members:manage": ("owner", "admin"),
    "org:delete": ("owner",),
    "connections:view": ("owner", "admin", "builder", "operator"),
    "connections:manage": ("owner", "admin", "builder"),
    "mcp:manage": ("owner", "admin", "builder"),
}
AGENTS = {
    ("builder", "agents:view"): Scope.ALL,
    ("builder", "agents:run"): Scope.ALL,
    ("builder", "agents:edit"): Scope.SHARED,
    ("builder", "agents:publish"): Scope.SHARED,
    ("operator", "agents:view"): Scope.ALL,
    ("operator", "agents:run"): Scope.ALL,
    ("operator", "agents:edit"): Scope.NONE,
    ("member", "agents:view"): Scope.SHARED,
    ("member", "agents:run"): Scope.SHARED,
    ("member", "agents:edit"): Scope.OWN,
    ("member", "agents:publish"): Scope.NONE,
    ("viewer", "agents:view"): Scope.SHARED,
    ("viewer", "agents:run"): Scope.NONE,
    ("viewer", "agents:edit"): Scope.NONE,
}


@pytest.mark.parametrize("permission", TABLE)
def test_global_permissions_stand_as_in_the_table(permission: str) -> None:
    holders = tuple(role for role in ROLES if scope_of(role, permission) is Scope.ALL)
    assert holders == TABLE[permission]
    assert {scope_of(role, permission) for role in ROLES} <= {Scope.ALL, Scope.NONE}


@pytest.mark.parametrize(("role", "permission"), AGENTS)
def test_agent_permissions_stand_as_in_the_table(role: str, permission: str) -> None:
    assert scope_of(role, permission) is AGENTS[role, permission]


def test_every_role_holds_permissions_of_the_catalogue_at_a_scope() -> None:
    for held in ROLES.values():
        assert CATALOGUE.issuperset(held)
        assert Scope.NONE not in held.values()
        assert not set(held) & set(KEYS_ONLY)


def test_an_owner_holds_everything_and_an_admin_all_but_the_end() -> None:
    assert set(ROLES["owner"]) == {*GLOBAL, *SCOPED}
    assert set(ROLES["owner"]) - set(ROLES["admin"]) == {"org:delete"}


def test_unknown_names_hold_nothing() -> None:
    assert scope_of("superuser", "runs:view") is Scope.NONE
    assert scope_of("owner", "runs:delete") is Scope.NONE


def test_scopes_are_ordered_by_rank_and_compared_with_scopes_only() -> None:
    assert Scope.NONE < Scope.OWN < Scope.SHARED < Scope.TEAM < Scope.ALL
    assert Scope.ALL >= Scope.SHARED
    with pytest.raises(TypeError):
        _ = Scope.ALL > 3


def test_names_everything_that_is_missing() -> None:
    assert missing_from({"a"}, ("a", "b", "c")) == {"b", "c"}
