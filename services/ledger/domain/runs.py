"""What a run is: its start, its end and its signs of life, in any order, give the same run.

A run that is heard of before its start is *provisional*: it is billed and shown, with the earliest
sign of it as its start. Among several starts the smallest (started_at, digest) holds, among several
ends the greatest (ended_at, status, digest); both orders are fixed, so that replays agree.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from contracts.channel import RunFinished, RunStarted
from contracts.ledger import Authorize
from contracts.types import RunStatus

END_ORDER: tuple[RunStatus, ...] = (
    RunStatus.COMPLETED,
    RunStatus.CANCELLED,
    RunStatus.GUARDRAIL_BLOCKED,
    RunStatus.LOOP_STOPPED,
    RunStatus.BUDGET_EXCEEDED,
    RunStatus.FAILED,
)
"""Of two ends at one instant the later in this list holds: the worse news is not hidden."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the ledger knows of a run, its sums aside."""

    run_id: str
    channel_id: str
    root_run_id: str
    """The root that holds: where the chain of said roots ends."""
    said_root_run_id: str
    """The root that its start or a question named; itself until then."""
    provisional: bool = True
    parent_run_id: str | None = None
    delegation_id: str | None = None
    agent_id: str | None = None
    agent_version: str | None = None
    user_id: str | None = None
    started_by_user_id: str | None = None
    surface: str | None = None
    budget_nanousd: int | None = None
    conversation_id: str | None = None
    project_id: str | None = None
    environment_id: str | None = None
    exposure_id: str | None = None
    routine_id: str | None = None
    goal_id: str | None = None
    system_role: str | None = None
    model: str | None = None
    provider: str | None = None
    key_id: str | None = None
    asked_in_chat: dict[str, Any] | None = None
    status: str = RunStatus.RUNNING.value
    error: str | None = None
    tools: tuple[str, ...] = ()
    missing_delegates: int = 0
    started_at: datetime | None = None
    first_sign_at: datetime | None = None
    last_sign_at: datetime | None = None
    """By the publisher's clock; of a root, also the signs of what is in its tree."""
    heard_at: datetime | None = None
    """The same by the clock of the stream that stored it; what silence is measured by."""
    own_first_sign_at: datetime | None = None
    own_last_sign_at: datetime | None = None
    own_heard_at: datetime | None = None
    """Its own signs alone: what a root shows again when a run turns out not to be in its tree."""
    ended_at: datetime | None = None
    start_digest: str | None = None
    end_digest: str | None = None
    """Of the end that its channel said; null while it said none."""
    moved_to: str | None = None
    """`parked` or `resumed`, whichever was last."""
    moved_at: datetime | None = None
    moved_digest: str | None = None
    reaped_at: datetime | None = None
    """When the newest verdict on its silence was made."""
    reaped_sign_at: datetime | None = None
    """The last sign of life that this verdict knew; it holds until there is a later one."""
    deleted_at: datetime | None = None
    """Since when its platform has no such run; the earliest word of it."""
    cut_run_ids: tuple[str, ...] = ()
    """Runs at or above this one whose parent was deleted, nearest first: the first is its root."""
    revision: int = 0
    counted_agents: tuple[str, ...] = ()
    """Whose months hold this run's entries now; moved when its context becomes known."""
    counted_departments: tuple[str, ...] = ()
    """The same for departments; moved as well when who belonged to them becomes known."""
    counted_person: str | None = None
    """Whose budget of proactive work holds this run's entries now."""
    counted_routine: str | None = None
    """The routine whose months hold them."""
    counted_goal: str | None = None
    """The goal whose sum holds them."""

    @property
    def is_root(self) -> bool:
        """Whether its figure is its whole tree."""
        return self.root_run_id == self.run_id

    @property
    def is_cut(self) -> bool:
        """Whether its parent was deleted: it shows neither parent nor delegation any more."""
        return self.cut_run_ids[:1] == (self.run_id,)

    @property
    def named_root_run_id(self) -> str:
        """Where the way to its root goes next: itself where it ends here."""
        return self.cut_run_ids[0] if self.cut_run_ids else self.said_root_run_id

    @property
    def shown_parent_run_id(self) -> str | None:
        """The parent that people read of; none where it was deleted."""
        return None if self.is_cut else self.parent_run_id

    @property
    def counted_scopes(self) -> tuple[tuple[str, str], ...]:
        """Whose months hold this run's entries now, the organization's aside."""
        return (
            *(("agent", agent) for agent in self.counted_agents),
            *(("department", department) for department in self.counted_departments),
            *(
                (scope, scope_id)
                for scope, scope_id in (
                    ("person", self.counted_person),
                    ("routine", self.counted_routine),
                    ("goal", self.counted_goal),
                )
                if scope_id is not None
            ),
        )

    @property
    def shown_start(self) -> datetime | None:
        """What windows select by: the start, or the earliest sign while there is none."""
        return self.started_at or self.first_sign_at


def unheard(run_id: str, channel_id: str) -> Run:
    """A run that is spoken of and has not said anything yet: its own root."""
    return Run(run_id=run_id, channel_id=channel_id, root_run_id=run_id, said_root_run_id=run_id)


