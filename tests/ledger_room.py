"""The ledger's handlers on a real database, without a bus in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

from contracts.caps import DepartmentsSpend, ListCaps, ListDepartmentsSpend
from contracts.catalog import DURABLES
from contracts.entries import (
    CorrectEntry,
    EntryCorrected,
    EntryPage,
    IngestionEntryPage,
    ListEntries,
    ListIngestionEntries,
)
from contracts.envelope import Actor
from contracts.ledger import (
    Authorization,
    Authorize,
    GetRun,
    GetSpend,
    ListRuns,
    RunChanged,
    RunFilter,
    RunPage,
    RunRow,
    Spend,
)
from contracts.subjects import Asked
from contracts.types import Wire
from services.ledger.domain.rate_cards import RateBook
from services.ledger.handlers import directory
from services.ledger.handlers.channel import ChannelReports
from services.ledger.handlers.entering import RunPlacer
from services.ledger.handlers.reaping import Reaper
from services.ledger.handlers.recounting import Recounter
from services.ledger.handlers.saying import TotalsSayer
from services.ledger.requests.authorize import Authorizer
from services.ledger.requests.correcting import Corrector
from services.ledger.requests.holds import HoldDesk
from services.ledger.requests.ingestion import IngestionReader
from services.ledger.requests.keeping import HoldKeeper
from services.ledger.requests.reading import Reader
from shared.bus import Bus, BusAddress
from shared.clock import FixedClock
from shared.consume import Batch, Consumer, Delivery, Handler
from shared.db import Database
from shared.log import configure
from shared.questions import Question
from tests.factories import NOON, Feed, channel, minutes, organization
from tests.waiting import eventually

SIGNS_FROM = ("CHANNEL", "PULSE")
BOOK = RateBook.pinned()
RATES = {"NOK": Decimal("10.5")}
HEARD = {durable.stream: durable for durable in DURABLES if durable.room == "ledger"}
LONG_AGO = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


class LedgerRoom:
    """Feeds deliveries to the ledger's own handlers and asks its own answers."""

    def __init__(self, url: str, owner_url: str = "") -> None:
        configure(room="ledger", part="test")
        self.database = Database(url, schema="ledger")
        self.owner_url = owner_url
        self.clock = FixedClock(NOON + minutes(30))
        reports = self.reports = ChannelReports(BOOK, RATES)
        self.handlers: dict[str, Handler] = {
            "CHANNEL": reports.on_batch,
            "PULSE": reports.on_batch,
            "DIRECTORY": directory.on_batch,
        }
        self.consumers = {stream: self._consumer(stream, self.handlers[stream]) for stream in HEARD}
        self.placer = RunPlacer(database=self.database, clock=self.clock)
        self.recounter = Recounter(database=self.database, clock=self.clock, trees_max=2)
        self.authorizer = Authorizer(database=self.database, book=BOOK, clock=self.clock)
        self.reader = Reader(database=self.database, clock=self.clock)
        self.ingestion = IngestionReader(database=self.database)
        self.corrector = Corrector(database=self.database, clock=self.clock)
        self.desk = HoldDesk(database=self.database, clock=self.clock)
        self.keeper = HoldKeeper(database=self.database, clock=self.clock)
        self.sayer = TotalsSayer(database=self.database, clock=self.clock)
        self.reaper = Reaper(
            database=self.database,
            bus=Bus(BusAddress(url="nats://127.0.0.1:1", name="ledger")),
            clock=self.clock,
            durables=[spec for spec in DURABLES if spec.stream in SIGNS_FROM],
        )
        """Not connected: a test says itself up to when everything is handled."""

    def _consumer(self, stream: str, handler: Handler) -> Consumer:
        return Consumer(
            room="ledger",
            durable=HEARD[stream],
            database=self.database,
            handler=handler,
            clock=self.clock,
        )

    @asynccontextmanager
    async def uncommitted(self, stream: str, batch: Sequence[Delivery]) -> AsyncIterator[None]:
        """A batch that is handled and not committed before the block ends."""
        handled, ends = asyncio.Event(), asyncio.Event()

        async def handle(connection: Any, received: Batch) -> None:
            await self.handlers[stream](connection, received)
            handled.set()
            await ends.wait()

        task = asyncio.create_task(self._consumer(stream, handle).handle(batch))
        await handled.wait()
        try:
            yield
        finally:
            ends.set()
            await task

    async def waits_or_ends(self, task: asyncio.Task[Any]) -> None:
        """Until a task has ended, or one of the room's transactions waits for another's lock."""
        waiting = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )

        async def look() -> bool:
            return task.done() or (await self.rows(waiting))[0][0] > 0

        await eventually(look, bool)

    async def hear(self, deliveries: Sequence[Delivery], *, batch: int = 1_000) -> None:
        """Handle deliveries in their order, cut into batches per stream, and what is left of it."""
        position = 0
        while position < len(deliveries):
            stream = deliveries[position].stream
            group = []
            while (
                position < len(deliveries)
                and deliveries[position].stream == stream
                and len(group) < batch
            ):
                group.append(deliveries[position])
                position += 1
            await self.consumers[stream].handle(group)
        await self.recount()

    async def recount(self) -> None:
        """Count again what a change of departments left, to the end."""
        while await self.recounter.step():
            continue

    async def know(self, feed: Feed, *orgs: str, channels: Sequence[str] = ("c1",)) -> None:
        """Let the ledger know organizations with channels."""
        for org in orgs or ("acme",):
            await self.hear([feed.directory(organization(name=org.title()), org, org=org)])
            for channel_id in channels:
                await self.hear([feed.directory(channel(channel_id), channel_id, org=org)])

    async def said(self, org: str = "acme") -> list[RunChanged]:
        """Every `run_changed` of an organization, in the order of their rows."""
        rows = await self.rows(
            "SELECT body FROM outbox WHERE subject = $1 ORDER BY id",
            f"rienda.event.{org}.ledger.run_changed.v1",
        )
        return [RunChanged.model_validate_json(json.dumps(_data(row["body"]))) for row in rows]

    async def authorize(
        self, asked: Authorize, *, org: str = "acme", channel_id: str = "c1"
    ) -> Authorization:
        """Ask in a group of one."""
        from services.ledger.requests.facts import Asked as Question_

        (answer,) = await self.authorizer._decide([Question_(org, channel_id, asked)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def runs(self, org: str = "acme", **narrowed: Any) -> RunPage:
        asked = ListRuns(filter=RunFilter(**narrowed), limit=100)
        return await self.reader.answer_list_runs(_question(asked, org))

    async def run(self, run_id: str, org: str = "acme") -> RunRow:
        return await self.reader.answer_get_run(_question(GetRun(run_id=run_id), org))

    async def entries(self, run_id: str, org: str = "acme", **asked: Any) -> EntryPage:
        question = ListEntries(run_id=run_id, **({"limit": 500} | asked))
        return await self.reader.answer_list_entries(_question(question, org))

    async def ingested(
        self, ingestion_id: str, org: str = "acme", **asked: Any
    ) -> IngestionEntryPage:
        question = ListIngestionEntries(ingestion_id=ingestion_id, **({"limit": 500} | asked))
        return await self.ingestion.answer_list_ingestion_entries(_question(question, org))

    async def correct(
        self, entry_id: str, cost_nanousd: int, correction_id: str, **asked: Any
    ) -> EntryCorrected:
        org = asked.pop("org", "acme")
        permissions = asked.pop("permissions", ("budgets:manage",))
        values = {"reason": "the invoice says so"} | asked
        question = CorrectEntry(
            correction_id=correction_id, entry_id=entry_id, cost_nanousd=cost_nanousd, **values
        )
        actor = Actor(pseudonym="somebody", permissions=permissions)
        return await self.corrector.answer_correct_entry(
            Question(question, Asked(org, "room", "gateway"), actor)
        )

    async def spend(self, org: str = "acme", since: datetime | None = None) -> Spend:
        asked = GetSpend(started_from=since or NOON - minutes(60 * 24 * 20), started_to=None)
        return await self.reader.answer_get_spend(_question(asked, org))

    async def caps(self, org: str = "acme") -> Any:
        return await self.reader.answer_list_caps(_question(ListCaps(), org))

    async def departments(self, org: str = "acme", **asked: Any) -> DepartmentsSpend:
        question = ListDepartmentsSpend(**({"limit": 100} | asked))
        return await self.reader.answer_list_departments_spend(_question(question, org))

    async def rows(self, statement: str, *values: Any) -> list[Any]:
        async with self.database.transaction() as connection:
            return list(await connection.fetch(statement, *values))

    async def close(self) -> None:
        await self.database.close()


def _data(body: bytes) -> Any:
    return json.loads(body)["data"]


def _question(data: Wire, org: str) -> Question:
    return Question(data, Asked(org, "room", "gateway"), None)
