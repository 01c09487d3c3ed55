"""One run from its start to its end, its requests and its delegations.

The one thing not to break: a run that began is said to have ended, whatever happens in between, and
its end tells nothing of an exception but the name of its class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Required, Self, TypedDict, Unpack

from contracts.channel import (
    AskedInChat,
    ParkedCall,
    PriceContext,
    RunFinished,
    RunHeartbeat,
    RunParked,
    RunResumed,
    RunStarted,
)
from contracts.ledger import Authorize
from contracts.types import RunStatus, Surface, UsageKind, instant_text
from services.channels.errors import BudgetRefused, ChannelError, RunNotOpen
from services.channels.request import RequestContext, RequestGuard
from services.channels.speaking import Voice, despite_cancellation
from services.channels.transport import Said, derived_id

_CLASS_NAME_CHARS_MAX: Final = 200
_INHERITED: Final = (
    "user_id",
    "started_by_user_id",
    "surface",
    "conversation_id",
    "project_id",
    "environment_id",
    "exposure_id",
    "routine_id",
    "goal_id",
    "system_role",
    "asked_in_chat",
)
"""What a delegated run takes from its parent."""


class RunFacts(TypedDict, total=False):
    """What may be known of any run when it begins. Money is nano-USD."""

    agent_version: str
    budget_nanousd: int
    """The run's own cap."""
    conversation_id: str
    project_id: str
    environment_id: str
    exposure_id: str
    routine_id: str
    goal_id: str
    system_role: str
    model: str
    provider: str
    key_id: str
    asked_in_chat: AskedInChat


class RunContext(RunFacts, total=False):
    """A top-level run. `None` for a person is a statement: nobody."""

    run_id: Required[str]
    agent_id: Required[str]
    user_id: Required[str | None]
    started_by_user_id: Required[str | None]
    surface: Required[Surface]


class DelegateContext(RunFacts, total=False):
    """A delegated run; the people and the surface are its parent's."""

    run_id: Required[str]
    agent_id: Required[str]
    delegation_id: Required[str]


