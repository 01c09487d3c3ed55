"""`authorize`: may this request be sent? Decided in groups, kept as one row per request.

Recorded mode reads what is entered and locks nothing: a cap is a ceiling on recorded spend
(the seed, *Se aplica antes de la petición*).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final

from contracts.errors import AlreadyExists, Fault, Rejected
from contracts.ledger import Authorization
from contracts.types import CapMode
from services.ledger.domain.caps import refuse_unknown_organization
from services.ledger.domain.pricing import price_question
from services.ledger.domain.runs import Run, provisional_from, saw_sign, unheard
from services.ledger.requests.describing import (
    describe_runs,
    enter_runs,
    hold_described,
    note_described,
)
from services.ledger.requests.facts import (
    Asked,
    Facts,
    Foresight,
    caps_over,
    load_facts,
    refusal_of_deleted,
)
from services.ledger.requests.holding import Holding, Pending, refusal_of_delegate
from services.ledger.requests.stopping import say_stops
from services.ledger.store import admissions
from services.ledger.store.admissions import Admission
from services.ledger.store.departments import share_directories
from services.ledger.store.questions import Known, RequestKey
from shared.group import Group

if TYPE_CHECKING:
    from datetime import datetime

    from services.ledger.domain.books import Books, RunKey
    from services.ledger.domain.rate_cards import RateBook
    from shared.clock import Clock
    from shared.db import Connection, Database
    from shared.questions import Question


STRICT_REMEMBERED_MAX: Final = 1_000
"""Organizations that are remembered to be in strict mode."""
Kept = tuple[bytes, Authorization | Fault]
"""A question's digest, and what it was answered."""


