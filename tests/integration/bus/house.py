"""A bus of its own for tests of isolation: the deployment's users, and one in each account that
has no permissions at all.

The one thing not to break: the bare users stand in the accounts as they are written for a
deployment, so that what they cannot reach is kept from them by the accounts alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from contracts.bootstrap import org_account, room_account
from contracts.catalog import EVENTS, ROOMS, EventType
from services.host.bootstrap.credentials import BusUsers, ServerConfig
from services.host.bootstrap.keys import new_seed, public_key
from services.host.bootstrap.nats_config import (
    ORGANIZATIONS_FILE,
    BusLogins,
    Listen,
    organizations_text,
)
from services.host.bootstrap.rights import JETSTREAM_PREFIX, inbox_prefix
from services.host.bootstrap.streams import Catalogue, prepare_streams
from services.host.embedded.nats import EmbeddedNats
from services.host.embedded.probe import choose_free_port
from shared.bus import PLAIN_PREFIX, BusAddress

CHANNELS = ("acme.c1", "acme.c2", "other.c1")
ACCOUNTS = (
    *(room_account(room) for room in ROOMS),
    *(org_account(org) for org in ("acme", "other")),
    "WITNESS",
)
BARE = "bare"
ANSWER_S_MAX = 10.0


def account_of(user: str) -> str:
    """The account that a user stands in; a bare one is named `bare:<account>`."""
    if user.startswith(BARE):
        return user.partition(":")[2]
    if "." in user:
        return org_account(user.partition(".")[0])
    return {"bootstrap": "BUS", "witness": "WITNESS"}.get(user) or room_account(user)


@dataclass
class User:
    """One logged-in user and what the server told it."""

    name: str
    client: Client
    errors: list[str] = field(default_factory=list)

    @property
    def account(self) -> str:
        return account_of(self.name)

    async def settle(self) -> None:
        """Return when the server has handled all that was written before."""
        # nats-py sends the ping of a flush before what was written earlier: the second one counts.
        await self.client.flush()
        await self.client.flush()

    async def may_publish(self, subject: str, *, reply: str = "") -> bool:
        """Publish and tell whether the server let it: its complaint comes before its pong."""
        self.errors.clear()
        await self.client.publish(subject, self.name.encode(), reply=reply)
        return not await self._was_forbidden()

    async def may_hear(self, subject: str, queue: str = "") -> bool:
        """Subscribe and tell the same."""
        self.errors.clear()
        subscription = await self.client.subscribe(subject, queue=queue)
        if await self._was_forbidden():
            return False
        await subscription.unsubscribe()
        return True

    async def _was_forbidden(self) -> bool:
        await self.settle()
        assert all("permissions violation" in error.lower() for error in self.errors), self.errors
        return bool(self.errors)


class House:
    """One nats-server with the accounts of a deployment, its users, and a bare one in each."""

    def __init__(
        self,
        folder: Path,
        *,
        events: Sequence[EventType] = EVENTS,
        catalogue: Catalogue | None = None,
    ) -> None:
        """Lay it out; `start` runs it."""
        self.home = folder / "nats"
        self.catalogue = catalogue or Catalogue()
        self._events = events
        seeds = {user: new_seed() for user in ("bootstrap", "sys", "witness", *ROOMS, *CHANNELS)}
        self.seeds = seeds | {f"{BARE}:{account}": new_seed() for account in ACCOUNTS}
        logins = BusLogins(
            seeds["bootstrap"],
            seeds["sys"],
            seeds["witness"],
            {room: seeds[room] for room in ROOMS},
        )
        port, http_port = choose_free_port(), choose_free_port()
        self._written = ServerConfig(Listen(port=port, http_port=http_port), logins)
        self.server = EmbeddedNats(
            self.home,
            port=port,
            http_port=http_port,
            write_config=self._write,
            log_path=folder / "nats.log",
        )
        self._open: list[Client] = []

    async def start(self) -> None:
        """Start the server and make its streams."""
        await self.server.start()
        await prepare_streams(await self.administrator(), self.catalogue)

    async def stop(self) -> None:
        """Close every connection and end the server."""
        for client in self._open:
            await client.close()
        await self.server.stop()

    async def administrator(self) -> JetStreamContext:
        """JetStream as the bootstrap process has it."""
        return JetStreamContext((await self.log_in("bootstrap")).client)

    async def log_in(self, name: str) -> User:
        """Sign in as a user of the deployment, or as `bare:<account>`; closed with the house."""
        told: list[str] = []

        async def on_error(error: Exception) -> None:
            told.append(str(error))

        client = await nats.connect(
            self.server.url,
            nkeys_seed_str=self.seeds[name],
            inbox_prefix=inbox_prefix(name.replace(":", "_")).encode(),
            allow_reconnect=False,
            error_cb=on_error,
        )
        self._open.append(client)
        return User(name, client, told)

    def address(self, room: str) -> BusAddress:
        """How a room, or the bootstrap process, connects."""
        prefix = PLAIN_PREFIX if room == "bootstrap" else JETSTREAM_PREFIX
        return BusAddress(
            url=self.server.url, name=room, nkey_seed=self.seeds[room], js_prefix=prefix
        )

    async def everything(self) -> dict[str, object]:
        """Streams and durables with configuration and state: what no attack may change."""
        jetstream = await self.administrator()
        found: dict[str, object] = {}
        for stream in await jetstream.streams_info():
            found[str(stream.config.name)] = (stream.config, stream.state.messages)
            for consumer in await jetstream.consumers_info(str(stream.config.name)):
                where = f"{stream.config.name}/{consumer.name}"
                found[where] = (consumer.config, consumer.ack_floor, consumer.num_ack_pending)
        return found

    def _write(self, home: Path) -> Path:
        path = self._written(home)
        keys = {user: public_key(self.seeds[user]) for user in CHANNELS}
        BusUsers(home).change_channels(keys)
        for file, text in (
            (path, path.read_text()),
            (home / ORGANIZATIONS_FILE, organizations_text(keys, self._events)),
        ):
            file.write_text(self._with_bare_users(text))
        return path

    def _with_bare_users(self, text: str) -> str:
        for account in ACCOUNTS:
            head, found, tail = text.partition(f'"{account}": {{')
            if found:
                bare = f'{{"nkey": "{public_key(self.seeds[f"{BARE}:{account}"])}"}}'
                tail = tail.replace('"users": [\n', f'"users": [\n    {bare}\n', 1)
            text = head + found + tail
        return text


class Watch:
    """Whatever reaches an account from another one."""

    def __init__(self, house: House) -> None:
        """Watch every account of the house."""
        self._house = house
        self._watchers: list[User] = []
        self.arrived: set[tuple[str, str]] = set()
        """(sender, subject) of every message that left the account it was published in."""

    async def begin(self) -> None:
        """Subscribe to everything, everywhere; streams' and inboxes' own traffic is left out."""
        for name in ("bootstrap", *(f"{BARE}:{account}" for account in ACCOUNTS)):
            user = await self._house.log_in(name)
            await user.client.subscribe(">", cb=self._note(user.account))
            await user.settle()
            self._watchers.append(user)

    def _note(self, account: str):
        async def note(message: Msg) -> None:
            if "Nats-Stream" in (message.headers or {}):
                # A copy that the stream itself makes: `test_hearing.py`.
                return
            sender = message.data.decode(errors="replace")
            if sender in self._house.seeds and account_of(sender) != account:
                self.arrived.add((sender, message.subject))

        return note

    async def end(self) -> set[tuple[str, str]]:
        """Return what has arrived when everything that was written has been handled."""
        for user in self._watchers:
            await user.settle()
        await asyncio.sleep(0)
        return self.arrived
