"""`/sessions` and `/me`: signing in with a password, signing out, everywhere if wished.

The one thing not to break: a wrong password, an unknown address and a locked one are told apart by
nobody but their owner. Sign-in by OpenID Connect makes the same session by `begin_session`.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from litestar.datastructures import Cookie
from pydantic import ConfigDict, Field, SecretStr

from contracts.types import Id, Instant, OrgId, Wire
from services.gateway.domain.keys import TokenKind
from services.gateway.domain.permissions import Scope, held_by_role
from services.gateway.errors import CrossSite, SignInLocked, SignInRefused
from services.gateway.http.callers import COOKIE, CallerKind, is_same_origin
from services.gateway.http.contract import Call, Contract, Needs, route
from services.gateway.http.fields import Body, Email, NoBody, NoQuery
from services.gateway.http.passwords import PASSWORD_CHARS_MAX
from services.gateway.store import people
from services.gateway.store.acts import Act, ensure_pseudonym, record_act
from services.gateway.store.minting import draw_token

if TYPE_CHECKING:
    from services.gateway.http.ports import Ports
    from services.gateway.store.people import Person
    from shared.db import Connection

FAILURES_MAX: Final = 5
"""Failed sign-ins of one address in a row before it is locked out."""
PLACE_FAILURES_MAX: Final = 50
"""The same from one network address, behind which many people may sit."""
LOCK: Final = timedelta(minutes=15)


class SignIn(Body):
    """`cookie` answers with a session cookie besides the token, for pages of this site."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"email": "ana@example.org", "password": "correct horse battery"}]
        }
    )

    email: Email
    password: Annotated[SecretStr, Field(min_length=1, max_length=PASSWORD_CHARS_MAX)]
    cookie: bool = False


class Session(Wire):
    """`token` is shown once; it is sent as bearer token."""

    token: str = Field(repr=False, examples=["rs_0123456789abcdef_…"])
    expires_at: Instant


class Belonging(Wire):
    """An organization of the caller: who they are there and how far each permission reaches."""

    org_id: OrgId
    user_id: Id | None
    role: str | None
    permissions: dict[str, str]


class Me(Wire):
    """Who calls. A key has one organization, and neither name nor address."""

    kind: CallerKind
    id: Id | None
    """The person's id."""
    name: str | None
    email: str | None
    is_app_admin: bool
    belongings: tuple[Belonging, ...]


class Ended(Wire):
    """How many sessions were ended."""

    ended: int


@route(
    "POST",
    "/sessions",
    Contract(
        summary="Sign in with a password",
        needs=Needs.NOTHING,
        query=NoQuery,
        body=SignIn,
        answer=Session,
        status=201,
        refusals=(429,),
    ),
)
async def sign_in(call: Call[NoQuery, SignIn]) -> Session:
    """Needs no credential. After five failures in a row an address is locked for 15 minutes."""
    if call.body.cookie and not is_same_origin(call.request):
        raise CrossSite
    person = await check_password(call, call.body.email, call.body.password.get_secret_value())
    async with call.ports.database.transaction() as connection:
        session = await begin_session(connection, call, person)
    if call.body.cookie:
        call.send_cookie(_cookie(call.ports, session))
    return session


async def check_password(call: Call[Any, Any], email: str, password: str) -> Person:
    """The person whose address and password these are.

    Raises:
        SignInRefused, SignInLocked.
    """
    ports, now = call.ports, call.ports.clock.now()
    address, place = f"email:{email}", f"place:{call.ip_address}"
    async with ports.database.reading() as connection:
        until = await people.load_lock(connection, (address, place), now=now)
        person = await people.load_person_by_email(connection, email)
    if until is not None:
        raise SignInLocked(math.ceil((until - now).total_seconds()))
    fits = await ports.passwords.fits(password, person.password_hash if person else None)
    if person is None or not fits:
        await _count(call, address, place, person)
        raise SignInRefused
    async with ports.database.transaction() as connection:
        await people.forget_failures(connection, address)
        if ports.passwords.is_outdated(person.password_hash):
            digest = await ports.passwords.digest(password)
            await people.save_password(connection, person.person_id, digest, at=now)
    return person


async def _count(call: Call[Any, Any], address: str, place: str, person: Person | None) -> None:
    now = call.ports.clock.now()
    async with call.ports.database.transaction() as connection:
        limits = ((address, FAILURES_MAX), (place, PLACE_FAILURES_MAX))
        locked = [
            subject
            for subject, failures_max in limits
            if await people.count_failure(
                connection, subject, now=now, window=LOCK, failures_max=failures_max
            )
        ]
        if person is not None and address in locked:
            subject = f"person:{person.person_id}"
            pseudonym = await ensure_pseudonym(connection, subject, now=now)
            act = Act(
                action="session.locked",
                org=None,
                target_type="person",
                target_id=pseudonym,
                actor=None,
                at=now,
                ip_address=call.ip_address,
            )
            await record_act(connection, act)


