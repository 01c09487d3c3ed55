"""`/orgs/{org}/members`: who belongs to an organization, and in which role.

The one thing not to break: nobody raises a role to their own or beyond it, and an organization
always has an owner. Whoever is removed can do nothing from the next request on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field

from contracts.directory import DepartmentChanged, MemberChanged, MemberRemoved
from contracts.types import Id, Instant, Revision, Wire
from services.gateway.domain import directory
from services.gateway.domain.departments import end_membership
from services.gateway.domain.permissions import MEMBERS_MANAGE, OWNER, ROLES, exceeds
from services.gateway.errors import (
    LastOwner,
    OrganizationUnknown,
    PermissionMissing,
    RoleNotAssignable,
    Taken,
    Unknown,
)
from services.gateway.http.contract import Call, Contract, Needs, route
from services.gateway.http.fields import (
    Body,
    Email,
    NoBody,
    NoQuery,
    Page,
    PageQuery,
    Patch,
    SafeName,
)
from services.gateway.http.once import create_once
from services.gateway.store import api_keys, departments, invitations, members
from services.gateway.store.acts import record_act
from services.gateway.store.members import StoredMember
from services.gateway.store.organizations import lock_organization

if TYPE_CHECKING:
    from datetime import datetime

    from shared.db import Connection


def _is_a_role(name: str) -> str:
    if name not in ROLES:
        raise ValueError(f"there is no role {name[:32]!r}: known are {', '.join(ROLES)}")
    return name


Role = Annotated[
    str,
    Field(max_length=32, json_schema_extra={"enum": list(ROLES)}),
    AfterValidator(_is_a_role),
]


class NewMember(Body):
    """A user of the platform who has no sign-in here; an invitation gives one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"user_id": "u-17", "name": "Ana", "role": "member"}]}
    )

    user_id: Id
    name: SafeName
    role: Role
    email: Email | None = None


class MemberPatch(Patch):
    """Absent fields stay as they are."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset({"email"})
    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "operator"}]})

    name: SafeName | None = None
    role: Role | None = None
    email: Email | None = None


class Member(Wire):
    """A member's newest state. `email` is null for callers without `members:manage`."""

    user_id: Id
    name: str
    role: str
    email: str | None
    signs_in: bool
    """Whether somebody signs in here as this member."""
    entity_revision: Revision
    created_at: Instant
    changed_at: Instant


MemberPage = Page[Member]


def require_assignable(call: Call[Any, Any], role: str) -> None:
    """Refuse a caller who does not strictly exceed a role.

    Raises:
        RoleNotAssignable: facts.md 11.2; only the deployment makes an owner.
    """
    if call.caller.rules_deployment:
        return
    if not exceeds(call.caller.held, role):
        raise RoleNotAssignable(role)


def _shown(call: Call[Any, Any], stored: StoredMember) -> Member:
    sees_addresses = not call.caller.lacks((MEMBERS_MANAGE,))
    return Member(
        **dict(stored.state),
        email=stored.email if sees_addresses else None,
        signs_in=stored.person_id is not None,
        created_at=stored.created_at,
    )


@route(
    "POST",
    "/orgs/{org:str}/members",
    Contract(
        summary="Add a member who has no sign-in here",
        needs=(MEMBERS_MANAGE,),
        query=NoQuery,
        body=NewMember,
        answer=Member,
        status=201,
        takes_idempotency_key=True,
    ),
)
async def create_member(call: Call[NoQuery, NewMember]) -> Member:
    """The caller's role exceeds the new one's. A removed member comes back under their id."""
    body, now = call.body, call.ports.clock.now()
    require_assignable(call, body.role)

    async def create(connection: Connection) -> Member:
        before = await members.lock_member(connection, call.org, body.user_id)
        if before is not None and before.removed_at is None:
            raise Taken("member", body.user_id)
        said = MemberChanged(
            entity_revision=before.state.entity_revision + 1 if before else 1,
            user_id=body.user_id,
            name=body.name,
            role=body.role,
            changed_at=now,
        )
        await members.save_member(connection, call.org, said, email=body.email)
        act = call.act("member.added", "member", said.user_id, role=said.role)
        await record_act(connection, act, said)
        created_at = before.created_at if before else now
        return _shown(call, StoredMember(said, None, body.email, created_at, None))

    created = await create_once(call, create, model=Member)
    return created.answer


@route(
    "GET",
    "/orgs/{org:str}/members",
    Contract(
        summary="List members",
        needs=Needs.MEMBERSHIP,
        query=PageQuery,
        body=NoBody,
        answer=MemberPage,
    ),
)
async def list_members(call: Call[PageQuery, NoBody]) -> MemberPage:
    """By id."""
    async with call.ports.database.reading() as connection:
        rows, total = await members.list_members(
            connection, call.org, skip=call.query.skip, limit=call.query.limit
        )
    return MemberPage(items=tuple(_shown(call, row) for row in rows), total=total)


