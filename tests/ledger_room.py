"""The ledger's handlers on a real database, without a bus in between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from contracts.catalog import DURABLES, Asked
from contracts.ledger import (
    Authorization,
    Authorize,
    EntryPage,
    GetRun,
    GetSpend,
    ListCaps,
    ListEntries,
    ListRuns,
    RunChanged,
    RunFilter,
    RunPage,
    RunRow,
    Spend,
)
from contracts.types import Wire
from services.ledger.domain.rate_cards import RateBook
from services.ledger.handlers import directory
from services.ledger.handlers.channel import ChannelReports
from services.ledger.handlers.reaping import Reaper
from services.ledger.handlers.saying import TotalsSayer
from services.ledger.requests.authorize import Authorizer
from services.ledger.requests.reading import Reader
from shared.bus import Bus, BusAddress
from shared.clock import FixedClock
from shared.consume import Consumer, Delivery
from shared.db import Database
from shared.log import configure
from shared.questions import Question
from tests.factories import NOON, Feed, channel, minutes, organization

SIGNS_FROM = ("CHANNEL", "PULSE")
BOOK = RateBook.pinned()
LONG_AGO = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


class LedgerRoom:
    """Feeds deliveries to the ledger's own handlers and asks its own answers."""

    def __init__(self, url: str) -> None:
        configure(room="ledger", part="test")
        self.database = Database(url, schema="ledger")
        self.clock = FixedClock(NOON + minutes(30))
        reports = ChannelReports(BOOK)
        handlers = {
            "CHANNEL": reports.on_batch,
            "PULSE": reports.on_batch,
            "DIRECTORY": directory.on_batch,
        }
        self.consumers = {
            durable.stream: Consumer(
                room="ledger",
                durable=durable,
                database=self.database,
                handler=handlers[durable.stream],
                clock=self.clock,
            )
            for durable in DURABLES
            if durable.room == "ledger"
        }
        self.authorizer = Authorizer(database=self.database, book=BOOK, clock=self.clock)
        self.reader = Reader(database=self.database, clock=self.clock)
        self.sayer = TotalsSayer(database=self.database, clock=self.clock)
        self.reaper = Reaper(
            database=self.database,
            bus=Bus(BusAddress(url="nats://127.0.0.1:1", name="ledger")),
            clock=self.clock,
            durables=[spec for spec in DURABLES if spec.stream in SIGNS_FROM],
        )
        """Not connected: a test says itself up to when everything is handled."""

    async def hear(self, deliveries: Sequence[Delivery], *, batch: int = 1_000) -> None:
        """Handle deliveries in their order, cut into batches per stream."""
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
        from services.ledger.requests.authorize import Asked as Question_

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

    async def spend(self, org: str = "acme", since: datetime | None = None) -> Spend:
        asked = GetSpend(started_from=since or NOON - minutes(60 * 24 * 20), started_to=None)
        return await self.reader.answer_get_spend(_question(asked, org))

    async def caps(self, org: str = "acme") -> Any:
        return await self.reader.answer_list_caps(_question(ListCaps(), org))

    async def rows(self, statement: str, *values: Any) -> list[Any]:
        async with self.database.transaction() as connection:
            return list(await connection.fetch(statement, *values))

    async def close(self) -> None:
        await self.database.close()


def _data(body: bytes) -> Any:
    return json.loads(body)["data"]


def _question(data: Wire, org: str) -> Question:
    return Question(data, Asked(org, "room", "gateway"), None)
