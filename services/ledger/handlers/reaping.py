"""The reaper: fails runs whose process died, and lets everybody see how far the ledger is.

Part of `ingest`. Every look asks the server up to when everything is handled and keeps it; then one
process at a time judges the runs that were silent for longer than the threshold at that moment. A
verdict is a fact like any other (`domain/life.py`): wrong ones are undone by the next sign of life.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from services.ledger.domain.life import apply_verdict, settle, verdict_on
from services.ledger.domain.silence import Look, Vigil
from services.ledger.handlers.saying import Change, say
from services.ledger.store import runs, transitions
from shared.bus import BusUnavailable
from shared.db import is_transient
from shared.log import logger
from shared.watermark import read_watermark

if TYPE_CHECKING:
    from contracts.catalog import DurableSpec
    from services.ledger.domain.books import RunKey
    from shared.bus import Bus
    from shared.clock import Clock
    from shared.db import Connection, Database

REAP_EVERY_S = 60.0
REAP_ROWS_MAX = 200
"""Runs that one transaction fails; a look takes as many transactions as it needs."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a run may be silent, and how often the reaper looks."""

    threshold: timedelta
    """0: nobody is failed for silence."""
    every_s: float = REAP_EVERY_S


class Reaper:
    """Judges runs by their silence; `run` until cancelled."""

    def __init__(
        self, *, database: Database, bus: Bus, clock: Clock, durables: Sequence[DurableSpec]
    ) -> None:
        """Judge against the watermark of the durables that bring signs of life."""
        self._database = database
        self._bus = bus
        self._clock = clock
        self._durables = durables

    async def run(self, patience: Patience) -> None:
        """Look every so often; while a server is away, look again later."""
        started = time.monotonic()
        vigil = Vigil()
        while True:
            try:
                look = await self._look(started)
                if look is not None:
                    vigil = vigil.after(look)
                    if patience.threshold and vigil.may_judge(patience.threshold):
                        await self.sweep(look.watermark_at, patience.threshold)
            except Exception as error:
                if not (is_transient(error) or isinstance(error, BusUnavailable)):
                    raise
                logger().warning("reaper_waits", cause=type(error).__name__)
            await asyncio.sleep(patience.every_s)

    async def _look(self, started: float) -> Look | None:
        """Read how far the ledger is and keep it; None where it is behind."""
        marks = await asyncio.gather(*(read_watermark(self._bus, spec) for spec in self._durables))
        now, now_s = self._clock.now(), time.monotonic()
        known = {
            spec.stream: mark
            for spec, mark in zip(self._durables, marks, strict=True)
            if mark is not None
        }
        if known:
            async with self._database.transaction() as connection:
                at = {stream: mark.at for stream, mark in known.items()}
                await transitions.save_watermarks(connection, at, now=now)
        if len(known) < len(self._durables):
            return None
        oldest = min(known.values(), key=lambda mark: mark.at)
        return Look(
            watermark_at=oldest.at,
            # The clocks are compared at one moment, that of the older watermark.
            clock_at=now - timedelta(seconds=now_s - oldest.seen_s),
            passed=timedelta(seconds=oldest.seen_s - started),
            connections=self._bus.connections,
        )

    async def sweep(self, watermark_at: datetime, threshold: timedelta) -> int:
        """Fail every run that was silent for longer than `threshold` at the watermark."""
        total = REAP_ROWS_MAX
        count = 0
        while total == REAP_ROWS_MAX:
            async with self._database.transaction() as connection:
                if not await transitions.is_alone(connection):
                    return count
                total = await self._reap(connection, watermark_at, threshold)
            count += total
        if count:
            logger().info("runs_reaped", runs=count, watermark_at=watermark_at.isoformat())
        return count

    async def _reap(
        self, connection: Connection, watermark_at: datetime, threshold: timedelta
    ) -> int:
        now = self._clock.now()
        silent = await runs.lock_silent(
            connection,
            heard_before=watermark_at - threshold,
            streams=[spec.stream for spec in self._durables],
            limit=REAP_ROWS_MAX,
        )
        changes: dict[RunKey, Change] = {}
        facts = []
        for key, run in silent.items():
            verdict = verdict_on(run, at=now, watermark_at=watermark_at)
            if verdict is None:
                continue
            failed = settle(apply_verdict(run, verdict))
            if failed.status == run.status:
                continue
            failed = replace(failed, revision=run.revision + 1)
            changes[key] = Change(run, failed, "reaped")
            facts.append((key[0], verdict))
        await runs.save_runs(connection, [(key[0], one.run) for key, one in changes.items()])
        await transitions.keep(connection, facts, now)
        await say(connection, changes, now=now)
        return len(changes)
