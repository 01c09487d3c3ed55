"""Changes of channel users share reloads, and an answer means that the server agrees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contracts.errors import Retryable
from services.host.bootstrap.channel_users import ChannelUsers
from services.host.bootstrap.credentials import BusUsers
from services.host.bootstrap.keys import public_key
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

    async def probe(self, *, user: str, nkey_seed: str) -> bool:
        return not self.is_deaf and self.taken.get(user) == public_key(nkey_seed)


@pytest.fixture
def users(tmp_path: Path) -> BusUsers:
    record = BusUsers(tmp_path)
    record.keep()
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
    seeds = await asyncio.gather(first, *others)
    # The organization's account is new with the first of them, which takes two.
    assert server.reloads == 3
    assert server.taken == {f"acme.c{n}": public_key(seed) for n, seed in enumerate(seeds)}


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
    assert public_key(await patient) == server.taken["acme.c2"]
    assert await channels.revoke("acme", "c1") is True


async def test_tells_whoever_was_overtaken(channels: ChannelUsers, server: Server) -> None:
    answers = await asyncio.gather(
        channels.issue("acme", "c1"), channels.issue("acme", "c1"), return_exceptions=True
    )
    assert isinstance(answers[0], Retryable)
    assert answers[0].reason == "overtaken"
    assert server.taken == {"acme.c1": public_key(str(answers[1]))}


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
    assert users.channels() == {"acme.c1": public_key(kept)} == server.taken


async def test_never_answers_with_a_key_that_does_not_work(
    channels: ChannelUsers, server: Server
) -> None:
    server.is_deaf = True
    with pytest.raises(Retryable) as refused:
        await channels.issue("acme", "c1")
    assert refused.value.reason == "credential_not_taken"
    server.is_deaf = False
    assert public_key(await channels.issue("acme", "c1")) == server.taken["acme.c1"]


async def test_says_whether_there_was_one(channels: ChannelUsers, server: Server) -> None:
    assert await channels.revoke("acme", "c1") is False
    await channels.issue("acme", "c1")
    assert await channels.revoke("acme", "c1") is True
    assert server.taken == {}


async def test_reloads_twice_for_a_new_organization_only(
    channels: ChannelUsers, server: Server
) -> None:
    """Pitfall 2: what a new account imports is dead after the reload that introduces it."""
    await channels.issue("acme", "c1")
    assert server.reloads == 2
    await channels.issue("acme", "c2")
    assert server.reloads == 3
    await channels.issue("other", "c1")
    assert server.reloads == 5
    await channels.agree()
    assert server.reloads == 7


async def test_reloads_again_while_a_new_user_does_not_get_through(
    channels: ChannelUsers, server: Server
) -> None:
    await channels.issue("acme", "c1")
    reload = server.reload

    async def hear_at_the_second() -> None:
        await reload()
        server.is_deaf = server.reloads < 4

    server.reload = hear_at_the_second  # type: ignore[method-assign]
    assert public_key(await channels.issue("acme", "c2")) == server.taken["acme.c2"]
    assert server.reloads == 4


async def test_a_seed_is_written_nowhere(channels: ChannelUsers, tmp_path: Path) -> None:
    seed = await channels.issue("acme", "c1")
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert seed not in written
    assert public_key(seed) in written
