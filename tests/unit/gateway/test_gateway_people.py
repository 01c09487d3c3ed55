"""Names, memberships of departments, and who may assign which role."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.directory import DEPARTMENT_INTERVALS_MAX, AgentBudget, AgentGrant, AgentPublished
from services.gateway.domain.access import Asking, agent_scope_fits
from services.gateway.domain.departments import begin_membership, end_membership, members_at
from services.gateway.domain.names import clean_email, clean_name
from services.gateway.domain.permissions import (
    CATALOGUE,
    KEYS_ONLY,
    ROLES,
    Scope,
    exceeds,
    held_by_key,
    held_by_role,
    narrowed,
    whole,
)
from services.gateway.errors import DepartmentFull, MembershipOverlaps
from services.gateway.http.passwords import Passwords

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MAY_ASSIGN = {
    "owner": {"admin", "builder", "operator", "member", "viewer"},
    "admin": {"builder", "operator", "member", "viewer"},
    "builder": {"member", "viewer"},
    "operator": {"viewer"},
    "member": {"viewer"},
    "viewer": set(),
}
"""Which roles a role strictly exceeds; an operator lacks a member's own agents."""


@pytest.mark.parametrize("role", ROLES)
def test_a_role_assigns_what_it_strictly_exceeds(role: str) -> None:
    assert {other for other in ROLES if exceeds(held_by_role(role), other)} == MAY_ASSIGN[role]


def test_no_key_exceeds_the_owner() -> None:
    assert not exceeds(held_by_key(CATALOGUE), "owner")
    assert exceeds(held_by_key(CATALOGUE), "admin")
    assert not exceeds(held_by_key(["members:manage"]), "viewer")


def test_a_key_loses_what_its_makers_role_does_not_reach() -> None:
    held = held_by_key(["agents:view", "runs:view", "budgets:manage"])
    assert set(narrowed(held, "operator")) == {"agents:view", "runs:view"}
    assert set(narrowed(held, "viewer")) == set()
    assert narrowed(held, "no-such-role") == {}


def test_what_is_limited_is_not_handed_out() -> None:
    assert "agents:edit" not in whole(held_by_role("member"))
    assert not whole(held_by_role("owner")) & set(KEYS_ONLY)


AGENT = AgentPublished(
    entity_revision=1,
    agent_id="a",
    version=1,
    name="A",
    owner_user_id="owner",
    visibility="private",
    budget=AgentBudget(),
    cap_revision=1,
    grants=(
        AgentGrant(kind="user", id="u1", permissions=("agents:run",)),
        AgentGrant(kind="department", id="d1", permissions=("agents:edit",)),
    ),
    published_at=NOON,
)


@pytest.mark.parametrize(
    ("scope", "user_id", "departments", "visibility", "fits"),
    [
        (Scope.NONE, "u1", (), "private", True),
        (Scope.NONE, "u2", (), "org", False),
        (Scope.OWN, "owner", (), "private", True),
        (Scope.OWN, "u2", (), "org", False),
        (Scope.SHARED, "u2", (), "org", True),
        (Scope.SHARED, "u2", (), "private", False),
        (Scope.SHARED, "owner", (), "private", True),
        (Scope.ALL, None, (), "private", True),
        (Scope.NONE, None, ("d1",), "org", False),
        (Scope.NONE, "owner", (), "org", False),
    ],
)
def test_access_is_the_wider_of_scope_and_grant(
    scope: Scope, user_id: str | None, departments: tuple[str, ...], visibility: str, fits: bool
) -> None:
    asking = Asking({"agents:run": scope}, user_id, frozenset(departments))
    agent = AGENT.model_copy(update={"visibility": visibility})
    assert agent_scope_fits(asking, agent, "agents:run") is fits


def test_a_department_is_granted_for_its_members() -> None:
    assert agent_scope_fits(Asking({}, "u9", frozenset({"d1"})), AGENT, "agents:edit")
    assert not agent_scope_fits(Asking({}, "u9", frozenset({"d2"})), AGENT, "agents:edit")


moments = st.integers(0, 40).map(lambda hours: NOON + timedelta(hours=hours))


@given(st.lists(st.tuples(st.sampled_from("ab"), moments, st.booleans()), max_size=30))
def test_memberships_of_a_person_never_overlap(
    steps: list[tuple[str, datetime, bool]],
) -> None:
    members = ()
    for user_id, at, begins in steps:
        if not begins:
            members = end_membership(members, user_id, at=at)
            assert user_id not in members_at(members, at)
            continue
        try:
            members = begin_membership(members, user_id, at=at)
        except MembershipOverlaps:
            continue
        assert user_id in members_at(members, at)
    for user_id in "ab":
        own = [each for each in members if each.user_id == user_id]
        for each in own:
            assert each.ends_at is None or each.effective_at < each.ends_at
        for earlier, later in itertools.pairwise(own):
            assert earlier.ends_at is not None
            assert earlier.ends_at <= later.effective_at


def test_a_department_is_full_at_its_bound() -> None:
    members = ()
    for number in range(DEPARTMENT_INTERVALS_MAX):
        members = begin_membership(members, f"u{number}", at=NOON)
    with pytest.raises(DepartmentFull):
        begin_membership(members, "one-more", at=NOON)


@given(st.text(max_size=12))
def test_a_clean_name_stays_as_it_is(text: str) -> None:
    try:
        name = clean_name(text)
    except ValueError:
        return
    assert clean_name(name) == name
    assert name == name.strip()
    assert name.isprintable() or any(ord(each) > 127 for each in name)


@pytest.mark.parametrize("address", ["", "a", "a@", "@b", "a b@c", "a@b@c", "<a@b>", "a\u202e@b.c"])
def test_refuses_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="a"):
        clean_email(address)


def test_compares_addresses_without_case() -> None:
    assert clean_email(" Ana@Example.ORG ") == "ana@example.org"


async def test_a_password_fits_its_own_hash_and_nobodys_fits_none() -> None:
    passwords = Passwords()
    digest = await passwords.digest("correct horse battery")
    assert await passwords.fits("correct horse battery", digest)
    assert not await passwords.fits("correct horse batterz", digest)
    assert not await passwords.fits("correct horse battery", None)
    assert not await passwords.fits("x", "no hash at all")
    assert not passwords.is_outdated(digest)
    assert passwords.is_outdated(digest.replace("t=2", "t=1"))


def test_the_hash_that_nobody_has_costs_what_every_other_costs() -> None:
    """A malformed one would be refused at once, and the time would tell who is known."""
    from argon2 import extract_parameters

    from services.gateway.http import passwords

    parameters = extract_parameters(passwords._NOBODYS)
    assert (parameters.memory_cost, parameters.time_cost, parameters.parallelism) == (
        passwords.MEMORY_KIB,
        passwords.PASSES,
        1,
    )
    assert parameters.hash_len == 32
    assert parameters.salt_len >= 8
