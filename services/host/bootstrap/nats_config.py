"""The text of nats-server's configuration: a fixed part, and the organizations that it includes.

The one thing not to break: both texts are functions of their arguments alone, so that the server
can be configured again at any moment from what is recorded; and neither holds a secret.

Source: dependencies.md 1.4 and 10 (layout that ran); design.md 2 for the limits.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from contracts.catalog import EVENTS, ROOMS, EventType
from services.host.bootstrap.accounts import (
    SYSTEM,
    Account,
    as_configuration,
    bus_account,
    org_account_of,
    room_account_of,
    system_account,
    witness_account,
)
from services.host.bootstrap.keys import public_key
from services.host.bootstrap.rights import BOOTSTRAP

BOOTSTRAP_USER: Final = BOOTSTRAP
SYSTEM_USER: Final = "sys"
WITNESS_USER: Final = "witness"
FILE_STORE_MAX: Final = "8GB"
"""More than the sum of the catalogue's file streams, so that each can reach its own limit."""
MEMORY_STORE_MAX: Final = "128MB"
SYNC_INTERVAL: Final = "2s"
"""What the server acknowledged may be lost for so long by a power cut (design.md 2)."""
PAYLOAD_MAX: Final = "1MB"
ORGANIZATIONS_FILE: Final = "organizations.conf"
STORE_FOLDER: Final = "jetstream"


@dataclass(frozen=True, slots=True)
class BusLogins:
    """Seeds of the users that the deployment itself has."""

    bootstrap: str = field(repr=False)
    system: str = field(repr=False)
    witness: str = field(repr=False)
    rooms: Mapping[str, str] = field(repr=False)
    """Room to seed; one for each room of the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where the server listens. 127.0.0.1 unless a deployment says otherwise."""

    port: int
    http_port: int
    host: str = "127.0.0.1"


def server_text(listen: Listen, logins: BusLogins, *, store: Path) -> str:
    """Write the fixed part; it includes `organizations.conf`, relative to its own folder.

    Errors: ValueError when a room has no seed.
    """
    if missing := sorted(set(ROOMS) - set(logins.rooms)):
        raise ValueError(f"no bus key for {', '.join(missing)}")
    accounts = (
        bus_account(public_key(logins.bootstrap)),
        witness_account(public_key(logins.witness)),
        system_account(public_key(logins.system)),
        *(room_account_of(room, public_key(logins.rooms[room])) for room in ROOMS),
    )
    return f"""\
# Written by Rienda at every start of the server; changes are overwritten.
server_name: rienda
host: {_quote(listen.host)}
port: {listen.port}
http: {_quote(f"{listen.host}:{listen.http_port}")}
max_payload: {PAYLOAD_MAX}
jetstream {{
  store_dir: {_quote(str(store))}
  max_file: {FILE_STORE_MAX}
  max_mem: {MEMORY_STORE_MAX}
  sync_interval: "{SYNC_INTERVAL}"
}}
accounts {{
{_accounts_text(accounts)}
include "{ORGANIZATIONS_FILE}"
}}
system_account: {SYSTEM}
"""


def organizations_text(
    channels: Mapping[str, str],
    events: Sequence[EventType] = EVENTS,
    *,
    paused: Collection[str] = (),
) -> str:
    """Write the account of every organization that has a channel.

    `channels` maps `<org>.<channel>` to its public key, or to its password where it was made before
    there were keys. Of `paused` ones the account stays and the user is left out.

    Errors: ValueError when a channel's name is malformed.
    """
    by_org: dict[str, dict[str, str]] = {}
    for name, key in channels.items():
        org, _, channel_id = name.partition(".")
        users = by_org.setdefault(org, {})
        if name not in paused:
            users[channel_id] = key
    accounts = [org_account_of(org, by_org[org], events) for org in sorted(by_org)]
    return f"# One account for each organization with channels.\n{_accounts_text(accounts)}\n"


def _accounts_text(accounts: Sequence[Account]) -> str:
    """One line for each list of an account; the server reads JSON as its own language."""
    return "\n".join(
        f"{_quote(account.name)}: {_block(as_configuration(account))}" for account in accounts
    )


def _block(settings: Mapping[str, Any]) -> str:
    lines = [f"  {_quote(name)}: {_value(value)}" for name, value in settings.items()]
    return "{\n" + "\n".join(lines) + "\n}"


def _value(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return (
        "[\n" + "\n".join(f"    {json.dumps(one, ensure_ascii=False)}" for one in value) + "\n  ]"
    )


def _quote(value: str) -> str:
    """Quote as nats-server reads it: JSON's escapes, without the ones it does not know.

    Errors: ValueError for control characters and the like.
    """
    if not value.isprintable():
        raise ValueError("a configuration value holds a character that cannot be written")
    return json.dumps(value, ensure_ascii=False)
