"""`/orgs/{org}/departments`: a lead, a cap, and members since when.

The one thing not to break: who belonged when is kept, so that a run that is heard of late is
counted where its starter belonged at its start.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import ConfigDict, field_validator
from uuid_utils.compat import uuid7

from contracts.directory import DepartmentChanged, DepartmentRemoved, Membership
from contracts.types import Id, Instant, Revision, Wire
from services.gateway.domain import directory
from services.gateway.domain.departments import begin_membership, end_membership, members_at
from services.gateway.domain.permissions import BUDGETS_MANAGE, MEMBERS_MANAGE
from services.gateway.errors import PermissionMissing, Taken, Unknown
from services.gateway.http.applied import is_applied
from services.gateway.http.contract import Call, Contract, Needs, route
from services.gateway.http.fields import (
    Body,
    NoBody,
    NoQuery,
    Page,
    PageQuery,
    Patch,
    Query,
    SafeName,
    TakesEffect,
    Usd,
    UsdCap,
)
from services.gateway.http.once import create_once
from services.gateway.store import departments, members
from services.gateway.store.acts import record_act
from services.gateway.store.departments import StoredDepartment

if TYPE_CHECKING:
    from shared.db import Connection

TAKEN_ID: Final = "spend"
"""`…/departments/spend` is what departments spent; one of that name could not be changed."""
_MONEY: Final = {"monthly_budget_usd": "monthly_budget_nanousd"}


class NewDepartment(Body):
    """A cap also needs `budgets:manage`. Without an id it gets one of ours."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "Sales", "monthly_budget_usd": "200.00"}]}
    )

    department_id: Id | None = None
    name: SafeName
    lead_user_id: Id | None = None
    monthly_budget_usd: UsdCap | None = None

    @field_validator("department_id")
    @classmethod
    def _is_no_route(cls, value: str | None) -> str | None:
        if value == TAKEN_ID:
            raise ValueError(f"{value!r} is a part of this API: choose another id")
        return value


class DepartmentPatch(Patch):
    """Absent fields stay; null means no lead, or uncapped."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset({"lead_user_id", "monthly_budget_usd"})
    model_config = ConfigDict(json_schema_extra={"examples": [{"monthly_budget_usd": "250.00"}]})

    name: SafeName | None = None
    lead_user_id: Id | None = None
    monthly_budget_usd: UsdCap | None = None


class NewMembership(Body):
    """`effective_at`: since when, also in the past or the future; now where absent."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"user_id": "u-17"}]})

    user_id: Id
    effective_at: Instant | None = None


class EndQuery(Query):
    """`effective_at`: from when on the member belongs no longer; now where absent."""

    effective_at: Instant | None = None


class DepartmentRow(Wire):
    """A department's newest state; `member_count` counts who belongs now."""

    department_id: Id
    name: str
    lead_user_id: Id | None
    monthly_budget_usd: Usd | None
    cap_revision: Revision
    member_count: int
    entity_revision: Revision
    created_at: Instant
    changed_at: Instant


class Department(DepartmentRow, TakesEffect):
    """A department, and whether its cap holds for the next request."""


DepartmentPage = Page[DepartmentRow]
MembershipPage = Page[Membership]


def _fields(call: Call[Any, Any], stored: StoredDepartment) -> dict[str, Any]:
    state = stored.state
    return {
        **{name: value for name, value in state if name in DepartmentRow.model_fields},
        "monthly_budget_usd": state.monthly_budget_nanousd,
        "member_count": len(members_at(state.members, call.ports.clock.now())),
        "created_at": stored.created_at,
    }


def _in_nanousd(fields: dict[str, Any]) -> dict[str, Any]:
    return {_MONEY.get(name, name): value for name, value in fields.items()}


def _require_budgets(call: Call[Any, Any]) -> None:
    if missing := call.caller.lacks((BUDGETS_MANAGE,)):
        raise PermissionMissing(missing)


