"""Strict mode: what a request may cost at most is held before it is sent.

The one thing not to break: nothing is admitted when spent + held + asked would exceed a cap that
binds. What exceeds later is an overrun, so that spent + held <= limit + overruns always holds
(design.md 4). Pure; all amounts nano-USD. Decisions: ADR 0030 to 0032.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from contracts.holds import OverrunCause
from contracts.ledger import Authorization, Authorize, Refusal
from contracts.types import OnUnreachable, UnpricedPolicy
from services.ledger.domain.caps import Cap, Policy, left_under, refusal_by, sentence_of

GRANT_TOKENS_MIN: Final = 256
"""Less output than this helps nobody: it is refused instead of granted."""
GRANT_TOKENS_MAX: Final = 8_192
"""The most output that is granted to an asker who names no limit."""
GRANT_SHARE: Final = 8
"""A grant takes at most this part of what remains, so that those who ask beside it fit, too."""
TIMEOUT_S_DEFAULT: Final = 600
"""How long a request may take whose asker does not say."""
GRACE: Final = timedelta(seconds=60)
"""For the report to arrive after the request's own time has passed."""
HELD_MAX: Final = timedelta(hours=25)
"""However alive its run is, no hold is older: the longest timeout and an hour."""
NO_MONTH: Final = ""
"""The month of what has none: a run's own cap, a goal's sum."""
CapKey = tuple[str, str, str, str]
"""Organization, scope, id in it, month."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of a request's price before it is sent."""

    is_priced: bool
    is_free: bool
    most_nanousd: int | None
    """The most that it can cost, where the question bounds it."""
    cost_of: Callable[[int], int] | None
    """What it costs at most with so much output, where the output alone is unbounded."""


@dataclass(frozen=True, slots=True)
class Decided:
    """An answer, and what has to be held for it (0: nothing)."""

    answer: Authorization
    amount_nanousd: int = 0


def key_of(org: str, cap: Cap) -> CapKey:
    """The row that a cap is decided under."""
    return (org, cap.scope, cap.id, cap.month or NO_MONTH)


def decide_strict(
    *, asked: Authorize, caps: Sequence[Cap], policy: Policy, estimate: Estimate, at: datetime
) -> Decided:
    """Decide one question against its caps, narrowest first, with what is held under them.

    Errors: none, a refusal is an answer. A limit that the question names is held as it is; without
    one the answer grants `output_tokens_max` and that is held.
    """
    if not estimate.is_priced:
        if policy.unpriced_policy is UnpricedPolicy.REFUSE:
            return _refused(asked, caps, Refusal(code="unpriced_model", name=asked.model), at)
        return _marked(_within(asked, caps, estimate, at))
    return _within(asked, caps, estimate, at)


def _within(asked: Authorize, caps: Sequence[Cap], estimate: Estimate, at: datetime) -> Decided:
    """Decide by the caps what the organization's policy lets through."""
    if estimate.is_free or not caps:
        return Decided(_allowed(asked, caps, at))
    spent_up = next((cap for cap in caps if cap.spent_nanousd >= cap.limit_nanousd), None)
    if spent_up is not None:
        return _refused(asked, caps, refusal_by(spent_up, estimate.most_nanousd), at)
    if estimate.most_nanousd is not None:
        return _held(asked, caps, estimate.most_nanousd, None, at)
    if estimate.cost_of is not None:
        room = min(room_under(cap) for cap in caps)
        tokens = granted_tokens(estimate.cost_of, room)
        return _held(asked, caps, estimate.cost_of(tokens), tokens, at)
    if not estimate.is_priced:
        return _unpriced(asked, caps, at)
    return _refused(asked, caps, Refusal(code="missing_context", name=asked.model), at)


def already_paid(
    asked: Authorize, caps: Sequence[Cap], at: datetime, *, is_priced: bool
) -> Decided:
    """Answer a question whose request was reported before it: nothing is held for it any more."""
    said = {"already_settled": True, "sentence": "Allowed: it was reported before."}
    decided = Decided(_allowed(asked, caps, at).model_copy(update=said))
    return decided if is_priced else _marked(decided)


def room_under(cap: Cap) -> int:
    """What may still be held under a cap; below 0 where it is exceeded."""
    return cap.limit_nanousd - cap.spent_nanousd - (cap.held_nanousd or 0)


def granted_tokens(cost_of: Callable[[int], int], room_nanousd: int) -> int:
    """How much output is granted: the most whose cost fits into a share of the room.

    Never below `GRANT_TOKENS_MIN`, which the caller refuses where even that does not fit, and never
    above `GRANT_TOKENS_MAX`. `cost_of` does not fall with more output.
    """
    share = room_nanousd // GRANT_SHARE
    if cost_of(GRANT_TOKENS_MAX) <= share:
        return GRANT_TOKENS_MAX
    low, high = GRANT_TOKENS_MIN, GRANT_TOKENS_MAX
    while high - low > 1:
        middle = (low + high) // 2
        if cost_of(middle) <= share:
            low = middle
        else:
            high = middle
    return low


