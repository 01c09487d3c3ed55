"""One organization floods while another goes on, each in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence

from services.host.bootstrap.environment import inherited
from services.host.embedded.probe import choose_free_port, http_get
from tests.integration.bus.house import ANSWER_S_MAX, House, User
from tests.servers import ROOT

SAYS = "rienda.event.{org}.channel.c1.run_started.v1"
ASKS = "rienda.ask.{org}.channel.c1.ledger.authorize"
ANSWER_SOURCE = """
import asyncio, sys, nats, uvloop
async def main():
    url, seed = sys.argv[1:]
    client = await nats.connect(url, nkeys_seed_str=seed, inbox_prefix=b"_INBOX.ledger",
                                pending_size=64 * 1024 * 1024)
    async def answer(message):
        if message.reply:
            await client.publish(message.reply, b"answered " + message.data)
    await client.subscribe("rienda.ask.*.*.*.ledger.*", queue="ledger", cb=answer,
                           pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""
FLOOD_SOURCE = """
import asyncio, sys, nats, uvloop
async def main():
    url, seed, says, asks, at_once = sys.argv[1:]
    # It comes back as soon as it may, however often it is cut.
    client = await nats.connect(url, nkeys_seed_str=seed, inbox_prefix=b"_INBOX.acme.c1",
                                max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    print("ready", flush=True)
    async def wait_for_answers():
        while True:
            for subject, body in ((says, b"x" * 1000), (asks, b"x")):
                try:
                    await client.request(subject, body, timeout=5)
                except nats.errors.Error:
                    pass
    async def wait_for_nothing():
        while True:
            try:
                for _ in range(50):
                    await client.publish(says, b"x" * 1000)
                    await client.publish(asks, b"x", reply="_INBOX.acme.c1.nobody")
                await client.flush()
            except (nats.errors.Error, OSError):
                await asyncio.sleep(0.1)
    if int(at_once):
        await asyncio.gather(*(wait_for_answers() for _ in range(int(at_once))))
    await wait_for_nothing()
uvloop.run(main())
"""


async def _start(source: str, *arguments: str) -> Process:
    # nats-py tells a cut connection at length on standard error.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, *arguments, stdout=PIPE, stderr=DEVNULL, cwd=ROOT
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


@contextlib.asynccontextmanager
async def running(processes: Sequence[Process]) -> AsyncIterator[None]:
    """End processes of this module afterwards."""
    try:
        yield
    finally:
        for process in processes:
            # A flooder that was cut may have ended by itself.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def answerer(house: House) -> Process:
    """Stand in for the ledger."""
    return await _start(ANSWER_SOURCE, house.server.url, house.seeds["ledger"])


async def flooder(house: House, *, at_once: int) -> Process:
    """Say and ask as acme's channel: `at_once` at a time, or with 0 without waiting at all."""
    return await _start(
        FLOOD_SOURCE,
        house.server.url,
        house.seeds["acme.c1"],
        SAYS.format(org="acme"),
        ASKS.format(org="acme"),
        str(at_once),
    )


async def watcher(house: House, *, pause_s: float | None = None) -> Process:
    """The bootstrap process beside it, with its own limit; wait until it watches."""
    port = choose_free_port()
    given = {
        "NATS_URL": house.server.url,
        "NATS_NKEY_SEED": house.seeds["bootstrap"],
        "SYS_NKEY_SEED": house.seeds["sys"],
        "CONFIG_FOLDER": str(house.home),
        "HTTP_PORT": str(port),
    }
    if pause_s is not None:
        given["CHANNEL_PAUSE_S"] = str(pause_s)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.host.bootstrap", "serve"),
        env=inherited(os.environ) | {f"RIENDA_BOOTSTRAP_{k}": v for k, v in given.items()},
        stdout=DEVNULL,
        cwd=ROOT,
    )
    async with asyncio.timeout(ANSWER_S_MAX):
        while (answer := await http_get(f"http://127.0.0.1:{port}/ready")) is None or (
            answer[0] != 200
        ):
            await asyncio.sleep(0.05)
    return process


async def go_on(user: User, *, start: int, rounds: int) -> list[float]:
    """Say and ask one after the other as the other organization; answer each pair's seconds.

    Every answer must come, and be its own.
    """
    took = []
    for number in range(start, start + rounds):
        began = time.perf_counter()
        reply = await user.client.request(
            SAYS.format(org="other"), str(number).encode(), timeout=ANSWER_S_MAX
        )
        assert json.loads(reply.data)["stream"] == "CHANNEL", reply.data
        question = f"q{number}".encode()
        reply = await user.client.request(ASKS.format(org="other"), question, timeout=ANSWER_S_MAX)
        assert reply.data == b"answered " + question
        took.append(time.perf_counter() - began)
    return took
