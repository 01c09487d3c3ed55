"""Who calls: the credential of a request, and the caller that it stands for.

The one thing not to break: a caller is made from the credential alone. Nothing that the request
says about organization, channel or permissions gets in here. Nothing is kept between requests
either, so that whatever is revoked stops with the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult

from contracts.envelope import Actor
from contracts.types import ChannelRight
from services.gateway.domain.events import Publisher
from services.gateway.domain.keys import Token, TokenKind, is_deployment_key, parse_token
from services.gateway.domain.permissions import (
    CATALOGUE,
    KEYS_ONLY,
    Held,
    Scope,
    held_by_key,
    held_by_role,
    narrowed,
    whole,
)
from services.gateway.errors import (
    ChannelKeyNeeded,
    CredentialRefused,
    CrossSite,
    OrganizationUnknown,
    SessionNeeded,
)
from services.gateway.http.ports import Ports
from services.gateway.store.acts import ensure_pseudonym
from services.gateway.store.api_keys import KeyCaller, load_callers
from services.gateway.store.people import Belonging, load_session_caller
from shared.together import Together

if TYPE_CHECKING:
    from shared.clock import Clock
    from shared.db import Connection
    from shared.lookups import Lookups

DEPLOYMENT_SUBJECT: Final = "deployment"
SCHEME: Final = "bearer"
COOKIE: Final = "rienda_session"
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_EVERYTHING: Final = held_by_key(CATALOGUE)
_EVERYTHING_OF_PEOPLE: Final = held_by_key(CATALOGUE - frozenset(KEYS_ONLY))


class CallerKind(StrEnum):
    """What a credential is."""

    DEPLOYMENT = "deployment"
    KEY = "key"
    PERSON = "person"
    NOBODY = "nobody"
    """No credential was asked for."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The person behind a session, in all their organizations."""

    person_id: str
    session_id: str
    is_app_admin: bool
    belongings: tuple[Belonging, ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """The deployment key, an API key or a person's session, checked."""

    kind: CallerKind
    subject: str
    """`key:<id>`, `person:<id>` or `deployment`; names the caller inside the gateway only."""
    pseudonym: str
    """Names the caller everywhere else (design.md 9)."""
    held: Held
    """What the caller holds in `org`; of a person nothing before the organization is known."""
    org: str | None = None
    """The key's organization, or the one that a person acts in."""
    user_id: str | None = None
    """The member that a person is in `org`."""
    publisher: Publisher | None = None
    """The channel that the key belongs to."""
    signed_in: SignedIn | None = None
    speaks_for: str | None = None
    """The member whom a key speaks for; whatever it makes speaks for them as well."""

    @property
    def is_deployment(self) -> bool:
        """Whether the deployment key was presented."""
        return self.kind is CallerKind.DEPLOYMENT

    @property
    def rules_deployment(self) -> bool:
        """Whether the deployment key was presented, or an app admin signed in (http.md)."""
        return self.is_deployment or (self.signed_in is not None and self.signed_in.is_app_admin)

    @property
    def permissions(self) -> frozenset[str]:
        """What is held without any limit: what a key may be given, what rooms are told."""
        return whole(self.held)

    def scope(self, permission: str) -> Scope:
        """How far a permission reaches."""
        return self.held.get(permission, Scope.NONE)

    def lacks(self, needed: Iterable[str]) -> frozenset[str]:
        """The needed permissions that are not held at any scope, all of them."""
        return frozenset(name for name in needed if self.scope(name) is Scope.NONE)

    def acting_in(self, org: str) -> Caller:
        """This person in one of their organizations; an app admin in any.

        Raises:
            OrganizationUnknown: they do not belong to it.
        """
        if self.signed_in is None:
            raise OrganizationUnknown
        found = next((each for each in self.signed_in.belongings if each.org == org), None)
        if self.signed_in.is_app_admin:
            user_id = found.user_id if found else None
            return replace(self, org=org, user_id=user_id, held=_EVERYTHING_OF_PEOPLE)
        if found is None:
            raise OrganizationUnknown
        return replace(self, org=org, user_id=found.user_id, held=held_by_role(found.role))

    def actor(self) -> Actor:
        """What rooms are told about the caller."""
        return Actor(
            pseudonym=self.pseudonym,
            permissions=tuple(sorted(self.permissions)),
            channel_id=self.publisher.channel_id if self.publisher else None,
        )

    def require_publisher(self) -> Publisher:
        """The caller's channel.

        Raises:
            ChannelKeyNeeded: the key belongs to none.
        """
        if self.publisher is None:
            raise ChannelKeyNeeded
        return self.publisher

    def require_session(self) -> SignedIn:
        """The person who calls in their own session.

        Raises:
            SessionNeeded: a key calls.
        """
        if self.signed_in is None:
            raise SessionNeeded
        return self.signed_in


NOBODY: Final = Caller(CallerKind.NOBODY, "nobody", "nobody", {})
"""The caller of a public route."""


class Authentication(AbstractAuthenticationMiddleware):
    """Turns the bearer token or the cookie into a `Caller`; public routes are left alone."""

    async def authenticate_request(
        self, connection: ASGIConnection[Any, Any, Any, Any]
    ) -> AuthenticationResult:
        """Check the credential.

        Raises:
            CredentialRefused: none, malformed, unknown, expired or revoked.
            CrossSite: a cookie came with a change that another site's page has made.
        """
        ports: Ports = connection.app.state.ports
        caller = await caller_of(presented(connection), ports)
        return AuthenticationResult(user=caller, auth=None)


def presented(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """The credential's text. A header beats the cookie; two headers are none.

    Raises:
        CredentialRefused: none, or several.
        CrossSite: as `Authentication`.
    """
    given = connection.headers.getall("authorization", [])
    if not given and COOKIE in connection.cookies:
        if connection.scope.get("method") not in _READING and not is_same_origin(connection):
            raise CrossSite
        return connection.cookies[COOKIE]
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != SCHEME:
        raise CredentialRefused
    return token.strip()


def is_same_origin(connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
    """Whether the browser says that this site's own page made the request.

    A page of another site cannot set these headers; where a browser sends neither, it is not one
    that a cookie may be trusted from.
    """
    site = connection.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = connection.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == connection.headers.get("host")


async def caller_of(text: str, ports: Ports) -> Caller:
    """The caller behind a credential's text, read from the database at this moment.

    Raises:
        CredentialRefused: malformed, unknown, expired or revoked.
    """
    if is_deployment_key(text, sha256_hex=ports.deployment_key_sha256):
        return await _deployment(ports)
    token = parse_token(text)
    if token is None or token.kind is TokenKind.INVITATION:
        raise CredentialRefused
    if token.kind is TokenKind.SESSION:
        async with ports.callers.connection() as connection:
            return await _person(connection, token, ports)
    return await _key(token, ports)


async def _deployment(ports: Ports) -> Caller:
    async with ports.callers.connection() as connection:
        pseudonym = await ensure_pseudonym(connection, DEPLOYMENT_SUBJECT, now=ports.clock.now())
    return Caller(CallerKind.DEPLOYMENT, DEPLOYMENT_SUBJECT, pseudonym, _EVERYTHING)


async def _person(connection: Connection, token: Token, ports: Ports) -> Caller:
    found = await load_session_caller(connection, token.token_id, now=ports.clock.now())
    if found is None or not token.fits(found.secret_sha256):
        raise CredentialRefused
    signed_in = SignedIn(found.person_id, token.token_id, found.is_app_admin, found.belongings)
    return Caller(
        CallerKind.PERSON,
        f"person:{found.person_id}",
        found.pseudonym,
        {},
        signed_in=signed_in,
    )


async def _key(token: Token, ports: Ports) -> Caller:
    found = await ports.keys.find(token.token_id)
    if found is None or not token.fits(found.secret_sha256):
        raise CredentialRefused
    return Caller(
        CallerKind.KEY,
        f"key:{token.token_id}",
        found.pseudonym,
        _held_by(found),
        org=found.org,
        publisher=_publisher(found),
        speaks_for=found.created_by_user_id,
    )


def key_lookup(callers: Lookups, clock: Clock) -> Together[str, KeyCaller]:
    """Look up who is behind keys: each as it is when it is asked for, or later."""

    async def find(key_ids: Collection[str]) -> Mapping[str, KeyCaller]:
        async with callers.connection() as connection:
            return await load_callers(connection, key_ids, now=clock.now())

    return Together(find)


def _held_by(found: KeyCaller) -> Held:
    """What a key holds now: never more than the member whom it speaks for."""
    held = held_by_key(found.permissions)
    if found.created_by_user_id is None:
        return held
    if found.creator_role is None:
        raise CredentialRefused
    return narrowed(held, found.creator_role)


def _publisher(found: KeyCaller) -> Publisher | None:
    if found.channel_id is None:
        return None
    rights = frozenset(ChannelRight(right) for right in found.channel_rights)
    return Publisher(found.org, found.channel_id, rights)
