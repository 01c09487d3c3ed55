"""Servers of somebody else's: what RIENDA_POSTGRES_URL and RIENDA_NATS_URL say (design.md 11).

The one thing not to break: a login is taken out of an address before the address goes anywhere, so
that no password ends in a log, in `rienda status` or in the answer to a channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from services.host.errors import OutsideUrlUnusable

POSTGRES_VARIABLE: Final = "RIENDA_POSTGRES_URL"
NATS_VARIABLE: Final = "RIENDA_NATS_URL"
_POSTGRES_SCHEMES: Final = frozenset({"postgresql", "postgres"})
_NATS_SCHEMES: Final = frozenset({"nats", "tls"})


@dataclass(frozen=True, slots=True)
class BusLogin:
    """The one user of an outside NATS server; both None where it asks for nobody."""

    user: str | None
    password: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class OutsideNats:
    """An outside NATS server: `url` without login, several separated by commas."""

    url: str
    login: BusLogin


@dataclass(frozen=True, slots=True)
class Outside:
    """What is not embedded; None where the embedded server is used."""

    postgres_url: str | None = field(default=None, repr=False)
    """URL of a login that may make roles and databases."""
    nats: OutsideNats | None = None


def read_outside(environ: Mapping[str, str]) -> Outside:
    """Read both variables; an empty one counts as absent.

    Errors: OutsideUrlUnusable.
    """
    postgres_url = environ.get(POSTGRES_VARIABLE) or None
    if postgres_url is not None:
        _require_postgres(postgres_url)
    nats_url = environ.get(NATS_VARIABLE) or None
    return Outside(postgres_url, _read_nats(nats_url) if nats_url else None)


def _require_postgres(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in _POSTGRES_SCHEMES or not parts.hostname or not parts.username:
        raise OutsideUrlUnusable(
            POSTGRES_VARIABLE, form="postgresql://<login>:<password>@<host>:<port>/<database>"
        )


def _read_nats(text: str) -> OutsideNats:
    login = BusLogin(None, None)
    addresses = []
    for url in text.split(","):
        parts = urlsplit(url.strip())
        # A user without a password would be a token, which the rooms do not know.
        is_token = parts.username is not None and parts.password is None
        if parts.scheme not in _NATS_SCHEMES or not parts.hostname or is_token:
            raise OutsideUrlUnusable(NATS_VARIABLE, form="nats://<user>:<password>@<host>:<port>")
        if parts.username is not None and login.user is None:
            login = BusLogin(unquote(parts.username), unquote(parts.password or ""))
        place = parts.netloc.rpartition("@")[2]
        addresses.append(urlunsplit((parts.scheme, place, "", "", "")))
    return OutsideNats(",".join(addresses), login)