async def begin_session(connection: Connection, call: Call[Any, Any], person: Person) -> Session:
    """Begin a session of a person who has proved who they are, whatever proved it."""
    now = call.ports.clock.now()
    token = draw_token(TokenKind.SESSION)
    expires_at = now + call.ports.session_age
    pseudonym = await ensure_pseudonym(connection, f"person:{person.person_id}", now=now)
    await people.save_new_session(
        connection,
        token.token_id,
        token.secret_sha256,
        person_id=person.person_id,
        at=now,
        expires_at=expires_at,
    )
    await record_act(connection, _act_of_session(call, "session.created", pseudonym, now))
    return Session(token=token.text, expires_at=expires_at)


def _act_of_session(call: Call[Any, Any], action: str, pseudonym: str, at: datetime) -> Act:
    return Act(
        action=action,
        org=None,
        target_type="person",
        target_id=pseudonym,
        actor=pseudonym,
        at=at,
        ip_address=call.ip_address,
    )


def _cookie(ports: Ports, session: Session | None) -> Cookie:
    """A cookie that no script reads and no other site sends along."""
    return Cookie(
        key=COOKIE,
        value=session.token if session else "",
        path="/",
        httponly=True,
        samesite="strict",
        secure=ports.session_cookie_secure,
        max_age=int(ports.session_age.total_seconds()) if session else 0,
    )


@route(
    "DELETE",
    "/sessions/current",
    Contract(
        summary="Sign out",
        needs=Needs.SELF,
        own_session=True,
        query=NoQuery,
        body=NoBody,
        answer=type(None),
        status=204,
    ),
)
async def sign_out(call: Call[NoQuery, NoBody]) -> None:
    """The session is refused from the next request on. Needs a person's own session."""
    signed_in, now = call.caller.require_session(), call.ports.clock.now()
    async with call.ports.database.transaction() as connection:
        if await people.end_session(connection, signed_in.session_id, at=now):
            act = _act_of_session(call, "session.ended", call.caller.pseudonym, now)
            await record_act(connection, act)
    call.send_cookie(_cookie(call.ports, None))


@route(
    "DELETE",
    "/sessions",
    Contract(
        summary="Sign out everywhere",
        needs=Needs.SELF,
        own_session=True,
        query=NoQuery,
        body=NoBody,
        answer=Ended,
    ),
)
async def sign_out_everywhere(call: Call[NoQuery, NoBody]) -> Ended:
    """Every session of the person ends, this one included. Needs a person's own session."""
    signed_in, now = call.caller.require_session(), call.ports.clock.now()
    async with call.ports.database.transaction() as connection:
        ended = await people.end_sessions(connection, signed_in.person_id, at=now)
        act = _act_of_session(call, "session.all_ended", call.caller.pseudonym, now)
        await record_act(connection, act)
    call.send_cookie(_cookie(call.ports, None))
    return Ended(ended=ended)


@route(
    "GET",
    "/me",
    Contract(
        summary="Who calls, and what they may do where",
        needs=Needs.SELF,
        query=NoQuery,
        body=NoBody,
        answer=Me,
    ),
)
async def get_me(call: Call[NoQuery, NoBody]) -> Me:
    """Needs any credential. A permission stands with how far it reaches."""
    caller = call.caller
    if caller.signed_in is None:
        permissions = _shown(caller.held)
        return Me(
            kind=caller.kind,
            id=None,
            name=None,
            email=None,
            is_app_admin=False,
            belongings=()
            if caller.org is None
            else (Belonging(org_id=caller.org, user_id=None, role=None, permissions=permissions),),
        )
    async with call.ports.database.reading() as connection:
        person = await people.load_person(connection, caller.signed_in.person_id)
    if person is None:
        raise RuntimeError("the person of a session vanished: people are never deleted")
    return Me(
        kind=caller.kind,
        id=person.person_id,
        name=person.name,
        email=person.email,
        is_app_admin=person.is_app_admin,
        belongings=tuple(
            Belonging(
                org_id=each.org,
                user_id=each.user_id,
                role=each.role,
                permissions=_shown(held_by_role(each.role)),
            )
            for each in caller.signed_in.belongings
        ),
    )


def _shown(held: Any) -> dict[str, str]:
    return {name: scope.name.lower() for name, scope in sorted(held.items()) if scope > Scope.NONE}


ROUTES = (sign_in, sign_out, sign_out_everywhere, get_me)
