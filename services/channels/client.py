"""The typed client: a channel that starts runs, asks before each request and reports afterwards.

```python
async with Channel(HttpTransport(base_url, api_key), spool_path=path) as channel:
    async with channel.run(run_id="r1", agent_id="a1", user_id="u1",
                           started_by_user_id="u1", surface=Surface.CLI) as run:
        async with run.request(model="claude-opus-5-5", provider="anthropic") as request:
            answer = await call_the_model()
            request.report(Tokens(input=1200, output=300))
```

The one thing not to break: what was paid for is said, whatever happens. It is answered, or it lies
in the spool, or an error is raised and counted; nothing is dropped in silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, Unpack

from contracts.channel import RunDeleted
from contracts.errors import Fault, Invalid
from contracts.ledger import Authorization, Authorize
from contracts.types import OnUnreachable
from services.channels.errors import (
    ChannelError,
    EventRefused,
    EventsUnsent,
    RiendaUnreachable,
)
from services.channels.ingestion import IngestionContext, IngestionGuard
from services.channels.run import RunContext, RunSession
from services.channels.speaking import despite_cancellation
from services.channels.spool import SPOOL_BYTES_MAX, FileSpool, MemorySpool, Spool
from services.channels.transport import (
    DEADLINE_S,
    Outcome,
    Said,
    Transport,
    Verdict,
    derived_id,
)
from shared.clock import Clock, SystemClock

LOG: Final = logging.getLogger("rienda.channel")
"""A library's log: its program decides where it goes."""
NO_ANSWER: Final = "no answer in time"
HEARTBEAT_S: Final = 30.0
"""A quarter of the reaper's 120 s (design.md 4), so that three lost beats kill nobody."""
SAY_S: Final = 5.0
"""How long an event may wait for its answer before it is kept in the spool."""
OPEN_S: Final = 5.0
ASK_TRIES: Final = 2
"""The question and one idempotent retry (design.md 2, *Questions*)."""
DRAIN_EVENTS_MAX: Final = 100


