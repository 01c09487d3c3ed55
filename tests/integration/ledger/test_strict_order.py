"""Every order, repetition and cut of the same reports closes the same holds on the same books."""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.errors import NotFound
from contracts.holds import VoidHold
from contracts.subjects import Asked
from contracts.types import CapMode
from shared.questions import Question
from tests.admission_checker import Checker
from tests.factories import Feed, agent, channel, organization, started
from tests.integration.ledger.asking import USD, ask, paid
from tests.integration.ledger.reconciling import assert_rebuilding_agrees
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ORGS = itertools.count(1)
CENT = USD // 100


@pytest.fixture(scope="module")
async def room(servers):
    database = await servers.new_database("ledger")
    room = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    yield room
    await room.close()
    await servers.drop_database(database)


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(("held", "voided", "unasked")),
        st.integers(1, 40),
        st.lists(st.integers(0, 120), min_size=1, max_size=3),
        st.sampled_from(("r1", "r2")),
    ),
    min_size=1,
    max_size=6,
)
"""What became of the question, cents that were stated, cents that were reported, the run."""


async def play(room: LedgerRoom, requests, chance: random.Random) -> dict[str, list[tuple]]:
    """Ask everything, then hear everything in some order, cut somehow, some of it twice."""
    org, feed = f"strict-{next(ORGS)}", Feed()
    strict = organization(cap_mode=CapMode.STRICT, monthly_budget_nanousd=2 * USD)
    await room.hear(
        [
            feed.directory(strict, org, org=org),
            feed.directory(channel("c1"), "c1", org=org),
            feed.directory(agent("coder", USD), "coder", org=org),
        ]
    )
    events = [feed.channel(started("r1", budget_nanousd=USD // 2), org=org, event_id="s1")]
    events.append(feed.channel(started("r2"), org=org, event_id="s2"))
    for number, (fate, stated, reported, run_id) in enumerate(requests):
        request_id = f"q{number}"
        if fate != "unasked":
            names = {"run_id": run_id, "root_run_id": run_id}
            await room.authorize(ask(request_id, stated * CENT, **names), org=org)
        if fate == "voided":
            await void(room, org, request_id)
        for grown, cents in enumerate(reported):
            said = paid(request_id, f"{cents / 100:.2f}", run_id)
            tokens = said.tokens.model_copy(update={"output": 100 + grown})
            said = said.model_copy(update={"tokens": tokens})
            events.append(feed.channel(said, org=org, event_id=f"{request_id}-{grown}"))
    events += chance.sample(events, k=len(events) // 3)
    chance.shuffle(events)
    await room.hear(events, batch=chance.randint(1, 4))
    await Checker(room.database._dsn).look()
    before = await noted(room, org)
    await room.hear(events, batch=chance.randint(1, 4))
    assert await noted(room, org) == before, "what is said again exceeds nothing anew"
    await room.keeper.keep()
    await Checker(room.database._dsn).look()
    await assert_rebuilding_agrees(room)
    return {
        "months": await room.rows(
            "SELECT scope, scope_id, month, cost_nanousd FROM month_spend WHERE org = $1 "
            "ORDER BY 1, 2, 3",
            org,
        ),
        "holds": await room.rows(
            "SELECT request_id, state, amount_nanousd FROM hold WHERE org = $1 ORDER BY 1", org
        ),
        "held": await room.rows(
            "SELECT scope, scope_id, month, held_nanousd FROM cap_state "
            "WHERE org = $1 AND held_nanousd <> 0 ORDER BY 1, 2, 3",
            org,
        ),
    }


async def void(room: LedgerRoom, org: str, request_id: str) -> None:
    """Its channel says that the request was not sent; a refused one has nothing to let go of."""
    asked = Question(VoidHold(request_id=request_id), Asked(org, "channel", "c1"), None)
    with contextlib.suppress(NotFound):
        await room.desk.answer_void_hold(asked)


async def noted(room: LedgerRoom, org: str) -> list[tuple]:
    rows = await room.rows(
        "SELECT scope, scope_id, sum(amount_nanousd) FROM overrun WHERE org = $1 GROUP BY 1, 2",
        org,
    )
    return sorted(tuple(row) for row in rows)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(requests=REQUESTS, seeds=st.tuples(st.integers(0, 2**16), st.integers(0, 2**16)))
async def test_every_order_closes_the_same_holds(room: LedgerRoom, requests, seeds):
    first, second = [await play(room, requests, random.Random(seed)) for seed in seeds]
    for name, rows in first.items():
        assert [tuple(row)[-3:] for row in rows if row[0] != "organization"] == [
            tuple(row)[-3:] for row in second[name] if row[0] != "organization"
        ], name
    assert first["held"] == []
    assert all(row["state"] != "open" for row in first["holds"])