async def _require_member(connection: Connection, org: str, user_id: str | None) -> None:
    if user_id is not None and await members.load_member(connection, org, user_id) is None:
        raise Unknown("member")


async def _answer(call: Call[Any, Any], stored: StoredDepartment, *, waits: bool) -> Department:
    state = stored.state
    effective = not waits or await is_applied(
        call, "department", state.department_id, state.entity_revision
    )
    return Department(**_fields(call, stored), effective=effective)


@route(
    "POST",
    "/orgs/{org:str}/departments",
    Contract(
        summary="Create a department",
        needs=(MEMBERS_MANAGE,),
        query=NoQuery,
        body=NewDepartment,
        answer=Department,
        status=201,
        takes_idempotency_key=True,
    ),
)
async def create_department(call: Call[NoQuery, NewDepartment]) -> Department:
    """A lead has to be a member. Ids are not reused."""
    body, now = call.body, call.ports.clock.now()
    if body.monthly_budget_usd is not None:
        _require_budgets(call)
    said = DepartmentChanged(
        entity_revision=1,
        department_id=body.department_id or str(uuid7()),
        name=body.name,
        lead_user_id=body.lead_user_id,
        monthly_budget_nanousd=body.monthly_budget_usd,
        cap_revision=1,
        members=(),
        changed_at=now,
    )

    async def create(connection: Connection) -> Department:
        await _require_member(connection, call.org, body.lead_user_id)
        if not await departments.save_new_department(connection, call.org, said):
            raise Taken("department", said.department_id)
        details = directory.changes(None, said)
        act = call.act("department.created", "department", said.department_id, **details)
        await record_act(connection, act, said)
        return Department(**_fields(call, StoredDepartment(now, said)), effective=False)

    created = await create_once(call, create, model=Department)
    answer = created.answer
    waits = body.monthly_budget_usd is not None
    effective = not waits or await is_applied(call, "department", answer.department_id, 1)
    return answer.model_copy(update={"effective": effective})


@route(
    "GET",
    "/orgs/{org:str}/departments",
    Contract(
        summary="List departments",
        needs=Needs.MEMBERSHIP,
        query=PageQuery,
        body=NoBody,
        answer=DepartmentPage,
    ),
)
async def list_departments(call: Call[PageQuery, NoBody]) -> DepartmentPage:
    """By id."""
    async with call.ports.database.reading() as connection:
        rows, total = await departments.list_departments(
            connection, call.org, skip=call.query.skip, limit=call.query.limit
        )
    items = tuple(DepartmentRow(**_fields(call, row)) for row in rows)
    return DepartmentPage(items=items, total=total)


@route(
    "PATCH",
    "/orgs/{org:str}/departments/{department_id:str}",
    Contract(
        summary="Change a department",
        needs=(MEMBERS_MANAGE,),
        query=NoQuery,
        body=DepartmentPatch,
        answer=Department,
    ),
)
async def change_department(call: Call[NoQuery, DepartmentPatch]) -> Department:
    """A cap also needs `budgets:manage`; 202 where the ledger has not applied it within 2 s."""
    department_id, given = call.path_id("department_id"), call.body.given()
    if "monthly_budget_usd" in given:
        _require_budgets(call)
    async with call.ports.database.transaction() as connection:
        stored = await departments.lock_department(connection, call.org, department_id)
        if stored is None:
            raise Unknown("department")
        await _require_member(connection, call.org, given.get("lead_user_id"))
        said = await _save(connection, call, stored, _in_nanousd(given))
    caps = said.cap_revision != stored.state.cap_revision
    return await _answer(call, StoredDepartment(stored.created_at, said), waits=caps)


async def _save(
    connection: Connection,
    call: Call[Any, Any],
    stored: StoredDepartment,
    fields: dict[str, Any],
) -> DepartmentChanged:
    said = directory.change_department(stored.state, fields, now=call.ports.clock.now())
    if said is None:
        return stored.state
    await departments.save_department(connection, call.org, said)
    details = directory.changes(stored.state, said)
    act = call.act("department.changed", "department", said.department_id, **details)
    await record_act(connection, act, said)
    return said