class RunSession:
    """A run while it runs; made by `Channel.run`, `Channel.resume_run`, `RunSession.delegate`."""

    def __init__(
        self,
        voice: Voice,
        context: RunContext | DelegateContext,
        parent: RunSession | None = None,
        claim_id: str | None = None,
    ) -> None:
        """Nothing is said before the session is entered.

        `claim_id`: of a run that was parked, and goes on here instead of beginning.
        """
        self.run_id: str = context["run_id"]
        self._voice = voice
        self._context = context
        self._parent = parent
        self._root: RunSession = parent._root if parent else self
        self._started: RunStarted | None = None
        self._claim_id = claim_id
        self._is_over = False
        self._parked_at: datetime | None = None
        self._beating: asyncio.Task[None] | None = None
        self._end: RunFinished | None = None

    @property
    def delegation_id(self) -> str | None:
        """The delegation that this run is, if it is one."""
        return self._started.delegation_id if self._started else None

    @property
    def started(self) -> RunStarted:
        """What was said at its start.

        Raises:
            RunNotOpen: it has not begun, is over, or waits for people.
        """
        if self._started is None or self._is_over:
            state = "is over" if self._is_over else "has not begun"
            raise RunNotOpen(f"run {self.run_id} {state}: use it inside its `async with`")
        if self._parked_at is not None:
            raise RunNotOpen(f"run {self.run_id} is parked: resume it with the claim that you got")
        return self._started

    @property
    def is_parked(self) -> bool:
        """Whether it waits for people: leaving the block does not end it then."""
        return self._parked_at is not None

    async def __aenter__(self) -> Self:
        """Say that it began, or goes on; its process beats from now on.

        Raises:
            EventRefused: the start was not taken (the run is another channel's, for one).
            SpoolFull, SpoolUnusable: nobody took it and it could not be kept.
        """
        now = self._voice.clock.now()
        self._started = self._start_of(now)
        if self._claim_id is None:
            event = Said(id=derived_id(self.run_id, "started"), time=now, data=self._started)
        else:
            event = self._resumption(self._claim_id, now)
        try:
            await despite_cancellation(self._voice.say(event))
        except asyncio.CancelledError:
            # The start was said, the body will never run: say that, too.
            await despite_cancellation(self._say_end(RunStatus.CANCELLED, None))
            raise
        self._start_beating()
        return self

    async def park(self, calls: Sequence[ParkedCall], *, state_ref: str | None = None) -> None:
        """Say that the whole run stopped and waits for people; nothing of it runs from now on.

        A call inside a delegation is the root's to park and names its `delegation_id`. Leaving the
        block does not end a parked run, nor does a cancellation: it goes on by `resume`, here or in
        another process by `Channel.resume_run`. An exception ends it, and so does `end`.

        Raises:
            RunNotOpen: it has not begun, is over, or is parked already.
            EventRefused, SpoolFull, SpoolUnusable: the park was not taken; the run goes on.
        """
        self.started  # noqa: B018 - raises where there is none
        at = self._voice.clock.now()
        data = RunParked(run_id=self.run_id, at=at, state_ref=state_ref, calls=tuple(calls))
        self._parked_at = at
        try:
            event_id = derived_id(self.run_id, "parked", said=data)
            await despite_cancellation(self._voice.say(Said(id=event_id, time=at, data=data)))
        except ChannelError:
            self._parked_at = None
            raise
        self._stop_beating()

    async def resume(self, claim_id: str) -> None:
        """Say that the parked run goes on here, with the claim that its channel got.

        Raises:
            RunNotOpen: it is not parked.
            EventRefused, SpoolFull, SpoolUnusable: this was not taken; the run stays parked.
        """
        if self._parked_at is None or self._is_over:
            raise RunNotOpen(f"run {self.run_id} is not parked: there is nothing to resume")
        # Of a park and a resume at one instant the park holds; a clock may step back, too.
        at = max(self._voice.clock.now(), self._parked_at + timedelta(microseconds=1))
        await despite_cancellation(self._voice.say(self._resumption(claim_id, at)))
        self._parked_at = None
        self._start_beating()

    def _resumption(self, claim_id: str, at: datetime) -> Said:
        data = RunResumed(run_id=self.run_id, claim_id=claim_id, at=at)
        return Said(id=derived_id(self.run_id, "resumed", said=data), time=at, data=data)

    def _start_beating(self) -> None:
        self._beating = asyncio.create_task(self._beat(), name=f"beat of {self.run_id}")

    def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()

    def request(self, **context: Unpack[RequestContext]) -> RequestGuard:
        """One model request of this run, to be entered with `async with`.

        Raises:
            RunNotOpen: the run has not begun, is over, or waits for people.
        """
        self.started  # noqa: B018 - raises where there is none
        return RequestGuard(self._voice, self, context)

    def delegate(self, **context: Unpack[DelegateContext]) -> RunSession:
        """A run that this one starts and pays for, to be entered with `async with`.

        Raises:
            RunNotOpen: the run has not begun, is over, or waits for people.
        """
        self.started  # noqa: B018 - raises where there is none
        return RunSession(self._voice, context, parent=self)

    def end(
        self,
        status: RunStatus,
        *,
        error: str | None = None,
        tools: Sequence[str] = (),
        missing_delegates: int = 0,
    ) -> None:
        """Set the end that is said when the block is left, instead of what its leaving suggests.

        `error` is a sentence of your own, never a provider's text; `tools` names the tools of a
        loop that was stopped; `missing_delegates` counts those whose spend cannot be reported.
        """
        self._end = RunFinished(
            run_id=self.run_id,
            status=status,
            error=error,
            tools=tuple(tools),
            missing_delegates=missing_delegates,
            ended_at=self._voice.clock.now(),
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say that it ended, even when the task is being cancelled; a parked run waits on.

        Raises:
            EventRefused, SpoolFull, SpoolUnusable: the end was not taken and the block itself
                raised nothing; otherwise it is a note on the block's own exception.
        """
        self._stop_beating()
        status, sentence = outcome_of(error)
        is_left_waiting = status in (RunStatus.COMPLETED, RunStatus.CANCELLED)
        if self.is_parked and self._end is None and is_left_waiting:
            return
        try:
            await despite_cancellation(self._say_end(status, sentence))
        except ChannelError as unsaid:
            if error is None:
                raise
            error.add_note(str(unsaid))

    def question(self, request_id: str, context: RequestContext) -> Authorize:
        """The question for one request, with everything that the caps depend on (events.md 3)."""
        started, root = self.started, self._root.started
        # Inside a delegation the caps of the run that a person started bind (facts.md 2.2).
        has_own_budget = started.budget_nanousd is not None
        return Authorize(
            request_id=request_id,
            run_id=self.run_id,
            root_run_id=started.root_run_id,
            agent_id=started.agent_id,
            root_agent_id=root.agent_id,
            user_id=started.user_id,
            started_by_user_id=started.started_by_user_id,
            surface=started.surface,
            routine_id=started.routine_id,
            goal_id=started.goal_id,
            run_budget_nanousd=(started if has_own_budget else root).budget_nanousd,
            kind=context.get("kind", UsageKind.MODEL),
            model=context["model"],
            provider=context.get("provider"),
            price_context=context.get("price_context", PriceContext()),
            input_tokens_max=context.get("input_tokens_max"),
            output_tokens_max=context.get("output_tokens_max"),
            cost_nanousd_max=context.get("cost_nanousd_max"),
            request_timeout_s=context.get("request_timeout_s"),
            must_fit=context.get("must_fit", False),
            cache_write=context.get("cache_write"),
            media=tuple(context["media"]) if "media" in context else None,
            tool_counts_max=dict(context.get("tool_counts_max", {})),
        )

    def _start_of(self, now: datetime) -> RunStarted:
        facts: dict[str, object] = {"root_run_id": self.run_id}
        if self._parent is not None:
            parent = self._parent.started
            facts = {name: getattr(parent, name) for name in _INHERITED}
            facts |= {"parent_run_id": parent.run_id, "root_run_id": parent.root_run_id}
        return RunStarted.model_validate(facts | self._context | {"started_at": now})

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._voice.heartbeat_s)
            now = self._voice.clock.now()
            beat = RunHeartbeat(run_id=self.run_id, at=now)
            event_id = derived_id(self.run_id, "beat", instant_text(now))
            await self._voice.pulse(Said(id=event_id, time=now, data=beat))

    async def _say_end(self, status: RunStatus, sentence: str | None) -> None:
        self._is_over = True
        data = self._end or RunFinished(
            run_id=self.run_id, status=status, error=sentence, ended_at=self._voice.clock.now()
        )
        event_id = derived_id(self.run_id, "finished", said=data)
        await self._voice.say(Said(id=event_id, time=data.ended_at, data=data))


def outcome_of(error: BaseException | None) -> tuple[RunStatus, str | None]:
    """How a run ended whose block was left this way. Pure.

    A refusal that nobody handled: `budget_exceeded` with the ledger's sentence (`failed` where it
    was no budget that refused). A cancellation or an interrupt from the keyboard: `cancelled`. Any
    other exception: `failed`, with the name of its class and never its text, which may be a
    provider's.
    """
    if error is None:
        return RunStatus.COMPLETED, None
    refused = _refusal_in(error)
    if refused is not None:
        refusal = refused.authorization.refusal
        is_budget = refusal is None or refusal.code == "budget_exceeded"
        status = RunStatus.BUDGET_EXCEEDED if is_budget else RunStatus.FAILED
        return status, refused.authorization.sentence
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
        return RunStatus.CANCELLED, None
    name = type(error).__name__[:_CLASS_NAME_CHARS_MAX]
    return RunStatus.FAILED, f"{name} was raised"


def _refusal_in(error: BaseException) -> BudgetRefused | None:
    """A refusal, alone or within the group that a task group raises."""
    if isinstance(error, BudgetRefused):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = (_refusal_in(inner) for inner in error.exceptions)
        return next((inner for inner in found if inner is not None), None)
    return None