@route(
    "GET",
    "/orgs/{org:str}/members/{user_id:str}",
    Contract(
        summary="Read a member",
        needs=Needs.MEMBERSHIP,
        query=NoQuery,
        body=NoBody,
        answer=Member,
    ),
)
async def get_member(call: Call[NoQuery, NoBody]) -> Member:
    """Name, role and since when."""
    async with call.ports.database.reading() as connection:
        stored = await members.load_member(connection, call.org, call.path_id("user_id"))
    if stored is None:
        raise Unknown("member")
    return _shown(call, stored)


async def _lock_present(connection: Connection, org: str, user_id: str) -> StoredMember:
    """The member, locked after the organization: of two owners who leave, one is the last."""
    if await lock_organization(connection, org) is None:
        raise OrganizationUnknown
    stored = await members.lock_member(connection, org, user_id)
    if stored is None or stored.removed_at is not None:
        raise Unknown("member")
    return stored


async def _require_another_owner(connection: Connection, org: str, stored: StoredMember) -> None:
    if stored.state.role == OWNER and await members.count_owners(connection, org) <= 1:
        raise LastOwner


@route(
    "PATCH",
    "/orgs/{org:str}/members/{user_id:str}",
    Contract(
        summary="Change a member's name or role",
        needs=(MEMBERS_MANAGE,),
        query=NoQuery,
        body=MemberPatch,
        answer=Member,
        refusals=(400,),
    ),
)
async def change_member(call: Call[NoQuery, MemberPatch]) -> Member:
    """The caller's role exceeds the old and the new one; one's own may be lowered."""
    user_id, given = call.path_id("user_id"), call.body.given()
    async with call.ports.database.transaction() as connection:
        stored = await _lock_present(connection, call.org, user_id)
        email = given.pop("email", stored.email)
        said = directory.change_member(stored.state, given, now=call.ports.clock.now())
        if said is None and email == stored.email:
            return _shown(call, stored)
        if said is None:
            # An address is nobody's business but the gateway's: a revision, and no other word.
            state = stored.state
            said = state.model_copy(update={"entity_revision": state.entity_revision + 1})
        if user_id != call.caller.user_id:
            require_assignable(call, stored.state.role)
        if said.role != stored.state.role:
            require_assignable(call, said.role)
            await _require_another_owner(connection, call.org, stored)
        await members.save_member(
            connection, call.org, said, email=email, person_id=stored.person_id
        )
        details = directory.changes(stored.state, said)
        act = call.act("member.changed", "member", user_id, **details)
        await record_act(connection, act, said)
    return _shown(call, StoredMember(said, stored.person_id, email, stored.created_at, None))


@route(
    "DELETE",
    "/orgs/{org:str}/members/{user_id:str}",
    Contract(
        summary="Remove a member",
        needs=Needs.MEMBERSHIP,
        query=NoQuery,
        body=NoBody,
        answer=type(None),
        status=204,
        refusals=(400,),
    ),
)
async def remove_member(call: Call[NoQuery, NoBody]) -> None:
    """Their keys and open invitations end, and they leave every department.

    Needs `members:manage` and a role that exceeds theirs; anybody may leave by themselves but the
    last owner.
    """
    user_id, now = call.path_id("user_id"), call.ports.clock.now()
    leaves = call.caller.user_id == user_id
    if not leaves and (missing := call.caller.lacks((MEMBERS_MANAGE,))):
        raise PermissionMissing(missing)
    async with call.ports.database.transaction() as connection:
        stored = await _lock_present(connection, call.org, user_id)
        if not leaves:
            require_assignable(call, stored.state.role)
        await _require_another_owner(connection, call.org, stored)
        said = MemberRemoved(
            entity_revision=stored.state.entity_revision + 1, user_id=user_id, removed_at=now
        )
        await members.save_member_removed(connection, call.org, said)
        keys = await api_keys.revoke_keys_of(connection, call.org, user_id, at=now)
        await invitations.revoke_invitations_of(connection, call.org, user_id, at=now)
        await _leave_departments(connection, call, user_id, at=now)
        act = call.act("member.removed", "member", user_id, revoked_keys=list(keys))
        await record_act(connection, act, said)


async def _leave_departments(
    connection: Connection, call: Call[Any, Any], user_id: str, *, at: datetime
) -> None:
    for stored in await departments.lock_departments_of(connection, call.org, user_id):
        fields: dict[str, Any] = {"members": end_membership(stored.state.members, user_id, at=at)}
        if stored.state.lead_user_id == user_id:
            fields["lead_user_id"] = None
        said: DepartmentChanged | None = directory.change_department(stored.state, fields, now=at)
        if said is None:
            continue
        await departments.save_department(connection, call.org, said)
        details = {"left": user_id}
        act = call.act("department.changed", "department", said.department_id, **details)
        await record_act(connection, act, said)


ROUTES = (create_member, list_members, get_member, change_member, remove_member)
