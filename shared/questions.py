"""Questions over request/reply: asking with a deadline, answering with typed errors.

Who asks stands in the subject, proved by publish rights; a body that claims something else is not
read. Where the question crossed accounts the server says the asker's account as well, and it must
agree. A question without a reply subject is ignored: it came through another import (ADR 0003).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import nats.errors
from pydantic import BaseModel, ValidationError

from contracts.bootstrap import org_account, room_account
from contracts.catalog import QuestionType, answer_model, ask_model, find_question
from contracts.envelope import BODY_BYTES_MAX, Actor, AnswerError, invalid_from
from contracts.errors import Fault, Forbidden, Invalid, Retryable, fault_from
from contracts.subjects import Asked, question_subject, read_question_subject
from contracts.types import Wire
from shared import metrics
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from shared.bus import Bus

T = TypeVar("T", bound=Wire)
ANSWER_BYTES_MAX = 900 * 1024
"""Below the server's payload limit of 1 MiB; pages keep answers far below."""
ASKING_MAX = 512
"""Questions that one process works on at once; more are answered `busy` at once."""
ASKING_OF_ONE_MAX = 256
"""The same for one organization: its flood leaves half of the places to the others."""
ANSWER_SHARE = 0.9
"""Of the asker's time: a refusal that arrives after it stopped waiting tells it nothing."""
TRIES_MAX = 2
ASKER_OF_DEPLOYMENT = "_"
REQUEST_INFO_HEADER = "Nats-Request-Info"
"""Set by the server on what crosses accounts, whatever the asker wrote there."""


class NobodyAnswers(Retryable):
    """No room answered before the deadline."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question as its handler sees it: data, and who asks for which organization."""

    data: Any
    asked: Asked
    actor: Actor | None

    @property
    def org(self) -> str:
        """The organization that is asked about; from the subject."""
        return self.asked.org


Answerer = Callable[[Question], Awaitable[Wire]]


class _ToldByServer(BaseModel):
    """What is read of `Nats-Request-Info`; the server writes more."""

    acc: str


class Asker:
    """Asks rooms. One per process."""

    def __init__(self, bus: Bus, *, name: str) -> None:
        """Ask as room `name`."""
        self._bus = bus
        self._name = name

    async def ask(  # noqa: PLR0913
        self,
        room: str,
        question: str,
        data: Wire,
        answer: type[T],
        *,
        org: str,
        actor: Actor | None = None,
        timeout_s: float = 1.0,
    ) -> T:
        """Ask, once more if nobody answered (questions are idempotent), and read the answer.

        Raises:
            NobodyAnswers: both tries passed their deadline, or no responder is there.
            Fault: what the room answered.
        """
        kind = find_question(room, question)
        subject = question_subject(kind, org, "room", self._name)
        frame = ask_model(kind.ask)(data=data, actor=actor, timeout_ms=int(timeout_s * 1000))
        body = frame.model_dump_json().encode()
        last: Exception | None = None
        for _ in range(TRIES_MAX):
            try:
                reply = await self._bus.client.request(subject, body, timeout=timeout_s)
            except (nats.errors.Error, TimeoutError, OSError) as error:
                last = error
                # No responder at all answers at once; a room that restarts needs a moment.
                if isinstance(error, nats.errors.NoRespondersError):
                    await asyncio.sleep(timeout_s / 4)
            else:
                return _read_answer(reply.data, kind, answer)
        raise NobodyAnswers(
            f"{room} does not answer: try again", reason="nobody_answers", room=room
        ) from last


def _read_answer(body: bytes, kind: QuestionType, answer: type[T]) -> T:
    frame = answer_model(kind.answer).model_validate_json(body)
    if frame.error is not None:
        raise fault_from(
            frame.error.code, frame.error.message, frame.error.reason, dict(frame.error.details)
        )
    if not isinstance(frame.data, answer):
        raise Fault(f"{kind.room} answered {kind.name} with nothing")
    return frame.data