def excess(
    *, limit_nanousd: int, spent_nanousd: int, held_nanousd: int, overrun_nanousd: int
) -> int:
    """What a cap is exceeded by beyond the overruns that are recorded; 0: by nothing."""
    return max(spent_nanousd + held_nanousd - limit_nanousd - overrun_nanousd, 0)


def expires_at(at: datetime, timeout_s: int | None) -> datetime:
    """Until when a hold made now waits for its report."""
    return at + timedelta(seconds=timeout_s or TIMEOUT_S_DEFAULT) + GRACE


def prolonged(*, held_at: datetime, heard_at: datetime | None, until: datetime) -> datetime | None:
    """When a hold that is due is due again, since its run was heard of; None: it expires.

    `until`: all that was said before it is handled. A run that speaks within the grace before it
    may still be waiting for its provider.
    """
    if heard_at is None or heard_at + GRACE <= until:
        return None
    later = min(heard_at + GRACE, held_at + HELD_MAX)
    return later if later > until else None


@dataclass(frozen=True, slots=True)
class Paid:
    """What one request of a batch added, beside what was held for it."""

    request_id: str
    cost_nanousd: int
    held_nanousd: int | None
    """Null: nothing was held, or no more."""
    was_closed: bool
    """Its hold had expired or was voided before."""
    counts_in: frozenset[tuple[str, str]]
    """Scopes, with ids, that hold its entries."""
    held_under: tuple[CapKey, ...] = ()
    """The caps that were asked about when it was held."""

    def excess_under(self, cap: CapKey) -> int:
        """By how much it exceeds what was held for it under a cap."""
        held = self.held_nanousd if cap in self.held_under else None
        return self.cost_nanousd - (held or 0)

    def cause_under(self, cap: CapKey) -> OverrunCause:
        """Why it exceeds a cap."""
        if self.held_nanousd is None:
            return "settled_late" if self.was_closed else "unheld_usage"
        if cap in self.held_under:
            return "actual_above_hold"
        if any(held[1:3] == cap[1:3] for held in self.held_under):
            # It was held in the month of its authorization, and this one bears it as well.
            return "settled_late"
        # Held under another agent's cap, or when nobody had set this one yet.
        is_elsewhere = any(held[1] == cap[1] for held in self.held_under)
        return "reattributed" if is_elsewhere else "unheld_usage"


def cause_of(paid: Iterable[Paid], cap: CapKey) -> tuple[OverrunCause, str | None]:
    """Why a batch of reports exceeded a cap, and the request in it that did most of it."""
    worst = max(
        (each for each in paid if cap[1:3] in each.counts_in),
        key=lambda each: (each.excess_under(cap), each.request_id),
        default=None,
    )
    if worst is None or worst.excess_under(cap) <= 0:
        return "reattributed", None
    return worst.cause_under(cap), worst.request_id


def _held(
    asked: Authorize, caps: Sequence[Cap], amount: int, tokens: int | None, at: datetime
) -> Decided:
    binding = next((cap for cap in caps if room_under(cap) < amount), None)
    if binding is not None:
        return _refused(asked, caps, refusal_by(binding, amount), at)
    answer = _allowed(asked, caps, at, held=amount)
    granted = tokens if tokens is not None else asked.output_tokens_max
    return Decided(
        answer.model_copy(
            update={
                # What costs nothing at most has no row: there is nothing to let go of.
                "hold_id": asked.request_id if amount else None,
                "held_nanousd": amount,
                "output_tokens_max": granted,
            }
        ),
        amount,
    )


def _unpriced(asked: Authorize, caps: Sequence[Cap], at: datetime) -> Decided:
    """Nobody knows its price: what remains has to be more than nothing, and nothing is held."""
    binding = next((cap for cap in caps if asked.must_fit or room_under(cap) <= 0), None)
    if binding is not None:
        return _refused(asked, caps, refusal_by(binding, None), at)
    return Decided(_allowed(asked, caps, at))


def _marked(decided: Decided) -> Decided:
    """Say of what is allowed without a price that what is spent will be a floor."""
    if not decided.answer.allowed:
        return decided
    marks = {"unpriced": True, "partial": True}
    return Decided(decided.answer.model_copy(update=marks), decided.amount_nanousd)


def _allowed(asked: Authorize, caps: Sequence[Cap], at: datetime, held: int = 0) -> Authorization:
    return Authorization(
        request_id=asked.request_id,
        allowed=True,
        sentence="Allowed.",
        remaining=tuple(left_under(cap, held) for cap in caps),
        partial=any(cap.is_partial for cap in caps),
        on_unreachable=OnUnreachable.REFUSE,
        decided_at=at,
    )


def _refused(asked: Authorize, caps: Sequence[Cap], refusal: Refusal, at: datetime) -> Decided:
    return Decided(
        Authorization(
            request_id=asked.request_id,
            allowed=False,
            refusal=refusal,
            sentence=sentence_of(refusal, caps),
            remaining=tuple(left_under(cap) for cap in caps),
            partial=any(cap.is_partial for cap in caps),
            # Nobody's silence is a yes where money is held (design.md 2, *Questions*).
            on_unreachable=OnUnreachable.REFUSE,
            decided_at=at,
        )
    )
