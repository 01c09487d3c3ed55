"""One organization floods, another goes on: nothing of it is lost, refused or cut.

Latencies are printed and decide nothing; `make bench` measures them on a machine of its own.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys

import nats
import nats.errors
import pytest

from services.host.bootstrap.accounts import ORG_CONNECTIONS_MAX, ORG_PAYLOAD_MAX
from services.host.bootstrap.rights import inbox_prefix
from tests.integration.bus.flooding import (
    SAYS,
    answerer,
    flooder,
    go_on,
    running,
    watcher,
)
from tests.integration.bus.house import ANSWER_S_MAX, House
from tests.waiting import eventually

pytestmark = pytest.mark.integration
ROUNDS = 200
PAUSE_S = 3.0


@pytest.mark.parametrize("at_once", [64, 0], ids=["waits for answers", "waits for nothing"])
async def test_acme_floods_and_other_goes_on(house: House, at_once: int) -> None:
    measured = await house.log_in("other.c1")
    async with running([await answerer(house)]):
        quiet = await go_on(measured, start=0, rounds=ROUNDS)
        async with running([await flooder(house, at_once=at_once)]):
            loud = await go_on(measured, start=ROUNDS, rounds=ROUNDS)
    admin = await house.administrator()
    for org, least in (("other", 2 * ROUNDS), ("acme", 1)):
        subject = SAYS.format(org=org)
        info = await admin.stream_info("CHANNEL", subjects_filter=subject)
        stored = (info.state.subjects or {}).get(subject, 0)
        assert stored >= least
        assert org == "acme" or stored == least
    assert measured.errors == []
    ratio = statistics.median(loud) / statistics.median(quiet)
    sys.stdout.write(f"acme floods: other's median round trip grew {ratio:.1f} times\n")


async def test_who_waits_for_nothing_is_cut_and_comes_back_and_nobody_else_is(
    house: House,
) -> None:
    other, neighbour = [await house.log_in(name) for name in ("other.c1", "acme.c2")]

    async def outcome() -> str:
        try:
            await (await house.log_in("acme.c1")).client.close()
        except nats.errors.Error as error:
            is_refused = "authorization violation" in str(error).lower()
            return "refused" if is_refused else "unclear"
        except OSError:
            # Cut in the middle of signing in: neither.
            return "unclear"
        return "taken"

    async with running([await answerer(house), await watcher(house, pause_s=PAUSE_S)]):
        async with running([await flooder(house, at_once=0)]):
            await eventually(outcome, lambda found: found == "refused")
            await go_on(other, start=0, rounds=ROUNDS)
        await eventually(outcome, lambda found: found == "taken")
        reply = await neighbour.client.request(
            "rienda.event.acme.channel.c2.run_started.v1", b"{}", timeout=ANSWER_S_MAX
        )
        assert json.loads(reply.data)["stream"] == "CHANNEL"
    assert other.errors == neighbour.errors == []


async def test_acmes_connections_are_bounded_and_others_come_in(house: House) -> None:
    for _ in range(ORG_CONNECTIONS_MAX):
        await house.log_in("acme.c1")
    with pytest.raises(nats.errors.Error, match=r"(?i)maximum account active connections"):
        await house.log_in("acme.c2")
    newcomer = await house.log_in("other.c1")
    reply = await newcomer.client.request(SAYS.format(org="other"), b"{}", timeout=ANSWER_S_MAX)
    assert json.loads(reply.data)["stream"] == "CHANNEL"


async def test_a_body_beyond_the_limit_cuts_nobody_but_its_sender(house: House) -> None:
    sender, neighbour = [await house.log_in(name) for name in ("acme.c1", "acme.c2")]
    with contextlib.suppress(nats.errors.Error, OSError):
        await sender.client.publish(SAYS.format(org="acme"), b"x" * (ORG_PAYLOAD_MAX + 1))
        await sender.client.flush()

    async def is_cut() -> bool:
        return sender.client.is_closed

    await eventually(is_cut)
    reply = await neighbour.client.request(
        "rienda.event.acme.channel.c2.run_started.v1", b"{}", timeout=ANSWER_S_MAX
    )
    assert json.loads(reply.data)["stream"] == "CHANNEL"


async def test_the_largest_body_of_the_contract_gets_through_with_its_headers(house: House) -> None:
    client = await nats.connect(
        house.server.url,
        nkeys_seed_str=house.seeds["acme.c1"],
        inbox_prefix=inbox_prefix("acme.c1").encode(),
    )
    body = b"x" * (256 * 1024)
    headers = {"Nats-Msg-Id": "m" * 64}
    reply = await client.request(
        SAYS.format(org="acme"), body, timeout=ANSWER_S_MAX, headers=headers
    )
    assert json.loads(reply.data)["stream"] == "CHANNEL"
    await client.close()
