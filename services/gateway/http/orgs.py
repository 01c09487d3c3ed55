"""`/orgs`: organizations are created by the deployment and changed by their own people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from contracts.directory import BillingZone
from contracts.types import (
    CapMode,
    Instant,
    Name,
    OnUnreachable,
    OrgId,
    Revision,
    UnpricedPolicy,
    Wire,
)
from services.gateway.domain import directory
from services.gateway.domain.permissions import missing_from
from services.gateway.errors import OrganizationUnknown, PermissionMissing, Taken
from services.gateway.http.contract import Call, Contract, Needs, route
from services.gateway.http.fields import Body, NoBody, NoQuery, Page, PageQuery, Patch, Usd, UsdCap
from services.gateway.http.once import create_once
from services.gateway.store import organizations
from services.gateway.store.acts import record_act
from services.gateway.store.organizations import StoredOrganization

if TYPE_CHECKING:
    from shared.db import Connection

TimeZone = Annotated[str, Field(min_length=1, max_length=64, examples=["Europe/Madrid"])]


class NewOrganization(Body):
    """`monthly_budget_usd`: absent takes the deployment's default, null means uncapped."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"org_id": "acme", "name": "Acme", "monthly_budget_usd": "250.00"}]
        }
    )

    org_id: OrgId
    name: Name
    monthly_budget_usd: UsdCap | None = None
    cap_mode: CapMode = CapMode.RECORDED
    unpriced_policy: UnpricedPolicy = UnpricedPolicy.ALLOW_AS_FLOOR
    on_unreachable: OnUnreachable = OnUnreachable.REFUSE
    billing_timezone: TimeZone = "UTC"


class OrganizationPatch(Patch):
    """Absent fields stay; a null budget means uncapped."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset({"monthly_budget_usd"})
    model_config = ConfigDict(json_schema_extra={"examples": [{"monthly_budget_usd": "300.00"}]})

    name: Name | None = None
    monthly_budget_usd: UsdCap | None = None
    cap_mode: CapMode | None = None
    unpriced_policy: UnpricedPolicy | None = None
    on_unreachable: OnUnreachable | None = None
    billing_timezone: TimeZone | None = None
    chat_may_waive_approvals: bool | None = None


class Organization(Wire):
    """An organization's newest state. `billing_timezone` was chosen last, zones say since when."""

    org_id: OrgId
    name: Name
    status: Literal["active", "closed"]
    monthly_budget_usd: Usd | None
    cap_revision: Revision
    cap_mode: CapMode
    unpriced_policy: UnpricedPolicy
    on_unreachable: OnUnreachable
    billing_timezone: str
    billing_zones: tuple[BillingZone, ...]
    chat_may_waive_approvals: bool
    entity_revision: Revision
    created_at: Instant
    changed_at: Instant


OrganizationPage = Page[Organization]
_MONEY: Final = {"monthly_budget_usd": "monthly_budget_nanousd"}


def _shown(stored: StoredOrganization) -> Organization:
    state = dict(stored.state)
    return Organization(
        **{name: value for name, value in state.items() if name in Organization.model_fields},
        org_id=stored.org_id,
        created_at=stored.created_at,
        monthly_budget_usd=stored.state.monthly_budget_nanousd,
    )


def _in_nanousd(fields: dict[str, Any]) -> dict[str, Any]:
    return {_MONEY.get(name, name): value for name, value in fields.items()}


@route(
    "POST",
    "/orgs",
    Contract(
        summary="Create an organization",
        needs=Needs.DEPLOYMENT,
        query=NoQuery,
        body=NewOrganization,
        answer=Organization,
        status=201,
        takes_idempotency_key=True,
    ),
)
async def create_organization(call: Call[NoQuery, NewOrganization]) -> Organization:
    """Create an organization with its cap, policies and billing time zone."""
    body, now = call.body, call.ports.clock.now()
    fields = _in_nanousd(dict(body))
    if "monthly_budget_usd" not in body.model_fields_set:
        fields["monthly_budget_nanousd"] = call.ports.org_monthly_budget_nanousd
    org_id = fields.pop("org_id")
    state = directory.new_organization(fields, now=now)

    async def create(connection: Connection) -> Organization:
        if not await organizations.save_new_organization(connection, org_id, state):
            raise Taken("organization", org_id)
        details = directory.changes(None, state)
        act = call.act("organization.created", "organization", org_id, **details)
        await record_act(connection, act, state)
        return _shown(StoredOrganization(org_id, now, state))

    created = await create_once(call, create, model=Organization)
    return created.answer


@route(
    "GET",
    "/orgs",
    Contract(
        summary="List organizations",
        needs=Needs.MEMBERSHIP,
        query=PageQuery,
        body=NoBody,
        answer=OrganizationPage,
    ),
)
async def list_organizations(call: Call[PageQuery, NoBody]) -> OrganizationPage:
    """All for the deployment key; a key of an organization sees its own."""
    async with call.ports.database.reading() as connection:
        rows, total = await organizations.list_organizations(
            connection,
            only=call.request.state.org,
            skip=call.query.skip,
            limit=call.query.limit,
        )
    return OrganizationPage(items=tuple(_shown(row) for row in rows), total=total)


@route(
    "GET",
    "/orgs/{org:str}",
    Contract(
        summary="Read an organization",
        needs=Needs.MEMBERSHIP,
        query=NoQuery,
        body=NoBody,
        answer=Organization,
    ),
)
async def get_organization(call: Call[NoQuery, NoBody]) -> Organization:
    """Its newest state, the cap included."""
    async with call.ports.database.reading() as connection:
        stored = await organizations.load_organization(connection, call.org)
    if stored is None:
        raise OrganizationUnknown
    return _shown(stored)


@route(
    "PATCH",
    "/orgs/{org:str}",
    Contract(
        summary="Change an organization",
        needs=Needs.BY_FIELD,
        query=NoQuery,
        body=OrganizationPatch,
        answer=Organization,
    ),
)
async def change_organization(call: Call[NoQuery, OrganizationPatch]) -> Organization:
    """Another time zone holds from the next month on.

    Money, modes and time zone need `budgets:manage`, the name needs `org:settings`,
    `chat_may_waive_approvals` needs `approvals:decide`.
    """
    fields = _in_nanousd(call.body.given())
    missing = missing_from(
        call.caller.permissions, (directory.ORGANIZATION_FIELDS[name] for name in fields)
    )
    if missing:
        raise PermissionMissing(missing)
    async with call.ports.database.transaction() as connection:
        stored = await organizations.lock_organization(connection, call.org)
        if stored is None:
            raise OrganizationUnknown
        state = directory.change_organization(stored.state, fields, now=call.ports.clock.now())
        if state is None:
            return _shown(stored)
        await organizations.save_organization(connection, call.org, state)
        details = directory.changes(stored.state, state)
        act = call.act("organization.changed", "organization", call.org, **details)
        await record_act(connection, act, state)
    return _shown(StoredOrganization(stored.org_id, stored.created_at, state))


ROUTES = (create_organization, list_organizations, get_organization, change_organization)
