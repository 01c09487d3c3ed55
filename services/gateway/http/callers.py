"""Who calls: the credential of a request, and the caller that it stands for.

The one thing not to break: a caller is made from the credential alone. Nothing that the request
says about organization, channel or permissions gets in here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from litestar.connection import ASGIConnection
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult

from contracts.envelope import Actor
from contracts.types import ChannelRight
from services.gateway.domain.events import Publisher
from services.gateway.domain.keys import ApiKey, is_deployment_key, parse_api_key
from services.gateway.domain.permissions import CATALOGUE
from services.gateway.errors import ChannelKeyNeeded, CredentialRefused
from services.gateway.http.ports import Ports
from services.gateway.store.acts import ensure_pseudonym
from services.gateway.store.api_keys import load_caller

DEPLOYMENT_SUBJECT: Final = "deployment"
SCHEME: Final = "bearer"


@dataclass(frozen=True, slots=True)
class Caller:
    """An API key or the deployment key, checked."""

    subject: str
    """`key:<id>` or `deployment`; names the caller inside the gateway only."""
    pseudonym: str
    """Names the caller everywhere else (design.md 9)."""
    permissions: frozenset[str]
    org: str | None
    """The key's organization; None for the deployment key."""
    publisher: Publisher | None = None
    """The channel that the key belongs to."""

    @property
    def is_deployment(self) -> bool:
        """Whether the deployment key was presented."""
        return self.org is None

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


class Authentication(AbstractAuthenticationMiddleware):
    """Turns the bearer token into a `Caller`; routes marked public are left alone."""

    async def authenticate_request(
        self, connection: ASGIConnection[Any, Any, Any, Any]
    ) -> AuthenticationResult:
        """Check the credential.

        Raises:
            CredentialRefused: none, malformed, unknown, expired or revoked.
        """
        ports: Ports = connection.app.state.ports
        caller = await _caller_of(_bearer(connection), ports)
        return AuthenticationResult(user=caller, auth=None)


def _bearer(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    given = connection.headers.getall("authorization", [])
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != SCHEME:
        raise CredentialRefused
    return token.strip()


async def _caller_of(token: str, ports: Ports) -> Caller:
    if is_deployment_key(token, sha256_hex=ports.deployment_key_sha256):
        return await _deployment(ports)
    key = parse_api_key(token)
    if key is None:
        raise CredentialRefused
    return await _key_caller(key, ports)


async def _deployment(ports: Ports) -> Caller:
    pool = await ports.database.pool()
    async with pool.acquire() as connection:
        pseudonym = await ensure_pseudonym(connection, DEPLOYMENT_SUBJECT, now=ports.clock.now())
    return Caller(DEPLOYMENT_SUBJECT, pseudonym, CATALOGUE, org=None)


async def _key_caller(key: ApiKey, ports: Ports) -> Caller:
    pool = await ports.database.pool()
    async with pool.acquire() as connection:
        found = await load_caller(connection, key.key_id, now=ports.clock.now())
    if found is None or not key.fits(found.secret_sha256):
        raise CredentialRefused
    publisher = None
    if found.channel_id is not None:
        rights = frozenset(ChannelRight(right) for right in found.channel_rights)
        publisher = Publisher(found.org, found.channel_id, rights)
    return Caller(
        f"key:{key.key_id}",
        found.pseudonym,
        frozenset(found.permissions),
        org=found.org,
        publisher=publisher,
    )
