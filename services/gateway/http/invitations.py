"""`/invitations`: a membership with a role that the inviter may assign, for one address.

The one thing not to break: accepting proves the token *and* the password. Where somebody has the
address already, an invitation adds a membership and never touches their password.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import ConfigDict, Field, SecretStr
from uuid_utils.compat import uuid7

from contracts.directory import MemberChanged
from contracts.types import Id, Instant, OrgId, Wire
from services.gateway.domain.keys import TokenKind, parse_token
from services.gateway.domain.permissions import MEMBERS_MANAGE
from services.gateway.errors import InvitationRefused, Taken, Unknown
from services.gateway.http.contract import Call, Contract, Needs, route
from services.gateway.http.fields import Body, Email, NoBody, NoQuery, Page, PageQuery, SafeName
from services.gateway.http.members import Role, require_assignable
from services.gateway.http.once import create_once
from services.gateway.http.passwords import PASSWORD_CHARS_MAX, PASSWORD_CHARS_MIN
from services.gateway.http.sessions import Session, begin_session, check_password
from services.gateway.store import invitations, members, people
from services.gateway.store.acts import Act, ensure_pseudonym, record_act
from services.gateway.store.invitations import StoredInvitation
from services.gateway.store.minting import draw_token
from services.gateway.store.people import Person

if TYPE_CHECKING:
    from shared.db import Connection

VALID: Final = timedelta(days=7)


class NewInvitation(Body):
    """`user_id`: the id on the platform that the member comes from; one of ours where absent."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"email": "ana@example.org", "name": "Ana", "role": "operator"}]
        }
    )

    email: Email
    name: SafeName
    role: Role
    user_id: Id | None = None


class Invitation(Wire):
    """What may be shown of an invitation at any time."""

    id: Id
    user_id: Id
    name: str
    email: str
    role: str
    created_at: Instant
    expires_at: Instant
    accepted_at: Instant | None
    revoked_at: Instant | None


class CreatedInvitation(Invitation):
    """`token` is shown once: it is null where an Idempotency-Key repeats the answer."""

    token: str | None = Field(repr=False, examples=["ri_0123456789abcdef_…"])


InvitationPage = Page[Invitation]


class Acceptance(Body):
    """`password`: a new one, or the one that the address has already."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"token": f"ri_{'0' * 16}_{'s' * 43}", "password": "correct horse battery"}
            ]
        }
    )

    token: Annotated[SecretStr, Field(min_length=1, max_length=100)]
    password: Annotated[
        SecretStr, Field(min_length=PASSWORD_CHARS_MIN, max_length=PASSWORD_CHARS_MAX)
    ]


class Accepted(Session):
    """The membership, and a first session."""

    org_id: OrgId
    user_id: Id
    role: str


def _fields(stored: StoredInvitation) -> dict[str, Any]:
    return {
        "id": stored.invitation_id,
        **{name: getattr(stored, name) for name in Invitation.model_fields if name != "id"},
    }


@route(
    "POST",
    "/invitations",
    Contract(
        summary="Invite somebody to the organization",
        needs=(MEMBERS_MANAGE,),
        query=NoQuery,
        body=NewInvitation,
        answer=CreatedInvitation,
        status=201,
        takes_idempotency_key=True,
    ),
)
async def create_invitation(call: Call[NoQuery, NewInvitation]) -> CreatedInvitation:
    """The token is shown once, for the invited alone. The caller's role exceeds the one offered."""
    body, now = call.body, call.ports.clock.now()
    require_assignable(call, body.role)
    token = draw_token(TokenKind.INVITATION)
    stored = StoredInvitation(
        invitation_id=token.token_id,
        org_id=call.org,
        user_id=body.user_id or str(uuid7()),
        name=body.name,
        email=body.email,
        role=body.role,
        created_at=now,
        expires_at=now + VALID,
        accepted_at=None,
        revoked_at=None,
    )

    async def create(connection: Connection) -> CreatedInvitation:
        known = await members.load_member(connection, call.org, stored.user_id)
        if known is not None and known.person_id is not None:
            raise Taken("member", stored.user_id)
        if known is not None:
            require_assignable(call, known.state.role)
        await invitations.save_new_invitation(
            connection,
            stored,
            secret_sha256=token.secret_sha256,
            by=call.caller.pseudonym,
            by_user_id=call.caller.user_id or call.caller.speaks_for,
        )
        act = call.act(
            "invitation.created",
            "invitation",
            stored.invitation_id,
            role=stored.role,
            user_id=stored.user_id,
        )
        await record_act(connection, act)
        return CreatedInvitation(**_fields(stored), token=token.text)

    created = await create_once(
        call,
        create,
        model=CreatedInvitation,
        without_secrets=lambda answer: answer.model_copy(update={"token": None}),
    )
    return created.answer


