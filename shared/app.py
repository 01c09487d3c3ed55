"""Running one process of a room: start in order, stop in order, die loudly.

Start: health port (red), database and schema, bus and subscribers, loops. Stop on SIGTERM or
SIGINT: no new work, running handlers end, connections close. A loop that fails ends the process;
whoever runs it starts it again.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.db import is_transient
from shared.health import Check, health_app, quiet_server
from shared.log import configure, logger
from shared.schema import SchemaTooOld, require_schema

if TYPE_CHECKING:
    import uvicorn

    from contracts.catalog import DurableSpec
    from shared.bus import Bus
    from shared.db import Database

WAIT_S = 0.2
GRACE_S = 10
COLLECT_AFTER_OBJECTS = 10_000
"""New objects between two looks of the garbage collector; 700 by default. A look at so many takes a
millisecond or two, which somebody who asks waits for."""
COLLECT_AFTER_OBJECTS_OF_BATCHES = 250_000
"""The same where nobody waits: a batch of 2 000 reports makes some 100 000 that all live until it
is committed, and looking at them finds nothing."""

Loop = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Process:
    """What one process of a room consists of."""

    room: str
    part: str
    bus: Bus
    database: Database
    migrations: Path
    http_host: str
    http_port: int
    durables: Sequence[DurableSpec] = ()
    """What its subscribers pull from."""
    loops: Sequence[Loop] = ()
    """Run for ever beside the subscribers; cancelled at the end."""
    databases: list[Database] = field(default_factory=list)
    """Further pools; closed at the end with the others."""
    checks: dict[str, Check] = field(default_factory=dict)
    drains: Sequence[Callable[[], Awaitable[None]]] = ()
    """End what is under way, before the connections close."""
    web: Callable[[dict[str, Check]], Any] | None = None
    """Makes the ASGI application where it is more than the health pages."""
    niceness: int = 0
    """How far it stands back behind other processes of the machine (POSIX; 0: not)."""
    collect_after_objects: int = COLLECT_AFTER_OBJECTS
    """New objects between two looks of the garbage collector."""
    started: bool = False


def run(process: Process) -> int:
    """Run a process until it is told to stop; answer its exit code."""
    configure(room=process.room, part=process.part)
    if process.niceness and sys.platform != "win32":
        os.nice(process.niceness)
    return _with_fast_loop(_serve(process))


def _with_fast_loop(main: Any) -> int:
    if sys.platform == "win32":
        return int(asyncio.run(main))
    import uvloop

    return int(uvloop.run(main))


async def _serve(process: Process) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    server = _server_of(process)
    web = asyncio.create_task(server.serve())
    tasks: list[asyncio.Task[Any]] = [web]
    try:
        starting = asyncio.create_task(_start(process))
        done, _ = await asyncio.wait(
            {starting, asyncio.create_task(stop.wait()), web}, return_when=asyncio.FIRST_COMPLETED
        )
        if starting not in done:
            starting.cancel()
            return 0 if stop.is_set() else 1
        starting.result()
        tasks += [asyncio.ensure_future(loop_()) for loop_ in process.loops]
        logger().info("serving", http_port=process.http_port)
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        return 0 if stop.is_set() else _failed(tasks)
    except SchemaTooOld as error:
        logger().error("schema_too_old", message=str(error))
        return 1
    finally:
        await _stop(process, server, tasks)


def _server_of(process: Process) -> uvicorn.Server:
    async def bus_is_up() -> bool:
        return process.bus.is_up

    async def is_started() -> bool:
        return process.started

    checks: dict[str, Check] = {
        "started": is_started,
        "bus": bus_is_up,
        "database": process.database.is_up,
        **process.checks,
    }
    app = process.web(checks) if process.web else health_app(checks)
    return quiet_server(app, host=process.http_host, port=process.http_port)


async def _start(process: Process) -> None:
    while True:
        try:
            async with process.database.transaction() as connection:
                await require_schema(connection, room=process.room, migrations=process.migrations)
            break
        except Exception as error:
            if not is_transient(error):
                raise
            logger().warning("database_waits", cause=type(error).__name__)
            await asyncio.sleep(WAIT_S)
    await process.bus.start(process.durables)
    settle_memory(process.collect_after_objects)
    process.started = True


def settle_memory(collect_after_objects: int) -> None:
    """Let the collector leave alone what stays for good, and look less often at what does not.

    A batch makes a hundred thousand objects that live until it is committed. By default the
    collector looks at all of them, and at the price catalogue, many times over: a fifth of the
    time of a batch (ADR 0036).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(collect_after_objects)


def _failed(tasks: Sequence[asyncio.Task[Any]]) -> int:
    for task in tasks:
        if task.done():
            error = task.exception()
            logger().error("part_failed", exc_info=error)
    return 1


async def _stop(
    process: Process, server: uvicorn.Server, tasks: Sequence[asyncio.Task[Any]]
) -> None:
    process.started = False
    server.should_exit = True
    web, *loops = tasks
    await asyncio.wait({web}, timeout=GRACE_S)
    try:
        async with asyncio.timeout(GRACE_S):
            # Batches and answers under way need the connections: they end first.
            await asyncio.gather(*(drain() for drain in process.drains))
            await process.bus.stop()
    except TimeoutError:
        logger().warning("stop_cut_short")
    for task in loops:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for database in (process.database, *process.databases):
        await database.close()
    logger().info("stopped")