def saw_sign(run: Run, at: datetime, heard_at: datetime) -> Run:
    """Note a sign of life (or of death) of a run, and when its stream stored it."""
    first = min(run.own_first_sign_at, at) if run.own_first_sign_at else at
    last = max(run.own_last_sign_at, at) if run.own_last_sign_at else at
    heard = max(run.own_heard_at, heard_at) if run.own_heard_at else heard_at
    if (first, last, heard) != (run.own_first_sign_at, run.own_last_sign_at, run.own_heard_at):
        run = replace(run, own_first_sign_at=first, own_last_sign_at=last, own_heard_at=heard)
    return showed_sign(run, at, heard_at)


def showed_sign(run: Run, at: datetime, heard_at: datetime) -> Run:
    """Let a root be seen with a sign of life of its tree."""
    first = min(run.first_sign_at, at) if run.first_sign_at else at
    last = max(run.last_sign_at, at) if run.last_sign_at else at
    heard = max(run.heard_at, heard_at) if run.heard_at else heard_at
    if (first, last, heard) == (run.first_sign_at, run.last_sign_at, run.heard_at):
        return run
    return replace(run, first_sign_at=first, last_sign_at=last, heard_at=heard)


def shows_itself(run: Run) -> Run:
    """A run with its own signs of life alone."""
    return replace(
        run,
        first_sign_at=run.own_first_sign_at,
        last_sign_at=run.own_last_sign_at,
        heard_at=run.own_heard_at,
    )


def start_digest(started: RunStarted) -> str:
    """SHA-256 of what a start says."""
    return hashlib.sha256(started.model_dump_json().encode()).hexdigest()


def apply_start(run: Run, started: RunStarted) -> Run:
    """Let a start say what the run is; an end that arrived before it stands."""
    digest = start_digest(started)
    if run.started_at is not None and (run.started_at, run.start_digest or "") <= (
        started.started_at,
        digest,
    ):
        return run
    chat = started.asked_in_chat
    return replace(
        run,
        provisional=False,
        said_root_run_id=started.root_run_id,
        parent_run_id=started.parent_run_id,
        delegation_id=started.delegation_id,
        agent_id=started.agent_id,
        agent_version=started.agent_version,
        user_id=started.user_id,
        started_by_user_id=started.started_by_user_id,
        surface=started.surface.value,
        budget_nanousd=started.budget_nanousd,
        conversation_id=started.conversation_id,
        project_id=started.project_id,
        environment_id=started.environment_id,
        exposure_id=started.exposure_id,
        routine_id=started.routine_id,
        goal_id=started.goal_id,
        system_role=started.system_role,
        model=started.model,
        provider=started.provider,
        key_id=started.key_id,
        asked_in_chat=chat.model_dump() if chat else None,
        started_at=started.started_at,
        start_digest=digest,
    )


def apply_end(run: Run, finished: RunFinished) -> Run:
    """Let an end replace an earlier one."""
    digest = hashlib.sha256(finished.model_dump_json().encode()).hexdigest()
    rank = (
        finished.ended_at,
        END_ORDER.index(finished.status),
        # The same end said again once a missing delegate's report was found.
        -finished.missing_delegates,
        digest,
    )
    if (
        run.end_digest is not None
        and run.ended_at is not None
        and (
            run.ended_at,
            END_ORDER.index(RunStatus(run.status)),
            -run.missing_delegates,
            run.end_digest or "",
        )
        >= rank
    ):
        return run
    return replace(
        run,
        status=finished.status.value,
        error=finished.error,
        tools=finished.tools,
        missing_delegates=finished.missing_delegates,
        ended_at=finished.ended_at,
        end_digest=digest,
    )


def provisional_from(
    asked: Authorize, *, run_id: str, root_run_id: str, channel_id: str, at: datetime
) -> Run:
    """The run that a question speaks of before its start has arrived."""
    return Run(
        run_id=run_id,
        channel_id=channel_id,
        root_run_id=root_run_id,
        said_root_run_id=asked.root_run_id or run_id,
        agent_id=asked.agent_id,
        user_id=asked.user_id,
        started_by_user_id=asked.started_by_user_id,
        surface=asked.surface.value if asked.surface is not None else None,
        routine_id=asked.routine_id,
        goal_id=asked.goal_id,
        budget_nanousd=asked.run_budget_nanousd,
        first_sign_at=at,
        last_sign_at=at,
        heard_at=at,
        own_first_sign_at=at,
        own_last_sign_at=at,
        own_heard_at=at,
    )


def describe(run: Run, said: Run) -> Run:
    """Let a question say what a run is of which nobody has said it; a start has the last word.

    One that was failed for its silence waits for its start: another root might reopen it.
    """
    is_open = run.provisional and run.agent_id is None and run.reaped_at is None
    if not is_open or run.channel_id != said.channel_id:
        return run
    return replace(
        run,
        said_root_run_id=said.said_root_run_id,
        agent_id=said.agent_id,
        user_id=said.user_id,
        started_by_user_id=said.started_by_user_id,
        surface=said.surface,
        routine_id=said.routine_id,
        goal_id=said.goal_id,
        budget_nanousd=said.budget_nanousd,
    )


def agents_of(run: Run, root: Run | None) -> tuple[str, ...]:
    """Whose months a run's entries count in (design.md 4, *Facts*).

    The agent that the entries are billed to and the agent that started the tree, each once. Work of
    the platform itself (`system_role`) is in no agent's month.
    """
    if run.system_role is not None or (root is not None and root.system_role is not None):
        return ()
    agents = {run.agent_id, root.agent_id if root is not None else None}
    return tuple(sorted(agent for agent in agents if agent is not None))
