"""Which accounts the bus has, and the only subjects that cross between them (ADR 0014).

JetStream lives in `BUS`. Every room and every organization has an account without JetStream that
imports exactly what it needs, because inside an account with JetStream a reply subject alone can
delete a stream. The one thing not to break: an organization's imports name that organization, and
event imports end in a wildcard (dependencies.md 10, pitfall 6).

Source: dependencies.md 10 (a layout that ran, with its pitfalls); design.md 2, *Who may do what*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from contracts.bootstrap import org_account, room_account
from contracts.catalog import DURABLES, EVENTS, ROOMS, EventType
from services.host.bootstrap.keys import PUBLIC_LETTER
from services.host.bootstrap.rights import (
    BOOTSTRAP,
    JETSTREAM_PREFIX,
    WITNESSED_ROOMS,
    Rights,
    answers,
    asked_by_channels,
    asked_by_room,
    channel_rights,
    channel_user,
    heard_by_channels,
    probe_subject,
    room_rights,
    room_words,
)

BUS: Final = "BUS"
WITNESS: Final = "WITNESS"
SYSTEM: Final = "SYS"
PULL_ANSWER_S: Final = 15
"""How long a pull's answers find their way. Longer than the longest pull (`shared.pull`), and no
longer than needed: each open pull keeps a mapping for this time, and with the server's default of
2 min they grew to 1.3 GiB (dependencies.md 10, pitfall 7)."""
ANSWER_S: Final = 65
"""The same for one answer: above the longest deadline of a question (60 s)."""
WITNESS_STORE_MAX: Final = 256 * 1024 * 1024
ORG_CONNECTIONS_MAX: Final = 100
"""Of all channels of one organization together: a flood of connections stays its own."""
ORG_SUBSCRIPTIONS_MAX: Final = 1_000
ORG_PAYLOAD_MAX: Final = 320 * 1024
"""Bytes, headers included. Above the contract's 256 KiB of body, so that a body that is a little
too large is refused with a reason instead of a cut connection."""
WITNESS_WORDS: Final = "rienda.witness.*"


@dataclass(frozen=True, slots=True)
class Export:
    """One subject that other accounts may import; `accounts` empty: any, if configured so."""

    kind: Literal["service", "stream"]
    subject: str
    accounts: tuple[str, ...] = ()
    answer_s: int | None = None
    has_many_answers: bool = False


@dataclass(frozen=True, slots=True)
class Import:
    """One subject of another account; `to` is its name here, if it differs."""

    kind: Literal["service", "stream"]
    account: str
    subject: str
    to: str | None = None


@dataclass(frozen=True, slots=True)
class User:
    """One who signs in; `rights` None: everything in the account."""

    name: str
    key: str = field(repr=False)
    """Public key; of a channel from before keys, its password."""
    rights: Rights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account of the server."""

    name: str
    users: tuple[User, ...]
    exports: tuple[Export, ...] = ()
    imports: tuple[Import, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings in the words of nats-server."""


def bus_account(bootstrap_key: str) -> Account:
    """Where every stream lives; only the bootstrap process signs in."""
    exports = [
        Export("service", "rienda.event.>", answer_s=ANSWER_S),
        Export("service", "rienda.pulse.>", answer_s=ANSWER_S),
        Export("service", "rienda.dead.>", answer_s=ANSWER_S),
        Export("service", probe_subject("*"), answer_s=ANSWER_S),
        Export("stream", "rienda.heard.>"),
    ]
    for room in ROOMS:
        asked, asker = asked_by_room(room)[BOOTSTRAP], (room_account(room),)
        exports.append(Export("service", asked, asker, answer_s=ANSWER_S))
    for spec in DURABLES:
        where, reader = f"{spec.stream}.{spec.durable}", (room_account(spec.room),)
        exports += [
            Export("service", f"$JS.API.CONSUMER.INFO.{where}", reader, answer_s=ANSWER_S),
            Export(
                "service",
                f"$JS.API.CONSUMER.MSG.NEXT.{where}",
                reader,
                answer_s=PULL_ANSWER_S,
                has_many_answers=True,
            ),
            Export("service", f"$JS.ACK.{where}.>", reader, answer_s=ANSWER_S),
        ]
    return Account(
        name=BUS,
        users=(User(BOOTSTRAP, bootstrap_key),),
        exports=tuple(exports),
        settings={"jetstream": "enabled"},
    )


def witness_account(witness_key: str) -> Account:
    """The stream of audit heads, which no other account's administrator can touch (design.md 9)."""
    return Account(
        name=WITNESS,
        users=(User("witness", witness_key),),
        exports=(Export("service", WITNESS_WORDS, answer_s=ANSWER_S),),
        settings={"jetstream": {"max_file": WITNESS_STORE_MAX, "max_mem": 0}},
    )


def system_account(system_key: str) -> Account:
    """The server's own; the bootstrap process reloads through it."""
    return Account(name=SYSTEM, users=(User("sys", system_key),))


def room_account_of(room: str, key: str) -> Account:
    """A room: its words, its durables, the rooms that it asks, and the questions it answers."""
    imports = [Import("service", BUS, subject) for subject in room_words(room)]
    for spec in DURABLES:
        if spec.room == room:
            where = f"{spec.stream}.{spec.durable}"
            imports += [
                *(
                    Import("service", BUS, f"$JS.API.{call}", f"{JETSTREAM_PREFIX}.{call}")
                    for call in (f"CONSUMER.INFO.{where}", f"CONSUMER.MSG.NEXT.{where}")
                ),
                Import("service", BUS, f"$JS.ACK.{where}.>"),
            ]
    for other, subject in asked_by_room(room).items():
        answering = BUS if other == BOOTSTRAP else room_account(other)
        imports.append(Import("service", answering, subject))
    if room in WITNESSED_ROOMS:
        imports.append(Import("service", WITNESS, f"rienda.witness.{room}"))
    asked = Export("service", f"rienda.ask.*.*.*.{room}.*", answer_s=ANSWER_S)
    return Account(
        name=room_account(room),
        users=(User(room, key, room_rights(room)),),
        exports=(asked,) if answers(room) else (),
        imports=tuple(imports),
    )


def org_account_of(
    org: str, channels: Mapping[str, str], events: Sequence[EventType] = EVENTS
) -> Account:
    """An organization; `channels` maps the id of each to its public key.

    Errors: ValueError for names that are no subject tokens.
    """
    spoken = (f"rienda.event.{org}.channel.>", f"rienda.pulse.{org}.channel.>", probe_subject(org))
    imports = [Import("service", BUS, subject) for subject in spoken]
    imports += [
        Import("service", room_account(subject.split(".")[-2]), subject)
        for subject in asked_by_channels(org, "*")
    ]
    imports += [
        Import("stream", BUS, subject.replace("rienda.event.", "rienda.heard.", 1), subject)
        for subject in heard_by_channels(org, events)
    ]
    return Account(
        name=org_account(org),
        users=tuple(
            User(channel_user(org, channel_id), key, channel_rights(org, channel_id, events))
            for channel_id, key in sorted(channels.items())
        ),
        imports=tuple(imports),
        settings={
            "limits": {
                "max_connections": ORG_CONNECTIONS_MAX,
                "max_subscriptions": ORG_SUBSCRIPTIONS_MAX,
                "max_payload": ORG_PAYLOAD_MAX,
            }
        },
    )


def as_configuration(account: Account) -> dict[str, Any]:
    """An account as nats-server reads it."""
    written: dict[str, Any] = {
        **account.settings,
        "users": [_user(user) for user in account.users],
    }
    if account.exports:
        written["exports"] = [_export(one) for one in account.exports]
    if account.imports:
        written["imports"] = [_import(one) for one in account.imports]
    return written


def _user(user: User) -> dict[str, Any]:
    if user.key.startswith(PUBLIC_LETTER):
        written: dict[str, Any] = {"nkey": user.key}
    else:
        written = {"user": user.name, "password": user.key}
    if user.rights is not None:
        written["permissions"] = {
            "publish": {"allow": list(user.rights.publish)},
            "subscribe": {"allow": list(user.rights.subscribe)},
        }
    return written


def _export(export: Export) -> dict[str, Any]:
    written: dict[str, Any] = {export.kind: export.subject}
    if export.accounts:
        written["accounts"] = list(export.accounts)
    if export.has_many_answers:
        written["response_type"] = "Stream"
    if export.answer_s is not None:
        written["threshold"] = f"{export.answer_s}s"
    return written


def _import(one: Import) -> dict[str, Any]:
    written: dict[str, Any] = {one.kind: {"account": one.account, "subject": one.subject}}
    if one.to is not None:
        written["to"] = one.to
    return written