class Authorizer:
    """Answers `authorize`; run `group.run()` beside it."""

    def __init__(self, *, database: Database, book: RateBook, clock: Clock) -> None:
        """Decide with this book and clock."""
        self._database = database
        self._book = book
        self._clock = clock
        self._holding = Holding(book)
        self._foresight = Foresight()
        self._strict: set[str] = set()
        self.group: Group[Asked, Authorization | Fault] = Group(self._decide)

    async def answer_authorize(self, question: Question) -> Authorization:
        """Decide one question, together with those that wait beside it."""
        channel_id = question.asked.asker if question.asked.kind == "channel" else None
        if question.actor is not None:
            channel_id = question.actor.channel_id
        answer = await self.group.submit(Asked(question.org, channel_id, question.data))
        if isinstance(answer, Fault):
            raise answer
        return answer

    async def _decide(self, group: Sequence[Asked]) -> Sequence[Authorization | Fault]:
        now = self._clock.now()
        first: dict[RequestKey, Asked] = {}
        for asked in group:
            first.setdefault(asked.key, asked)
        # Of organizations that were strict a moment ago nothing is read before it is locked.
        locking = {key: asked for key, asked in first.items() if asked.org in self._strict}
        rest = {key: asked for key, asked in first.items() if key not in locking}
        found: dict[RequestKey, Kept] = {}
        async with self._database.connection() as connection:
            if rest:
                found, needing = await self._decide_unlocked(connection, rest, now)
                locking |= needing
            if locking:
                found |= await self._decide_locked(connection, locking, now)
        return [_repeat(asked, *found[asked.key]) for asked in group]

    async def _decide_unlocked(
        self, connection: Connection, group: Mapping[RequestKey, Asked], now: datetime
    ) -> tuple[dict[RequestKey, Kept], dict[RequestKey, Asked]]:
        """Decide what is decided by what is recorded alone; answer the others as they came."""
        known = await self._foresight.load(connection, group.values(), now)
        found = await self._holding.repeat(connection, known.decided)
        self._remember(known)
        locking = {
            key: asked
            for key, asked in group.items()
            if key not in found and asked.org in self._strict
        }
        fresh = {k: asked for k, asked in group.items() if k not in found and k not in locking}
        facts = await load_facts(connection, known, fresh.values(), now)
        judged = {key: self._judge(asked, facts, now) for key, asked in fresh.items()}
        made = {key: each for key, each in judged.items() if not isinstance(each, Pending)}
        locking |= {key: asked for key, asked in fresh.items() if key not in made}
        if made:
            plain = {key: fresh[key] for key in made}
            found |= {key: (asked.digest, made[key]) for key, asked in plain.items()}
            found |= await _save(connection, plain, made, facts, now)
        return found, locking

    async def _decide_locked(
        self, connection: Connection, group: Mapping[RequestKey, Asked], now: datetime
    ) -> dict[RequestKey, Kept]:
        """Decide questions that hold money or are counted, with caps and modes standing still."""
        while True:
            # Whoever overtook one has committed: it is found the next time.
            with suppress(_Overtaken):
                async with connection.transaction():
                    return await self._decide_under_lock(connection, group, now)

    async def _decide_under_lock(
        self, connection: Connection, group: Mapping[RequestKey, Asked], now: datetime
    ) -> dict[RequestKey, Kept]:
        await share_directories(connection, {asked.org for asked in group.values()})
        known = await self._foresight.load(connection, group.values(), now)
        found = await self._holding.repeat(connection, known.decided)
        self._remember(known)
        fresh = {key: asked for key, asked in group.items() if key not in found}
        if not fresh:
            return found
        facts = await load_facts(connection, known, fresh.values(), now)
        judged = {key: self._judge(asked, facts, now) for key, asked in fresh.items()}
        # Runs are locked before rates and caps are, by everybody (`store/holds.py`).
        kept = [fresh[key] for key, each in judged.items() if _is_kept(key, each, facts)]
        books = await _enter_runs(connection, _runs_spoken_of(kept, facts, now), facts, now)
        plan = await self._holding.plan(
            connection, [each for each in judged.values() if isinstance(each, Pending)], now
        )
        if plan.is_overtaken:
            raise _Overtaken
        made = {
            key: plan.answers[key] if isinstance(each, Pending) else each
            for key, each in judged.items()
        }
        rows = [
            _admission(fresh[key], answer, facts) for key, answer in _decisions(made, facts).items()
        ]
        if not await self._holding.keep(connection, plan, rows):
            raise _Overtaken
        await say_stops(connection, rows, now=now)
        # After the plan: it locks the rows of caps, all of them at once.
        await note_described(connection, books, facts.organizations, now)
        return found | {key: (fresh[key].digest, made[key]) for key in fresh}

    def _remember(self, known: Known) -> None:
        """Note which organizations are strict: only a hint, the mode is read again under lock."""
        if len(self._strict) > STRICT_REMEMBERED_MAX:
            self._strict.clear()
        for org, organization in known.organizations.items():
            if organization.policy.cap_mode is CapMode.STRICT:
                self._strict.add(org)
            else:
                self._strict.discard(org)

    def _judge(self, asked: Asked, facts: Facts, now: datetime) -> Authorization | Fault | Pending:
        """Decide a question, or say that it takes a lock: where money is held, or its rate counts.

        What is refused whatever is spent takes none.
        """
        organization = facts.organizations.get(asked.org)
        if organization is None:
            return refuse_unknown_organization(asked=asked.data, org=asked.org, at=now)
        for run_id in (asked.data.run_id, asked.data.root_run_id):
            run = facts.runs.get((asked.org, run_id or ""))
            if run is not None and run.channel_id != asked.channel_id:
                return Rejected(
                    f"run {run.run_id} belongs to another channel: use run ids of your own",
                    reason="run_of_other_channel",
                )
        one = Pending(
            org=asked.org,
            channel_id=asked.channel_id,
            asked=asked.data,
            policy=organization.policy,
            caps=caps_over(asked, organization, facts),
            month=facts.months[asked.org],
            price=price_question(self._book, asked.data, at=now),
            limited=facts.binding[facts.bearer_of(asked)].limited,
        )
        refusal = refusal_of_deleted(asked, facts) or refusal_of_delegate(asked, facts)
        if one.is_strict and refusal is None:
            return one
        answer = one.recorded(now, refusal)
        stands = answer.refusal is not None and answer.refusal.code != "budget_exceeded"
        return answer if stands or one.limited is None else one


class _Overtaken(Exception):
    """Another process decided a question of a group first."""


def _repeat(asked: Asked, digest: bytes, answer: Authorization | Fault) -> Authorization | Fault:
    return answer if digest == asked.digest else _conflict(asked)


