"""Whatever is done in whatever order, no strict cap is passed and no hold is left behind.

The rules' own machine is `tests/unit/ledger/test_holds.py`; here the same is played on the real
tables, with switches of modes, kinds of caps and reports that nobody asked for, and after every
step somebody from outside adds everything up.
"""

from __future__ import annotations

import contextlib
import itertools
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.errors import AlreadyExists, NotFound
from contracts.holds import VoidHold
from contracts.subjects import Asked
from contracts.types import CapMode, Surface
from services.ledger.domain.holds import GRACE
from shared.questions import Question
from tests.admission_checker import Checker
from tests.factories import NOON, Feed, agent, channel, finished, minutes, organization, started
from tests.integration.ledger.asking import USD, ask, handle_until, paid
from tests.integration.ledger.reconciling import assert_rebuilding_agrees
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ORGS = itertools.count(1)
CENT = USD // 100
RUNS = ("r1", "r2", "r3")
SURFACES = {"r2": Surface.PROACTIVE, "r3": Surface.PROACTIVE}
"""What these two runs do is one person's proactive work."""
CENTS = st.integers(1, 60)
STEP = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(RUNS), CENTS),
    st.tuples(st.just("report"), st.integers(0, 9), st.integers(0, 90)),
    st.tuples(st.just("unasked"), st.sampled_from(RUNS), CENTS),
    st.tuples(st.just("void"), st.integers(0, 9), st.none()),
    st.tuples(st.just("set_caps"), CENTS, CENTS),
    st.tuples(st.just("set_mode"), st.sampled_from(list(CapMode)), st.none()),
    st.tuples(st.just("start"), st.sampled_from(RUNS), st.one_of(st.none(), CENTS)),
    st.tuples(st.just("end"), st.sampled_from(RUNS), st.none()),
    st.tuples(st.just("expire"), st.none(), st.none()),
)


@pytest.fixture(scope="module")
async def room(servers):
    database = await servers.new_database("ledger")
    room = LedgerRoom(database.url("ledger"), database.owner_url("ledger"))
    yield room
    await room.close()
    await servers.drop_database(database)


class Machine:
    """One organization with a cap of its own and one of its agent, and what was asked in it."""

    def __init__(self, room: LedgerRoom) -> None:
        self.room = room
        self.org = f"machine-{next(ORGS)}"
        self.feed = Feed()
        self.revision = 0
        self.caps = (100, 60)
        self.mode = CapMode.STRICT
        self.asked: list[tuple[str, str]] = []
        self.numbers = itertools.count(1)

    async def begin(self) -> None:
        self.room.clock.at = NOON + minutes(30)
        await self.room.hear([self.feed.directory(channel("c1"), "c1", org=self.org)])
        await self._direct()

    async def _direct(self) -> None:
        self.revision += 1
        org_cents, agent_cents = self.caps
        revisions = {"entity_revision": self.revision, "cap_revision": self.revision}
        own = organization(
            cap_mode=self.mode,
            monthly_budget_nanousd=org_cents * CENT,
            proactive_limit_nanousd=agent_cents * CENT // 2,
            **revisions,
        )
        of_agent = agent("coder", agent_cents * CENT, **revisions)
        await self.room.hear(
            [
                self.feed.directory(own, self.org, org=self.org),
                self.feed.directory(of_agent, "coder", org=self.org),
            ]
        )

    async def hear(self, data) -> None:
        at = self.room.clock.at
        await self.room.hear([self.feed.channel(data, org=self.org, at=at, stored_at=at)])

    async def ask(self, run_id: str, cents: int) -> None:
        request_id = f"q{next(self.numbers)}"
        names = {"run_id": run_id, "root_run_id": run_id, "run_budget_nanousd": 40 * CENT}
        names["surface"] = SURFACES.get(run_id)
        answer = await self.room.authorize(ask(request_id, cents * CENT, **names), org=self.org)
        if answer.allowed:
            self.asked.append((request_id, run_id))

    async def report(self, which: int, cents: int) -> None:
        if self.asked:
            request_id, run_id = self.asked[which % len(self.asked)]
            at = self.room.clock.at
            await self.hear(paid(request_id, f"{cents / 100:.2f}", run_id, occurred_at=at))

    async def unasked(self, run_id: str, cents: int) -> None:
        at = self.room.clock.at
        request_id = f"u{next(self.numbers)}"
        await self.hear(paid(request_id, f"{cents / 100:.2f}", run_id, occurred_at=at))

    async def void(self, which: int, _) -> None:
        if self.asked:
            request_id, _ = self.asked[which % len(self.asked)]
            asked = Question(
                VoidHold(request_id=request_id), Asked(self.org, "channel", "c1"), None
            )
            with contextlib.suppress(NotFound, AlreadyExists):
                await self.room.desk.answer_void_hold(asked)

    async def set_caps(self, org_cents: int, agent_cents: int) -> None:
        self.caps = (2 * org_cents, agent_cents)
        await self._direct()

    async def set_mode(self, mode: CapMode, _) -> None:
        self.mode = mode
        await self._direct()

    async def start(self, run_id: str, cents: int | None) -> None:
        budget = None if cents is None else cents * CENT
        surface = SURFACES.get(run_id, Surface.CLI)
        at = self.room.clock.at
        await self.hear(started(run_id, budget_nanousd=budget, surface=surface, started_at=at))

    async def end(self, run_id: str, _) -> None:
        await self.hear(finished(run_id, ended_at=self.room.clock.at))

    async def expire(self, *_) -> None:
        at = self.room.clock.at + timedelta(seconds=600) + GRACE
        await handle_until(self.room, at)
        await self.room.keeper.keep()

    async def open_holds(self) -> int:
        (row,) = await self.room.rows(
            "SELECT count(*) FROM hold WHERE org = $1 AND state = 'open'", self.org
        )
        return int(row[0])


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEP, min_size=5, max_size=25))
async def test_no_step_passes_a_strict_cap_and_none_leaves_a_hold(room: LedgerRoom, steps):
    checker = Checker(room.database._dsn)
    machine = Machine(room)
    await machine.begin()
    for what, one, other in steps:
        await getattr(machine, what)(one, other)
        await checker.look()
    await machine.expire()
    assert await machine.open_holds() == 0
    figures = [figure for figure in await checker.look() if figure.org == machine.org]
    assert all(figure.held == 0 for figure in figures)
    await assert_rebuilding_agrees(room)