@route(
    "DELETE",
    "/orgs/{org:str}/departments/{department_id:str}",
    Contract(
        summary="Remove a department",
        needs=(MEMBERS_MANAGE, BUDGETS_MANAGE),
        query=NoQuery,
        body=NoBody,
        answer=type(None),
        status=204,
    ),
)
async def remove_department(call: Call[NoQuery, NoBody]) -> None:
    """Its cap binds no more, hence both permissions. Removing it again changes nothing."""
    department_id, now = call.path_id("department_id"), call.ports.clock.now()
    async with call.ports.database.transaction() as connection:
        stored = await departments.lock_department(connection, call.org, department_id)
        if stored is None:
            raise Unknown("department")
        said = DepartmentRemoved(
            entity_revision=stored.state.entity_revision + 1,
            department_id=department_id,
            removed_at=now,
        )
        await departments.save_department_removed(connection, call.org, said)
        act = call.act("department.removed", "department", department_id, name=stored.state.name)
        await record_act(connection, act, said)


@route(
    "GET",
    "/orgs/{org:str}/departments/{department_id:str}/members",
    Contract(
        summary="List who belongs to a department, since when",
        needs=Needs.MEMBERSHIP,
        query=PageQuery,
        body=NoBody,
        answer=MembershipPage,
    ),
)
async def list_department_members(call: Call[PageQuery, NoBody]) -> MembershipPage:
    """In the order of their begin; memberships that are over included."""
    async with call.ports.database.reading() as connection:
        stored = await departments.load_department(
            connection, call.org, call.path_id("department_id")
        )
    if stored is None:
        raise Unknown("department")
    skip, found = call.query.skip, stored.state.members
    return MembershipPage(items=found[skip : skip + call.query.limit], total=len(found))


@route(
    "POST",
    "/orgs/{org:str}/departments/{department_id:str}/members",
    Contract(
        summary="Let a member belong to a department",
        needs=(MEMBERS_MANAGE,),
        query=NoQuery,
        body=NewMembership,
        answer=Department,
        refusals=(400, 409),
    ),
)
async def add_department_member(call: Call[NoQuery, NewMembership]) -> Department:
    """From now on, or from another instant; runs that began since count for the department."""
    at = call.body.effective_at or call.ports.clock.now()
    return await _change_members(call, call.body.user_id, at=at, begins=True)


@route(
    "DELETE",
    "/orgs/{org:str}/departments/{department_id:str}/members/{user_id:str}",
    Contract(
        summary="Let a member belong to a department no longer",
        needs=(MEMBERS_MANAGE,),
        query=EndQuery,
        body=NoBody,
        answer=Department,
    ),
)
async def end_department_member(call: Call[EndQuery, NoBody]) -> Department:
    """From now on, or from another instant. Who does not belong by then stays as they are."""
    at = call.query.effective_at or call.ports.clock.now()
    return await _change_members(call, call.path_id("user_id"), at=at, begins=False)


async def _change_members(
    call: Call[Any, Any], user_id: str, *, at: datetime, begins: bool
) -> Department:
    department_id = call.path_id("department_id")
    async with call.ports.database.transaction() as connection:
        stored = await departments.lock_department(connection, call.org, department_id)
        if stored is None:
            raise Unknown("department")
        if begins:
            await _require_member(connection, call.org, user_id)
            changed = begin_membership(stored.state.members, user_id, at=at)
        else:
            changed = end_membership(stored.state.members, user_id, at=at)
        said = await _save(connection, call, stored, {"members": changed})
    return await _answer(call, StoredDepartment(stored.created_at, said), waits=False)


ROUTES = (
    create_department,
    list_departments,
    change_department,
    remove_department,
    list_department_members,
    add_department_member,
    end_department_member,
)