def _conflict(asked: Asked) -> Fault:
    return AlreadyExists(
        f"request {asked.data.request_id} was asked before with other content, or by "
        "another channel: a new request needs a new id",
        reason="request_id_used",
    )


async def _save(
    connection: Connection,
    fresh: Mapping[RequestKey, Asked],
    made: Mapping[RequestKey, Authorization | Fault],
    facts: Facts,
    now: datetime,
) -> dict[RequestKey, Kept]:
    """Write decisions and the runs that they speak of; where another process was first, it stands.

    One statement is a transaction of its own: only more of them need one around them.
    """
    kept = _decisions(made, facts)
    rows = [_admission(fresh[key], answer, facts) for key, answer in kept.items()]
    new, described = _runs_spoken_of([fresh[key] for key in kept], facts, now)
    refuses = any(row.answer.refusal is not None for row in rows)
    async with connection.transaction() if new or described or refuses else nullcontext():
        books = await _enter_runs(connection, (new, described), facts, now)
        saved = await admissions.save(connection, rows)
        if refuses:
            decided = [row for row in rows if (row.org, row.request_id) in saved]
            await say_stops(connection, decided, now=now)
        await note_described(connection, books, facts.organizations, now)
    missing = kept.keys() - saved
    return dict(await admissions.load(connection, missing)) if missing else {}


def _decisions(
    made: Mapping[RequestKey, Authorization | Fault], facts: Facts
) -> dict[RequestKey, Authorization]:
    """Answers to keep."""
    return {
        key: answer
        for key, answer in made.items()
        if not isinstance(answer, Fault) and _is_kept(key, answer, facts)
    }


def _is_kept(key: RequestKey, judged: Authorization | Fault | Pending, facts: Facts) -> bool:
    """Unknown organizations, faults and what came too often may be asked again."""
    if isinstance(judged, Authorization) and judged.retry_after_s is not None:
        return False
    return key[0] in facts.organizations and not isinstance(judged, Fault)


async def _enter_runs(
    connection: Connection,
    spoken_of: tuple[Mapping[RunKey, Run], Mapping[RunKey, Run]],
    facts: Facts,
    now: datetime,
) -> Books:
    new, described = spoken_of
    books = await hold_described(connection, described)
    await enter_runs(connection, new, facts.runs)
    await describe_runs(connection, books, described, facts.organizations, now)
    return books


def _admission(asked: Asked, answer: Authorization, facts: Facts) -> Admission:
    return Admission(
        org=asked.org,
        request_id=asked.data.request_id,
        run_id=asked.data.run_id,
        channel_id=asked.channel_id,
        model=asked.data.model,
        month=facts.months[asked.org],
        digest=asked.digest,
        answer=answer,
    )


def _runs_spoken_of(
    decided: Iterable[Asked], facts: Facts, now: datetime
) -> tuple[dict[RunKey, Run], dict[RunKey, Run]]:
    """Runs that nobody has started yet: to enter as provisional, and to give a context."""
    new: dict[RunKey, Run] = {}
    described: dict[RunKey, Run] = {}
    for asked in decided:
        data = asked.data
        if data.run_id is None or asked.channel_id is None:
            continue
        root = data.root_run_id
        if (asked.org, data.run_id) not in facts.runs:
            known_root = facts.runs.get((asked.org, root or data.run_id))
            new[(asked.org, data.run_id)] = provisional_from(
                data,
                run_id=data.run_id,
                root_run_id=known_root.root_run_id if known_root else root or data.run_id,
                channel_id=asked.channel_id,
                at=now,
            )
        if root is not None and root != data.run_id and (asked.org, root) not in facts.runs:
            # Its own sign: the run that asks may turn out to be in another tree already.
            new.setdefault((asked.org, root), saw_sign(unheard(root, asked.channel_id), now, now))
        known = facts.runs.get((asked.org, data.run_id))
        if known is not None and known.provisional and known.agent_id is None:
            described[(asked.org, data.run_id)] = provisional_from(
                data,
                run_id=data.run_id,
                root_run_id=known.root_run_id,
                channel_id=asked.channel_id,
                at=now,
            )
    return new, described
