"""`/orgs`: organizations are created by the deployment and changed by their own people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from contracts.directory import PROACTIVE_LIMIT_NANOUSD, BillingZone
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
from services.gateway.errors import OrganizationUnknown, PermissionMissing, Taken
from services.gateway.http.applied import is_applied
from services.gateway.http.callers import Caller
from services.gateway.http.contract import Call, Contract, Needs, route
from services.gateway.http.fields import (
    Body,
    NoBody,
    NoQuery,
    Page,
    PageQuery,
    Patch,
    SafeName,
    TakesEffect,
    Usd,
    UsdCap,
    UsdIn,
)
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
    name: SafeName
    monthly_budget_usd: UsdCap | None = None
    cap_mode: CapMode = CapMode.RECORDED
    unpriced_policy: UnpricedPolicy = UnpricedPolicy.ALLOW_AS_FLOOR
    on_unreachable: OnUnreachable = OnUnreachable.REFUSE
    billing_timezone: TimeZone = "UTC"
    proactive_limit_usd: UsdIn | None = None
    """1 USD where absent (http.md, *Who may change what*)."""


class OrganizationPatch(Patch):
    """Absent fields stay; a null budget means uncapped."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset({"monthly_budget_usd"})
    model_config = ConfigDict(json_schema_extra={"examples": [{"monthly_budget_usd": "300.00"}]})

    name: SafeName | None = None
    monthly_budget_usd: UsdCap | None = None
    cap_mode: CapMode | None = None
    unpriced_policy: UnpricedPolicy | None = None
    on_unreachable: OnUnreachable | None = None
    billing_timezone: TimeZone | None = None
    chat_may_waive_approvals: bool | None = None
    proactive_limit_usd: UsdIn | None = None
    public_live_data: bool | None = None


class OrganizationRow(Wire):
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
    proactive_limit_usd: Usd
    """What each person's proactive work may cost in a month."""
    public_live_data: bool
    entity_revision: Revision
    created_at: Instant
    changed_at: Instant


class Organization(OrganizationRow, TakesEffect):
    """An organization, and whether what was changed holds for the next request."""


OrganizationPage = Page[OrganizationRow]
_MONEY: Final = {
    "monthly_budget_usd": "monthly_budget_nanousd",
    "proactive_limit_usd": "proactive_limit_nanousd",
}
_BY_LEDGER: Final = frozenset(
    {
        "monthly_budget_nanousd",
        "proactive_limit_nanousd",
        "cap_mode",
        "unpriced_policy",
        "on_unreachable",
    }
)
"""Changes that the ledger has to apply before the next request is decided under them."""


def _fields(stored: StoredOrganization) -> dict[str, Any]:
    state = dict(stored.state)
    return {
        **{name: value for name, value in state.items() if name in OrganizationRow.model_fields},
        "org_id": stored.org_id,
        "created_at": stored.created_at,
        "monthly_budget_usd": stored.state.monthly_budget_nanousd,
        "proactive_limit_usd": stored.state.proactive_limit_nanousd,
    }


def _shown(stored: StoredOrganization, *, effective: bool) -> Organization:
    return Organization(**_fields(stored), effective=effective)


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
    if body.proactive_limit_usd is None:
        fields["proactive_limit_nanousd"] = PROACTIVE_LIMIT_NANOUSD
    org_id = fields.pop("org_id")
    state = directory.new_organization(fields, now=now)

    async def create(connection: Connection) -> Organization:
        if not await organizations.save_new_organization(connection, org_id, state):
            raise Taken("organization", org_id)
        details = directory.changes(None, state)
        act = call.act("organization.created", "organization", org_id, **details)
        await record_act(connection, act, state)
        return _shown(StoredOrganization(org_id, now, state), effective=True)

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
    """All for the deployment; a key sees its own, a person those that they belong to."""
    caller = call.caller
    only = None if caller.rules_deployment else _orgs_of(caller)
    if call.request.state.org is not None:
        only = (call.request.state.org,)
    async with call.ports.database.reading() as connection:
        rows, total = await organizations.list_organizations(
            connection,
            only=only,
            skip=call.query.skip,
            limit=call.query.limit,
        )
    return OrganizationPage(
        items=tuple(OrganizationRow(**_fields(row)) for row in rows), total=total
    )


def _orgs_of(caller: Caller) -> tuple[str, ...]:
    belongings = caller.signed_in.belongings if caller.signed_in else ()
    return tuple(each.org for each in belongings)


@route(
    "GET",
    "/orgs/{org:str}",
    Contract(
        summary="Read an organization",
        needs=Needs.MEMBERSHIP,
        query=NoQuery,
        body=NoBody,
        answer=OrganizationRow,
    ),
)
async def get_organization(call: Call[NoQuery, NoBody]) -> OrganizationRow:
    """Its newest state, the cap included."""
    async with call.ports.database.reading() as connection:
        stored = await organizations.load_organization(connection, call.org)
    if stored is None:
        raise OrganizationUnknown
    return OrganizationRow(**_fields(stored))


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
    """Another time zone holds from the next month on; 202 where a cap is not applied within 2 s.

    Money, modes and time zone need `budgets:manage`, the name needs `org:settings`,
    `chat_may_waive_approvals` needs `approvals:decide`, `public_live_data` needs `org:settings` in
    a person's own session.
    """
    fields = _in_nanousd(call.body.given())
    missing = call.caller.lacks(directory.ORGANIZATION_FIELDS[name] for name in fields)
    if missing:
        raise PermissionMissing(missing)
    if "public_live_data" in fields:
        call.caller.require_session()
    async with call.ports.database.transaction() as connection:
        stored = await organizations.lock_organization(connection, call.org)
        if stored is None:
            raise OrganizationUnknown
        state = directory.change_organization(stored.state, fields, now=call.ports.clock.now())
        if state is None:
            return _shown(stored, effective=True)
        await organizations.save_organization(connection, call.org, state)
        details = directory.changes(stored.state, state)
        act = call.act("organization.changed", "organization", call.org, **details)
        await record_act(connection, act, state)
    said = dict(state)
    waits = any(said[name] != value for name, value in stored.state if name in _BY_LEDGER)
    effective = not waits or await is_applied(call, "organization", call.org, state.entity_revision)
    changed = StoredOrganization(stored.org_id, stored.created_at, state)
    return _shown(changed, effective=effective)


ROUTES = (create_organization, list_organizations, get_organization, change_organization)
