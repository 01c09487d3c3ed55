"""The part of `authorize` that locks: strict caps and rate limits, for a group of questions.

Recorded mode without rate limits never comes here. Order of what is locked: directories (shared,
before anything else), runs, rates, caps; the decisions' own rows and the holds follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from contracts.errors import Fault
from contracts.ledger import Authorization, Authorize, Refusal
from contracts.types import CapMode
from services.ledger.domain.caps import Cap, Policy, Price, decide, left_under
from services.ledger.domain.delegates import refuse_delegate
from services.ledger.domain.holds import (
    Decided,
    already_paid,
    decide_strict,
    expires_at,
    key_of,
)
from services.ledger.domain.pricing import estimate_question
from services.ledger.errors import HoldClosed
from services.ledger.requests.facts import Asked, Facts
from services.ledger.store import holds, request_rates
from services.ledger.store.holding import Locked, lock_and_read, save_decided
from services.ledger.store.holds import Hold, RequestKey

if TYPE_CHECKING:
    from datetime import datetime

    from services.ledger.domain.holds import CapKey
    from services.ledger.domain.rate_cards import RateBook
    from services.ledger.domain.request_rates import RequestRate
    from services.ledger.store.admissions import Admission
    from services.ledger.store.questions import Limited
    from services.ledger.store.request_rates import AgentKey
    from shared.db import Connection


class Pending(NamedTuple):
    """A question that cannot be decided by what is recorded alone."""

    org: str
    channel_id: str | None
    asked: Authorize
    policy: Policy
    caps: Sequence[Cap]
    month: str
    price: Price
    limited: Limited | None

    def recorded(self, now: datetime, refusal: Refusal | None = None) -> Authorization:
        """What the recorded mode answers: the answer, where only the rate is limited."""
        return decide(
            asked=self.asked,
            refusal=refusal,
            caps=self.caps,
            policy=self.policy,
            price=self.price,
            at=now,
        )

    @property
    def key(self) -> RequestKey:
        """What names the question."""
        return (self.org, self.asked.request_id)

    @property
    def is_strict(self) -> bool:
        """Whether money is held for it."""
        return self.policy.cap_mode is CapMode.STRICT

    @property
    def cap_keys(self) -> tuple[CapKey, ...]:
        """The rows that it is decided under."""
        return tuple(key_of(self.org, cap) for cap in self.strict_caps)

    @property
    def strict_caps(self) -> Sequence[Cap]:
        """The caps that money is held under for it."""
        return self.caps if self.is_strict else ()

    @property
    def agent_key(self) -> AgentKey | None:
        """Whose rate it counts in."""
        return None if self.limited is None else (self.org, self.limited.agent_id)


@dataclass(slots=True)
class Plan:
    """Answers of a group, and what is to be written for those that are kept."""

    answers: dict[RequestKey, Authorization] = field(default_factory=dict)
    holds: dict[RequestKey, Hold] = field(default_factory=dict)
    rates: dict[AgentKey, RequestRate] = field(default_factory=dict)
    moved: dict[CapKey, int] = field(default_factory=dict)
    """By how much what is held under caps changes in their rows."""
    is_overtaken: bool = False
    """Another process decided one of them meanwhile: its answer stands, all are decided anew."""


@dataclass(slots=True)
class _Group:
    """What a group is decided on, as it becomes decision by decision."""

    locked: Locked
    rates: dict[AgentKey, RequestRate]
    held: dict[CapKey, int] = field(default_factory=dict)

    def as_now(self, org: str, cap: Cap) -> Cap:
        """A cap with what is spent and held under it now."""
        key = key_of(org, cap)
        spent = self.locked.spent[key]
        return Cap(
            scope=cap.scope,
            id=cap.id,
            name=cap.name,
            limit_nanousd=cap.limit_nanousd,
            spent_nanousd=spent.nanousd,
            is_partial=spent.is_partial,
            month=cap.month,
            cap_revision=cap.cap_revision,
            held_nanousd=self.locked.states[key].held_nanousd + self.held.get(key, 0),
        )


class Holding:
    """Decides and holds, in the caller's transaction."""

    def __init__(self, book: RateBook) -> None:
        """Estimate with this book."""
        self._book = book

    async def repeat(
        self, connection: Connection, found: Mapping[RequestKey, tuple[bytes, Authorization]]
    ) -> dict[RequestKey, tuple[bytes, Authorization | Fault]]:
        """Answers that were given before, as they hold now: a closed hold covers nothing."""
        answers: dict[RequestKey, tuple[bytes, Authorization | Fault]] = dict(found)
        held = [key for key, (_, answer) in found.items() if answer.hold_id is not None]
        if not held:
            return answers
        states = await holds.load_states_of(connection, held)
        for key in held:
            digest, answer = found[key]
            match states.get(key):
                case "settled":
                    paid = answer.model_copy(update={"already_settled": True})
                    answers[key] = (digest, paid)
                case "expired" | "voided" as state:
                    answers[key] = (digest, HoldClosed(key[1], state))
        return answers

    async def plan(self, connection: Connection, pending: Sequence[Pending], now: datetime) -> Plan:
        """Decide a group in order of arrival; what is decided under stays locked."""
        plan = Plan()
        if not pending:
            return plan
        agents = {key for one in pending if (key := one.agent_key) is not None}
        keys = {key for one in pending for key in one.cap_keys}
        locked_rates = await request_rates.lock(connection, agents)
        requests = [one.key for one in pending]
        group = _Group(await lock_and_read(connection, keys, requests), locked_rates)
        if group.locked.decided:
            plan.is_overtaken = True
            return plan
        for one in pending:
            self._decide(plan, group, one, now)
        plan.moved = {
            key: group.held.get(key, 0) - folded for key, folded in group.locked.folded.items()
        }
        return plan

    def _decide(self, plan: Plan, group: _Group, one: Pending, now: datetime) -> None:
        decided = self._decided(group, one, now)
        second = int(now.timestamp())
        if decided.answer.allowed and one.limited is not None and one.agent_key is not None:
            rate = group.rates[one.agent_key]
            wait_s = rate.wait_s(second, one.limited.requests_per_minute)
            if wait_s:
                # Nothing is held for it: what remains is what remained.
                left = tuple(left_under(group.as_now(one.org, cap)) for cap in one.strict_caps)
                answer = decided.answer.model_copy(update={"remaining": left} if left else {})
                plan.answers[one.key] = _too_often(answer, one.limited, wait_s)
                return
            plan.rates[one.agent_key] = group.rates[one.agent_key] = rate.allow(second)
        plan.answers[one.key] = decided.answer
        if decided.amount_nanousd:
            for key in one.cap_keys:
                group.held[key] = group.held.get(key, 0) + decided.amount_nanousd
            plan.holds[one.key] = _hold(one, decided, now)

    def _decided(self, group: _Group, one: Pending, now: datetime) -> Decided:
        if not one.is_strict:
            return Decided(one.recorded(now))
        caps = [group.as_now(one.org, cap) for cap in one.caps]
        if one.key in group.locked.reported:
            # Paid for already: it is in what is spent.
            return already_paid(one.asked, caps, now, is_priced=one.price.is_priced)
        return decide_strict(
            asked=one.asked,
            caps=caps,
            policy=one.policy,
            estimate=estimate_question(self._book, one.asked, one.price, now),
            at=now,
        )

    async def keep(
        self, connection: Connection, plan: Plan, decisions: Sequence[Admission]
    ) -> bool:
        """Write decisions, their holds, and what agents were allowed; false: it was overtaken."""
        if not await save_decided(connection, decisions, plan.holds, plan.moved):
            return False
        if plan.rates:
            await request_rates.save(connection, plan.rates)
        return True


