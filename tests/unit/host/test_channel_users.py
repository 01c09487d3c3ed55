"""Changes of channel users share reloads, and an answer means that the server agrees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contracts.catalog import ROOMS
from contracts.errors import Retryable
from services.host.bootstrap.channel_users import ChannelUsers
from services.host.bootstrap.credentials import BusUsers
from services.host.bootstrap.nats_config import BusLogins
from services.host.errors import NatsConfigRefused


class Server:
    """Takes the record at each reload, as nats-server does, when the test opens the gate."""

    def __init__(self, users: BusUsers) -> None:
        self.users = users
        self.taken: dict[str, str] = {}
        self.reloads = 0
        self.refuses = False
        self.is_deaf = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def reload(self) -> None:
        self.reloads += 1
        found = self.users.channels()
        await self.gate.wait()
        if self.refuses:
            raise NatsConfigRefused("it is broken")
        self.taken = found

    async def probe(self, *, user: str, password: str) -> bool:
        return not self.is_deaf and self.taken.get(user) == password


@pytest.fixture
def users(tmp_path: Path) -> BusUsers:
    record = BusUsers(tmp_path)
    record.keep(BusLogins("pb", "ps", {room: f"p{room}" for room in ROOMS}))
    return record


@pytest.fixture
async def server(users: BusUsers) -> Server:
    return Server(users)


@pytest.fixture
def channels(users: BusUsers, server: Server) -> ChannelUsers:
    return ChannelUsers(users, server, server.probe)


async def test_shares_one_reload_among_those_who_wait(
    channels: ChannelUsers, server: Server
) -> None:
    server.gate.clear()
    first = asyncio.create_task(channels.issue("acme", "c0"))
    while server.reloads == 0:
        await asyncio.sleep(0)
    others = [asyncio.create_task(channels.issue("acme", f"c{n}")) for n in range(1, 50)]
    await asyncio.sleep(0)  # Each of them joins the batch that waits.
    server.gate.set()
    passwords = await asyncio.gather(first, *others)
    assert server.reloads == 2
    assert server.taken == {f"acme.c{n}": password for n, password in enumerate(passwords)}


async def test_an_asker_that_gives_up_leaves_the_others_their_reload(
    channels: ChannelUsers, server: Server
) -> None:
    server.gate.clear()
    impatient = asyncio.create_task(channels.issue("acme", "c1"))
    patient = asyncio.create_task(channels.issue("acme", "c2"))
    while server.reloads == 0:
        await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    server.gate.set()
    assert server.taken.get("acme.c2") is None
    assert await patient == server.taken["acme.c2"]
    assert await channels.revoke("acme", "c1") is True


async def test_tells_whoever_was_overtaken(channels: ChannelUsers, server: Server) -> None:
    answers = await asyncio.gather(
        channels.issue("acme", "c1"), channels.issue("acme", "c1"), return_exceptions=True
    )
    assert isinstance(answers[0], Retryable)
    assert answers[0].reason == "overtaken"
    assert server.taken == {"acme.c1": answers[1]}


async def test_puts_the_record_back_when_the_server_refuses(
    channels: ChannelUsers, server: Server, users: BusUsers
) -> None:
    kept = await channels.issue("acme", "c1")
    server.refuses = True
    for change in (channels.issue("acme", "c1"), channels.issue("acme", "c2")):
        with pytest.raises(Retryable, match="keeps its old configuration"):
            await change
    with pytest.raises(Retryable):
        await channels.revoke("acme", "c1")
    assert users.channels() == {"acme.c1": kept} == server.taken


async def test_never_answers_with_a_password_that_does_not_work(
    channels: ChannelUsers, server: Server
) -> None:
    server.is_deaf = True
    with pytest.raises(Retryable) as refused:
        await channels.issue("acme", "c1")
    assert refused.value.reason == "credential_not_taken"
    server.is_deaf = False
    assert await channels.issue("acme", "c1") == server.taken["acme.c1"]


async def test_says_whether_there_was_one(channels: ChannelUsers, server: Server) -> None:
    assert await channels.revoke("acme", "c1") is False
    await channels.issue("acme", "c1")
    assert await channels.revoke("acme", "c1") is True
    assert server.taken == {}