class Channel:
    """One publisher. Open it once and run many runs in it, one after another or side by side.

    Counters, for the channel's own metrics: `events_refused` (answered no for good),
    `events_lost` (neither answered nor kept), `requests_unknown` (ended without a report, so that
    their spend, if any, is unknown).
    """

    def __init__(
        self,
        transport: Transport,
        *,
        spool_path: Path | None = None,
        spool_bytes_max: int = SPOOL_BYTES_MAX,
        heartbeat_s: float = HEARTBEAT_S,
        clock: Clock | None = None,
    ) -> None:
        """Without `spool_path` unsent events live in memory and end with the process.

        Raises:
            SpoolUnusable: the spool's folder cannot be made.
        """
        self.heartbeat_s = heartbeat_s
        self.clock: Clock = clock or SystemClock()
        self.events_refused = 0
        self.events_lost = 0
        self.requests_unknown = 0
        self._transport = transport
        self._spool: Spool = (
            FileSpool(spool_path, spool_bytes_max) if spool_path else MemorySpool(spool_bytes_max)
        )
        self._draining: asyncio.Task[None] | None = None
        self._voiding: set[asyncio.Task[None]] = set()
        # Until the organization has answered once, no answer means no (design.md 2, *Questions*).
        self._on_unreachable = OnUnreachable.REFUSE

    async def __aenter__(self) -> Self:
        """Connect, and send what an earlier life left in the spool. Nobody there is no error."""
        try:
            async with asyncio.timeout(OPEN_S):
                await self._transport.open()
        except (RiendaUnreachable, TimeoutError) as error:
            LOG.warning("opened unconnected: %s", str(error) or NO_ANSWER)
        else:
            await self._drain()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send what still waits, and let go of the connection.

        Raises:
            EventsUnsent: there is no spool file and some events were not taken.
        """
        try:
            await despite_cancellation(self._drain_last())
        finally:
            await self._transport.close()
        if isinstance(self._spool, MemorySpool) and not self._spool.is_empty:
            lost = EventsUnsent(len(self._spool.waiting().events))
            self.events_lost += lost.events_count
            LOG.error("%s", lost)
            if error is None:
                raise lost
            error.add_note(str(lost))

    def run(self, **context: Unpack[RunContext]) -> RunSession:
        """A top-level run, to be entered with `async with`."""
        return RunSession(self, context)

    def resume_run(self, claim_id: str, **context: Unpack[RunContext]) -> RunSession:
        """A parked run that goes on in this process, to be entered with `async with`.

        `context` is that of its start, as the channel kept it; the start is not said again.
        """
        return RunSession(self, context, claim_id=claim_id)

    def ingest(self, **context: Unpack[IngestionContext]) -> IngestionGuard:
        """One request that belongs to no run, to be entered with `async with`."""
        return IngestionGuard(self, context)

    async def delete_run(self, run_id: str) -> None:
        """Say that the platform deleted a run of this channel: nobody sees it any more.

        What it spent stays in the bill, what it delegated goes on as runs of their own, and it may
        not spend again. Nothing undoes it; saying it twice is harmless.

        Raises:
            EventRefused, SpoolFull, SpoolUnusable: it was not taken.
        """
        now = self.clock.now()
        data = RunDeleted(run_id=run_id, deleted_at=now)
        event_id = derived_id(run_id, "deleted", said=data)
        await self.say(Said(id=event_id, time=now, data=data))

    async def say(self, event: Said) -> None:
        """Say one event now, or keep it in the spool.

        Raises:
            EventRefused: it was understood and not taken.
            SpoolFull: nobody took it and there is no room to keep it.
            SpoolUnusable: nobody took it and the file system says no.
        """
        try:
            async with asyncio.timeout(SAY_S):
                (outcome,) = await self._transport.publish([event])
        except (ChannelError, TimeoutError) as error:
            LOG.warning("kept %s for later: %s", event.id, str(error) or NO_ANSWER)
            self._keep(event)
            return
        except Fault as fault:
            outcome = Outcome(event.id, Verdict.REFUSED, fault.reason, fault.message)
        if outcome.verdict is Verdict.REFUSED:
            raise self._refused(outcome)
        self._drain_soon()

    async def pulse(self, event: Said) -> None:
        """Say an event that is worth nothing later: once, and never kept."""
        try:
            async with asyncio.timeout(SAY_S):
                await self._transport.publish([event])
        except (ChannelError, Fault, TimeoutError) as error:
            LOG.info("lost %s: %s", event.id, str(error) or NO_ANSWER)

    async def ask(self, question: Authorize) -> Authorization | None:
        """Ask with a deadline of one second and one retry; nothing when nobody answered.

        Nothing comes back only where the organization's last answer said that its channels may go
        on unheard (`on_unreachable` = `allow`).

        Raises:
            RiendaUnreachable: nobody answered, and that means no.
            CredentialRefused: the key or the bus user is not accepted.
            contracts.errors.Fault: the question cannot be answered as it was put.
        """
        unheard = RiendaUnreachable("nobody answered")
        for _ in range(ASK_TRIES):
            try:
                answer = await self._transport.authorize(question, timeout_s=DEADLINE_S)
            except RiendaUnreachable as error:
                unheard = error
            else:
                self._on_unreachable = answer.on_unreachable
                return answer
        if self._on_unreachable is OnUnreachable.ALLOW:
            LOG.warning("request %s goes on unheard: %s", question.request_id, unheard)
            return None
        # The answer may have been lost on its way, and with it the word of a hold.
        self._let_go_soon(question.request_id)
        raise unheard

    def _let_go_soon(self, request_id: str) -> None:
        task = asyncio.create_task(self.void(request_id), name=f"void of {request_id}")
        self._voiding.add(task)
        task.add_done_callback(self._voiding.discard)

    async def void(self, request_id: str) -> None:
        """Let go of what is held for a request that was not sent.

        Nothing is lost where nobody hears it: a hold that is never reported expires.
        """
        for _ in range(ASK_TRIES):
            try:
                await self._transport.void_hold(request_id, timeout_s=DEADLINE_S)
            except RiendaUnreachable as error:
                LOG.info("the hold of %s is left to expire: %s", request_id, error)
            except (ChannelError, Fault) as error:
                # In recorded mode nothing is held; a request that was reported was sent.
                LOG.debug("nothing to let go of for %s: %s", request_id, error)
                return
            else:
                return

    def _keep(self, event: Said) -> None:
        try:
            self._spool.keep([event])
        except Invalid as error:
            outcome = Outcome(event.id, Verdict.REFUSED, error.reason, error.message)
            raise self._refused(outcome) from error
        except ChannelError as error:
            self.events_lost += 1
            LOG.error("lost %s, %d so far: %s", event.id, self.events_lost, error)
            raise

    def _refused(self, outcome: Outcome) -> EventRefused:
        self.events_refused += 1
        error = EventRefused(
            outcome.id, reason=outcome.reason or "refused", message=outcome.message or "no reason"
        )
        LOG.error("%s; %d so far", error, self.events_refused)
        return error

    def _drain_soon(self) -> None:
        """Sending works again: what waits follows, without holding up whoever noticed it."""
        is_draining = self._draining is not None and not self._draining.done()
        if not self._spool.is_empty and not is_draining:
            self._draining = asyncio.create_task(self._drain(), name="drain of the spool")

    async def _drain_last(self) -> None:
        if self._voiding:
            await asyncio.wait(self._voiding)
        if self._draining is not None:
            await asyncio.wait({self._draining})
        await self._drain()

    async def _drain(self) -> None:
        """Send what waits, oldest first, until all is answered or nobody answers."""
        if self._spool.is_empty:
            return
        answered: list[str] = []
        try:
            waiting = self._spool.waiting()
            if waiting.damaged_count:
                LOG.error("%d line(s) of the spool cannot be read", waiting.damaged_count)
            try:
                for start in range(0, len(waiting.events), DRAIN_EVENTS_MAX):
                    batch = waiting.events[start : start + DRAIN_EVENTS_MAX]
                    answered += await self._send_kept(batch)
            finally:
                if answered or waiting.damaged_count:
                    self._spool.forget(answered)
        except (ChannelError, TimeoutError) as error:
            LOG.warning("the spool waits: %s", str(error) or NO_ANSWER)

    async def _send_kept(self, batch: Sequence[Said]) -> list[str]:
        """Send kept events; one that spoils its batch is refused alone."""
        try:
            async with asyncio.timeout(SAY_S):
                outcomes = await self._transport.publish(batch)
        except Fault as fault:
            if len(batch) > 1:
                halves = (batch[: len(batch) // 2], batch[len(batch) // 2 :])
                return [kept for half in halves for kept in await self._send_kept(half)]
            outcomes = [Outcome(batch[0].id, Verdict.REFUSED, fault.reason, fault.message)]
        for outcome in outcomes:
            if outcome.verdict is Verdict.REFUSED:
                self._refused(outcome)
        return [event.id for event in batch]
