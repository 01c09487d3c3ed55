"""`authorize`: may this request be sent? Decided in groups, kept as one row per request.

Recorded mode reads what is entered and locks nothing: a cap is a ceiling on recorded spend
(the seed, *Se aplica antes de la petición*).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from contracts.errors import AlreadyExists, Fault, Rejected
from contracts.ledger import Authorization
from contracts.types import CapMode
from services.ledger.domain.caps import decide, refuse_unknown_organization
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
from services.ledger.requests.holding import (
    Holding,
    needs_lock,
    pending_of,
    refusal_of_delegate,
)
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
        made = {key: self._decide_one(asked, facts, now) for key, asked in fresh.items()}
        locking |= {key: fresh[key] for key in made if needs_lock(fresh[key], made[key], facts)}
        plain = {key: asked for key, asked in fresh.items() if key not in locking}
        if plain:
            found |= {key: (asked.digest, made[key]) for key, asked in plain.items()}
            found |= await _save(connection, plain, made, facts, now)
        return found, locking

    async def _decide_locked(
        self, connection: Connection, group: Mapping[RequestKey, Asked], now: datetime
    ) -> dict[RequestKey, Kept]:
        """Decide questions that hold money or are counted, with caps and modes standing still."""
        async with connection.transaction():
            await share_directories(connection, {asked.org for asked in group.values()})
            known = await self._foresight.load(connection, group.values(), now)
            found = await self._holding.repeat(connection, known.decided)
            self._remember(known)
            fresh = {key: asked for key, asked in group.items() if key not in found}
            facts = await load_facts(connection, known, fresh.values(), now)
            made = {key: self._decide_one(asked, facts, now) for key, asked in fresh.items()}
            # Runs are locked before rates and caps are, by everybody (`store/holds.py`).
            kept = [fresh[key] for key in _decisions(made, facts)]
            books = await _enter_runs(connection, _runs_spoken_of(kept, facts, now), facts, now)
            plan = await self._holding.plan(connection, pending_of(fresh, made, facts), now)
            made |= plan.answers
            # After the plan: it locks the rows of caps, all of them at once.
            await note_described(connection, books, facts.organizations, now)
            lost = await _save(connection, fresh, made, facts, now)
            await self._holding.place(connection, plan, lost)
        return found | {key: (fresh[key].digest, made[key]) for key in fresh} | lost

    def _remember(self, known: Known) -> None:
        """Note which organizations are strict: only a hint, the mode is read again under lock."""
        if len(self._strict) > STRICT_REMEMBERED_MAX:
            self._strict.clear()
        for org, organization in known.organizations.items():
            if organization.policy.cap_mode is CapMode.STRICT:
                self._strict.add(org)
            else:
                self._strict.discard(org)

    def _decide_one(self, asked: Asked, facts: Facts, now: datetime) -> Authorization | Fault:
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
        price = facts.prices[asked.key] = price_question(self._book, asked.data, at=now)
        return decide(
            asked=asked.data,
            refusal=refusal_of_deleted(asked, facts) or refusal_of_delegate(asked, facts),
            caps=caps_over(asked, organization, facts),
            policy=organization.policy,
            price=price,
            at=now,
        )


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
    kept = {key: answer for key, answer in _decisions(made, facts).items() if key in fresh}
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
    """Answers to keep. Unknown organizations, faults and what came too often may be asked again."""
    return {
        key: answer
        for key, answer in made.items()
        if key[0] in facts.organizations
        and not isinstance(answer, Fault)
        and answer.retry_after_s is None
    }


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
