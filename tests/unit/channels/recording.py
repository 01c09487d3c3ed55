"""Transcript lines, a transport that remembers, and a run to say through it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from contracts.channel import Tokens
from contracts.ledger import Authorization, Authorize
from contracts.types import OnUnreachable, RunStatus, Surface
from services.channels.errors import RiendaUnreachable
from services.channels.run import RunContext
from services.channels.transport import Outcome, Said, Verdict

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
DEADLINE_S = 10.0
TOKENS = Tokens(input=100, output=20)
NOBODY = RiendaUnreachable("nobody there")
CONTEXT: RunContext = {
    "run_id": "r1",
    "agent_id": "a1",
    "user_id": "u1",
    "started_by_user_id": "u2",
    "surface": Surface.SLACK,
    "budget_nanousd": 5_000_000,
    "conversation_id": "c1",
}
SECOND: RunContext = {**CONTEXT, "run_id": "r2"}


@dataclass
class Lines:
    """Writes transcript lines, one second apart; line uuids are `l1`, `l2` and so on."""

    session: str = "s1"
    written: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, **fields: Any) -> dict[str, Any]:
        number = len(self.written) + 1
        line = {
            "type": kind,
            "uuid": f"l{number}",
            "sessionId": self.session,
            "timestamp": (START + timedelta(seconds=number)).isoformat(),
        } | fields
        self.written.append(line)
        return line

    def user(self, content: Any, **fields: Any) -> dict[str, Any]:
        return self.add("user", message={"role": "user", "content": content}, **fields)

    def answer(self, request: str, *, output: int = 10, **fields: Any) -> dict[str, Any]:
        usage = {"input_tokens": 5, "output_tokens": output} | fields.pop("usage", {})
        content = fields.pop("content", [{"type": "text", "text": "words"}])
        model = fields.pop("model", "claude-opus-4-6")
        message = {"id": request, "model": model, "content": content, "usage": usage}
        return self.add("assistant", message=message, **fields)

    def result(self, **fields: Any) -> dict[str, Any]:
        return self.user(
            [{"type": "tool_result", "tool_use_id": "t1", "content": "done"}], **fields
        )

    def save(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in self.written))
        return path


class RecordingTransport:
    """Keeps what is said by id, as a stream with a window of duplicates does.

    `failures` holds errors to raise, one per call, before anything is taken again; `answer` builds
    the answer to a question.
    """

    def __init__(self) -> None:
        self.said: dict[str, Said] = {}
        self.calls: list[Sequence[Said]] = []
        self.asked: list[Authorize] = []
        self.voided: list[str] = []
        self.failures: list[Exception | None] = []
        self.refusals: dict[str, tuple[str, str]] = {}
        """Name of an event in the catalogue: reason and message."""
        self.answer: Callable[[Authorize], Authorization] = allowed

    async def open(self) -> None:
        self._fail()

    async def close(self) -> None:
        return None

    async def publish(self, events: Sequence[Said]) -> list[Outcome]:
        self._fail()
        self.calls.append(events)
        return [self._take(event) for event in events]

    async def authorize(self, question: Authorize, *, timeout_s: float) -> Authorization:
        self._fail()
        self.asked.append(question)
        return self.answer(question)

    async def void_hold(self, request_id: str, *, timeout_s: float) -> None:
        self._fail()
        self.voided.append(request_id)

    def of(self, name: str) -> list[Any]:
        """The data of every event of this name, in the order in which it was first said."""
        return [said.data for said in self.said.values() if said.event.name == name]

    def _take(self, event: Said) -> Outcome:
        event.envelope(source="test", org="acme")
        if event.event.name in self.refusals:
            reason, message = self.refusals[event.event.name]
            return Outcome(event.id, Verdict.REFUSED, reason, message)
        if event.id in self.said:
            return Outcome(event.id, Verdict.DUPLICATE)
        self.said[event.id] = event
        return Outcome(event.id, Verdict.ACCEPTED)

    def _fail(self) -> None:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure


def allowed(question: Authorize) -> Authorization:
    return Authorization(
        request_id=question.request_id,
        allowed=True,
        sentence="Within every cap.",
        on_unreachable=OnUnreachable.REFUSE,
        decided_at=START,
    )


def end_of(transport: Any) -> tuple[RunStatus, str | None]:
    (end,) = transport.of("run_finished")
    return end.status, end.error


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0)