class Responder:
    """Answers a room's questions: `answers` maps a question's name to its function."""

    def __init__(self, bus: Bus, *, room: str, answers: Mapping[str, Answerer]) -> None:
        """Subscribe (queue group = room) when the bus starts."""
        self._bus = bus
        self._room = room
        self._answers = answers
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: Counter[str] = Counter()
        """Questions under way, by organization."""
        self._subscription: Subscription | None = None
        bus.at_start(self._subscribe)

    async def _subscribe(self) -> None:
        """Hear questions on the connection itself.

        The framework's subscriber hands each message to a thread four times before it is here, one
        message after another: most of an answer's time under load (ADR 0035).
        """
        self._subscription = await self._bus.client.subscribe(
            f"rienda.ask.*.*.*.{self._room}.*", queue=self._room, cb=self._on_message
        )

    async def _on_message(self, raw: Msg) -> None:
        if not raw.reply:
            return
        org = raw.subject.split(".", 3)[2]
        if len(self._tasks) >= ASKING_MAX or self._asking[org] >= ASKING_OF_ONE_MAX:
            await self._reply(raw, _BUSY)
            return
        self._asking[org] += 1
        task = asyncio.create_task(self._respond(raw))
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish, org))

    def _finish(self, org: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._asking[org] -= 1
        if not self._asking[org]:
            del self._asking[org]

    async def drain(self) -> None:
        """Take no more questions and wait for the answers under way."""
        if self._subscription is not None:
            with suppress(nats.errors.Error, TimeoutError, OSError):
                await self._subscription.drain()  # type: ignore[no-untyped-call]
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _respond(self, raw: Msg) -> None:
        started = time.perf_counter()
        name = raw.subject.rsplit(".", 1)[-1]
        try:
            reply = await self._answer(name, raw)
            outcome = "answered"
        except Fault as fault:
            reply, outcome = _error(fault), fault.code
        except TimeoutError:
            reply = _error(Retryable("no answer in time: ask again", reason="deadline_passed"))
            outcome = "deadline"
        except Exception as error:
            if is_transient(error):
                reply = _error(Retryable("the database is away", reason="database_away"))
                outcome = "database_away"
            else:
                logger().error("answer_failed", question=name, exc_info=error)
                reply, outcome = _error(Fault("the question failed; it is logged")), "bug"
        await self._reply(raw, reply)
        label = name if name in self._answers else "unknown"
        metrics.ANSWERED.labels(label, outcome).inc()
        metrics.ANSWER_S.observe(time.perf_counter() - started)

    async def _answer(self, name: str, raw: Msg) -> bytes:
        kind = find_question(self._room, name)
        asked = read_question_subject(raw.subject)
        _require_account(raw, asked)
        if asked.kind == "channel" and not kind.asked_by_channels:
            raise Forbidden(f"a channel does not ask {name}", reason="not_for_channels")
        if len(raw.data) > BODY_BYTES_MAX:
            raise Invalid("the question is too large", reason="oversized")
        try:
            frame = ask_model(kind.ask).model_validate_json(raw.data)
        except ValidationError as error:
            raise invalid_from(error) from None
        # Fields of the actor are the gateway's to stamp (design.md 2, *Who may do what*).
        from_gateway = asked.kind == "room" and asked.asker == "gateway"
        question = Question(frame.data, asked, frame.actor if from_gateway else None)
        async with asyncio.timeout(ANSWER_SHARE * frame.timeout_ms / 1000):
            data = await self._answers[name](question)
        body = answer_model(kind.answer)(data=data).model_dump_json().encode()
        if len(body) > ANSWER_BYTES_MAX:
            raise Fault(f"the answer to {name} has {len(body)} bytes: ask for a smaller page")
        return body

    async def _reply(self, raw: Msg, body: bytes) -> None:
        # Not `Msg.respond`: it echoes the asker's headers.
        await self._bus.client.publish(raw.reply, body)


def _require_account(raw: Msg, asked: Asked) -> None:
    """Compare the server's word on the asker with the subject: the second proof.

    Without the header the asker shares the room's account, which is the room itself, or all of a
    server of somebody else's.
    """
    told = (raw.headers or {}).get(REQUEST_INFO_HEADER)
    if told is None:
        return
    own = org_account(asked.org) if asked.kind == "channel" else room_account(asked.asker)
    try:
        account = _ToldByServer.model_validate_json(told).acc
    except ValidationError:
        account = None
    if account != own:
        raise Forbidden("the question's subject names somebody else", reason="not_for_you")


def _error(fault: Fault) -> bytes:
    error = AnswerError(
        code=fault.code, reason=fault.reason, message=fault.message, details=fault.details
    )
    return answer_model(Wire)(error=error).model_dump_json().encode()


_BUSY = _error(Retryable("too many questions at once", reason="busy"))
"""Made once: under a flood it is most of what is said."""