@route(
    "GET",
    "/invitations",
    Contract(
        summary="List invitations",
        needs=(MEMBERS_MANAGE,),
        query=PageQuery,
        body=NoBody,
        answer=InvitationPage,
    ),
)
async def list_invitations(call: Call[PageQuery, NoBody]) -> InvitationPage:
    """Newest first, accepted and revoked ones included; never their tokens."""
    async with call.ports.database.reading() as connection:
        rows, total = await invitations.list_invitations(
            connection, call.org, skip=call.query.skip, limit=call.query.limit
        )
    return InvitationPage(items=tuple(Invitation(**_fields(row)) for row in rows), total=total)


@route(
    "DELETE",
    "/invitations/{invitation_id:str}",
    Contract(
        summary="Take an invitation back",
        needs=(MEMBERS_MANAGE,),
        query=NoQuery,
        body=NoBody,
        answer=type(None),
        status=204,
    ),
)
async def revoke_invitation(call: Call[NoQuery, NoBody]) -> None:
    """Its token is refused from now on. A membership that was accepted stays."""
    invitation_id, now = call.path_id("invitation_id"), call.ports.clock.now()
    async with call.ports.database.transaction() as connection:
        stored = await invitations.lock_invitation(connection, call.org, invitation_id)
        if stored is None:
            raise Unknown("invitation")
        if stored.revoked_at is not None or stored.accepted_at is not None:
            return
        await invitations.save_invitation_revoked(connection, invitation_id, at=now)
        await record_act(connection, call.act("invitation.revoked", "invitation", invitation_id))


@route(
    "POST",
    "/invitations/accept",
    Contract(
        summary="Accept an invitation",
        needs=Needs.NOTHING,
        query=NoQuery,
        body=Acceptance,
        answer=Accepted,
        refusals=(404, 409, 429),
    ),
)
async def accept_invitation(call: Call[NoQuery, Acceptance]) -> Accepted:
    """Needs the token, and the password of the address where it has one already."""
    token = parse_token(call.body.token.get_secret_value())
    if token is None or token.kind is not TokenKind.INVITATION:
        raise InvitationRefused
    now, password = call.ports.clock.now(), call.body.password.get_secret_value()
    async with call.ports.database.transaction() as connection:
        found = await invitations.lock_open_invitation(connection, token.token_id, now=now)
        if found is None or not token.fits(found[1]):
            raise InvitationRefused
        invitation = found[0]
        known = await people.load_person_by_email(connection, invitation.email)
    # Hashing takes long: it happens outside, and what was read is read again under the lock.
    if known is None:
        digest = await call.ports.passwords.digest(password)
        person = Person(str(uuid7()), invitation.email, invitation.name, digest, is_app_admin=False)
    else:
        person = await check_password(call, invitation.email, password)
    async with call.ports.database.transaction() as connection:
        if await invitations.lock_open_invitation(connection, token.token_id, now=now) is None:
            raise InvitationRefused
        if known is None and not await people.save_new_person(connection, person, at=now):
            raise Taken("address", invitation.email)
        return await _join(connection, call, invitation, person)


async def _join(
    connection: Connection, call: Call[Any, Any], invitation: StoredInvitation, person: Person
) -> Accepted:
    now, org = call.ports.clock.now(), invitation.org_id
    pseudonym = await ensure_pseudonym(connection, f"person:{person.person_id}", now=now)
    if await members.is_member(connection, org, person.person_id):
        raise Taken("member", invitation.user_id)
    before = await members.lock_member(connection, org, invitation.user_id)
    if before is not None and before.removed_at is None and before.person_id is not None:
        raise Taken("member", invitation.user_id)
    said = MemberChanged(
        entity_revision=before.state.entity_revision + 1 if before else 1,
        user_id=invitation.user_id,
        name=invitation.name,
        role=invitation.role,
        changed_at=now,
    )
    await members.save_member(
        connection, org, said, email=invitation.email, person_id=person.person_id
    )
    await invitations.save_accepted(connection, invitation.invitation_id, at=now)
    session = await begin_session(connection, call, person)
    act = Act(
        action="member.joined",
        org=org,
        target_type="member",
        target_id=said.user_id,
        actor=pseudonym,
        at=now,
        details={"role": said.role, "invitation": invitation.invitation_id},
        ip_address=call.ip_address,
    )
    await record_act(connection, act, said)
    return Accepted(**dict(session), org_id=org, user_id=said.user_id, role=said.role)


ROUTES = (create_invitation, list_invitations, revoke_invitation, accept_invitation)