def refusal_of_delegate(asked: Asked, facts: Facts) -> Refusal | None:
    """That a delegate is archived or missing."""
    agent_id, root = asked.data.agent_id, facts.bearer_of(asked).agent_id
    if not facts.published or agent_id is None or root in (None, agent_id):
        return None
    return refuse_delegate(
        agent_id,
        facts.published.get((asked.org, agent_id)),
        facts.published.get((asked.org, root or "")),
    )


def _hold(one: Pending, decided: Decided, now: datetime) -> Hold:
    asked = one.asked
    granted = decided.answer.output_tokens_max if asked.output_tokens_max is None else None
    return Hold(
        org=one.org,
        request_id=asked.request_id,
        run_id=asked.run_id,
        channel_id=one.channel_id,
        model=asked.model,
        amount_nanousd=decided.amount_nanousd,
        output_tokens_max=granted,
        caps=one.cap_keys,
        month=one.month,
        held_at=now,
        expires_at=expires_at(now, asked.request_timeout_s),
    )


def _too_often(answer: Authorization, limited: Limited, wait_s: int) -> Authorization:
    """Refused for now. It is no decision to keep: the same question may be asked again."""
    limit = limited.requests_per_minute
    return Authorization(
        request_id=answer.request_id,
        allowed=False,
        refusal=Refusal(
            code="rate_limited",
            scope="agent",
            id=limited.agent_id,
            name=limited.name,
            requests_per_minute=limit,
        ),
        sentence=(
            f"Agent {limited.name} may send {limit} requests a minute and has: ask again in "
            f"{wait_s} s."
        ),
        remaining=answer.remaining,
        partial=answer.partial,
        on_unreachable=answer.on_unreachable,
        decided_at=answer.decided_at,
        retry_after_s=wait_s,
    )
