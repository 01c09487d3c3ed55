"""The text of nats-server's configuration: a fixed part, and the users that it includes.

The one thing not to break: both texts are functions of their arguments alone, so that the server
can be configured again at any moment from what is recorded.

Source: dependencies.md 1.4 and 10 (layout that ran); design.md 2 for the limits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.catalog import ROOMS
from services.host.bootstrap.rights import Rights, channel_rights, room_rights

ACCOUNT: Final = "RIENDA"
SYSTEM_ACCOUNT: Final = "SYS"
BOOTSTRAP_USER: Final = "bootstrap"
SYSTEM_USER: Final = "sys"
FILE_STORE_MAX: Final = "8GB"
"""More than the sum of the catalogue's file streams, so that each can reach its own limit."""
MEMORY_STORE_MAX: Final = "128MB"
SYNC_INTERVAL: Final = "2s"
"""What the server acknowledged may be lost for so long by a power cut (design.md 2)."""
PAYLOAD_MAX: Final = "1MB"
USERS_FILE: Final = "users.conf"
STORE_FOLDER: Final = "jetstream"


@dataclass(frozen=True, slots=True)
class BusLogins:
    """Passwords of the users that the deployment itself has; texts of a letter and hex digits."""

    bootstrap: str
    system: str
    rooms: Mapping[str, str]
    """Room to password; one for each room of the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where the server listens. 127.0.0.1 unless a deployment says otherwise."""

    port: int
    http_port: int
    host: str = "127.0.0.1"


def server_text(listen: Listen, *, store: Path, system_password: str) -> str:
    """Write the fixed part; it includes `users.conf`, relative to its own folder."""
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
  {ACCOUNT} {{
    jetstream: enabled
    include "{USERS_FILE}"
  }}
  {SYSTEM_ACCOUNT} {{
    users: [ {{ user: {SYSTEM_USER}, password: {_quote(system_password)} }} ]
  }}
}}
system_account: {SYSTEM_ACCOUNT}
"""


def users_text(logins: BusLogins, channels: Mapping[str, str]) -> str:
    """Write the users of the account: bootstrap, every room, every channel.

    `channels` maps `<org>.<channel>` to its password. The whole list is one file because the
    configuration language takes an `include` in a map, not in a list.

    Errors: ValueError when a room has no password or a channel's name is malformed.
    """
    if missing := sorted(set(ROOMS) - set(logins.rooms)):
        raise ValueError(f"no bus password for {', '.join(missing)}")
    lines = [f"  {{ user: {BOOTSTRAP_USER}, password: {_quote(logins.bootstrap)} }}"]
    lines += [_user(room, logins.rooms[room], room_rights(room)) for room in ROOMS]
    for name, password in sorted(channels.items()):
        org, _, channel_id = name.partition(".")
        lines.append(_user(name, password, channel_rights(org, channel_id)))
    return "users: [\n" + "\n".join(lines) + "\n]\n"


def _user(name: str, password: str, rights: Rights) -> str:
    return (
        f"  {{ user: {_quote(name)}, password: {_quote(password)}, permissions: {{\n"
        f"      publish: {{ allow: {json.dumps(rights.publish)} }}\n"
        f"      subscribe: {{ allow: {json.dumps(rights.subscribe)} }} }} }}"
    )


def _quote(value: str) -> str:
    """Quote as nats-server reads it: JSON's escapes, without the ones it does not know.

    Errors: ValueError for control characters and the like.
    """
    if not value.isprintable():
        raise ValueError("a configuration value holds a character that cannot be written")
    return json.dumps(value, ensure_ascii=False)
