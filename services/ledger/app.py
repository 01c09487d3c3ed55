"""Assembly of the ledger: settings, database, bus, handlers, answers."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path

from contracts.catalog import DURABLES
from services.ledger.domain.rate_cards import RateBook
from services.ledger.handlers import directory
from services.ledger.handlers.channel import ChannelReports
from services.ledger.handlers.copying import DirectoryCopy
from services.ledger.handlers.counting import TreeCounter
from services.ledger.handlers.entering import RunPlacer
from services.ledger.handlers.reaping import Patience, Reaper
from services.ledger.handlers.recounting import Recounter
from services.ledger.handlers.saying import TotalsSayer
from services.ledger.requests.authorize import Authorizer
from services.ledger.requests.correcting import Corrector
from services.ledger.requests.holds import HoldDesk
from services.ledger.requests.ingestion import IngestionReader
from services.ledger.requests.keeping import HoldKeeper
from services.ledger.requests.reading import Reader
from services.ledger.settings import Settings
from shared.app import COLLECT_AFTER_OBJECTS_OF_BATCHES, Loop, Process
from shared.bus import Bus
from shared.clock import Clock, room_clock
from shared.command import RoomCommands
from shared.consume import Consumer
from shared.db import BY_KEY_ONLY, Database
from shared.group import GROUPS_MAX
from shared.inbox import prune_forever
from shared.outbox import Relay
from shared.pull import Puller, retry_forever
from shared.questions import Answerer, Asker, Responder

ROOM = "ledger"
MIGRATIONS = Path(__file__).parent / "migrations"
PARTS = ("all", "ingest", "answer", "relay")
"""Pricing never blocks an answer where `ingest` and `answer` run as processes of their own."""
SIGNS_FROM = ("CHANNEL", "PULSE")
"""Streams that bring signs of life."""


def make_process(part: str) -> Process:
    """Assemble one part of the room, or all of it in one process."""
    settings = Settings()
    clock = room_clock(settings.test_clock)
    bus = Bus(settings.bus_address(ROOM))
    database = Database(
        settings.postgres_url, schema=ROOM, connections_max=settings.postgres_connections_max
    )
    process = Process(
        room=ROOM,
        part=part,
        bus=bus,
        database=database,
        migrations=MIGRATIONS,
        http_host=settings.http_host,
        http_port=settings.http_port,
    )
    if part == "ingest":
        process.niceness = settings.ingest_niceness
        process.collect_after_objects = COLLECT_AFTER_OBJECTS_OF_BATCHES
    loops: list[Loop] = []
    drains: list[Loop] = []
    if part in ("all", "ingest"):
        consumers = _consumers(database, clock, settings)
        process.durables = [consumer.durable for consumer in consumers]
        pullers = [Puller(bus, consumer) for consumer in consumers]
        drains += [puller.drain for puller in pullers]
        loops += [puller.run for puller in pullers]
        for consumer in consumers:
            loops.append(partial(retry_forever, consumer))
        loops.append(partial(prune_forever, database, clock))
        asker = Asker(bus, name=ROOM)
        loops.append(DirectoryCopy(database=database, asker=asker, clock=clock).run)
        loops.append(Recounter(database=database, clock=clock).run)
        loops.append(TotalsSayer(database=database, clock=clock).run)
        loops.append(TreeCounter(database=database).run)
        loops.append(RunPlacer(database=database, clock=clock).run)
        loops.append(_reaping(settings, database, bus, clock))
    if part in ("all", "answer"):
        deciding = _deciding(settings)
        process.databases.append(deciding)
        authorizer = Authorizer(database=deciding, book=RateBook.pinned(), clock=clock)
        reader = Reader(database=database, clock=clock)
        corrector = Corrector(database=database, clock=clock)
        ingestion = IngestionReader(database=database)
        responder = Responder(
            bus,
            room=ROOM,
            answers={
                **answers(authorizer, reader, corrector, ingestion),
                **hold_answers(HoldDesk(database=database, clock=clock)),
            },
        )
        loops.append(HoldKeeper(database=database, clock=clock).run)
        drains.append(responder.drain)
        loops.append(authorizer.group.run)
    if part in ("all", "relay"):
        loops.append(Relay(database, bus).run)
    process.loops, process.drains = loops, drains
    return process


def _deciding(settings: Settings) -> Database:
    """For questions alone: one connection for each group under way, by keys only."""
    return Database(
        settings.postgres_url,
        schema=ROOM,
        connections_max=GROUPS_MAX,
        at_hand_max=GROUPS_MAX,
        settings=BY_KEY_ONLY,
    )


def _reaping(settings: Settings, database: Database, bus: Bus, clock: Clock) -> Loop:
    heard = [spec for spec in DURABLES if spec.room == ROOM and spec.stream in SIGNS_FROM]
    reaper = Reaper(database=database, bus=bus, clock=clock, durables=heard)
    threshold = timedelta(seconds=settings.stale_run_reaped_after_seconds)
    return partial(reaper.run, Patience(threshold, settings.reap_every_s))


def answers(
    authorizer: Authorizer, reader: Reader, corrector: Corrector, ingestion: IngestionReader
) -> dict[str, Answerer]:
    """Every question of the ledger with its function."""
    return {
        "authorize": authorizer.answer_authorize,
        "list_runs": reader.answer_list_runs,
        "get_run": reader.answer_get_run,
        "list_entries": reader.answer_list_entries,
        "list_ingestion_entries": ingestion.answer_list_ingestion_entries,
        "correct_entry": corrector.answer_correct_entry,
        "get_spend": reader.answer_get_spend,
        "list_caps": reader.answer_list_caps,
        "list_departments_spend": reader.answer_list_departments_spend,
        "get_applied": reader.answer_get_applied,
    }


def hold_answers(desk: HoldDesk) -> dict[str, Answerer]:
    """The questions about what is held."""
    return {
        "void_hold": desk.answer_void_hold,
        "list_holds": desk.answer_list_holds,
        "list_overruns": desk.answer_list_overruns,
    }


def _consumers(database: Database, clock: Clock, settings: Settings) -> list[Consumer]:
    reports = ChannelReports(RateBook.pinned(), settings.rates)
    handlers = {
        "CHANNEL": reports.on_batch,
        "PULSE": reports.on_batch,
        "DIRECTORY": directory.on_batch,
    }
    return [
        Consumer(
            room=ROOM,
            durable=durable,
            database=database,
            handler=handlers[durable.stream],
            clock=clock,
        )
        for durable in DURABLES
        if durable.room == ROOM
    ]


COMMANDS = RoomCommands(
    room=ROOM,
    migrations=MIGRATIONS,
    parts=PARTS,
    process_of=make_process,
    owner_dsn=lambda: Settings().postgres_owner_url,
    health_url=lambda: f"http://{Settings().http_host}:{Settings().http_port}",
)
