"""Whether the next request may be sent: narrowest cap first, refused when spent has reached it.

Recorded mode (the seed, *Budgets*): what counts is what is entered so far this month. A run may
pass its cap by the cost of one request; fifty runs at once by one request each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from contracts.ledger import Authorization, Authorize, CapLeft, CapScope, Refusal
from contracts.types import (
    NANOUSD_PER_USD,
    CapMode,
    OnUnreachable,
    UnpricedPolicy,
    instant_text,
)
from services.ledger.domain.months import next_month

LIMIT_DECIMALS_MIN = 2
SPENT_DECIMALS_MIN = 4
"""How a refusal writes amounts, at least (facts.md 2.2, item 4); never rounded."""


@dataclass(frozen=True, slots=True)
class Cap:
    """One cap with what is spent under it, ready to be compared."""

    scope: CapScope
    id: str
    name: str
    limit_nanousd: int
    spent_nanousd: int
    is_partial: bool
    month: str | None
    """Null for a run's own cap and a goal's, which have no month."""
    cap_revision: int | None
    held_nanousd: int | None = None
    """For requests under way; null in recorded mode, where nothing is held."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What an organization decided about its requests."""

    cap_mode: CapMode
    unpriced_policy: UnpricedPolicy
    on_unreachable: OnUnreachable


@dataclass(frozen=True, slots=True)
class Price:
    """What is known of the asked request's price before it is sent."""

    is_priced: bool
    is_free: bool
    cost_nanousd_max: int | None
    """The most that it can cost; null: not stated."""


def usd_text(nanousd: int, decimals_min: int) -> str:
    """Write an amount exactly, with at least so many decimals and no exponent."""
    sign = "-" if nanousd < 0 else ""
    whole, part = divmod(abs(nanousd), NANOUSD_PER_USD)
    digits = f"{part:09d}".rstrip("0").ljust(decimals_min, "0")
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def decide(
    *,
    asked: Authorize,
    caps: Sequence[Cap],
    policy: Policy,
    price: Price,
    at: datetime,
    refusal: Refusal | None = None,
) -> Authorization:
    """Decide one question against its caps, given narrowest first.

    `refusal`: one that stands whatever it costs. Units: nano-USD. Errors: none, a refusal is an
    answer.
    Source: design.md 4, *Ask first*; facts.md 2.2.
    """
    refusal = refusal or _refusal(asked, caps, policy, price)
    return Authorization(
        request_id=asked.request_id,
        allowed=refusal is None,
        refusal=refusal,
        sentence=sentence_of(refusal, caps),
        remaining=tuple(left_under(cap) for cap in caps),
        partial=any(cap.is_partial for cap in caps),
        # Nobody's silence is a yes where money is held (design.md 2, *Questions*).
        on_unreachable=(
            OnUnreachable.REFUSE if policy.cap_mode is CapMode.STRICT else policy.on_unreachable
        ),
        decided_at=at,
        unpriced=refusal is None and not price.is_priced,
    )


def refuse_unknown_organization(*, asked: Authorize, org: str, at: datetime) -> Authorization:
    """An organization that the ledger does not know is refused, not uncapped (design.md 4)."""
    return Authorization(
        request_id=asked.request_id,
        allowed=False,
        refusal=Refusal(code="organization_unknown", scope="organization", id=org, name=org),
        sentence=(
            f"The ledger does not know organization {org} (asked at {instant_text(at)}): "
            "create it, or ask again in a moment if it is new."
        ),
        on_unreachable=OnUnreachable.REFUSE,
        decided_at=at,
    )


def _refusal(asked: Authorize, caps: Sequence[Cap], policy: Policy, price: Price) -> Refusal | None:
    if not price.is_priced and policy.unpriced_policy is UnpricedPolicy.REFUSE:
        return Refusal(code="unpriced_model", name=asked.model)
    if price.is_free:
        return None
    for cap in caps:
        if cap.spent_nanousd >= cap.limit_nanousd or _does_not_fit(asked, cap, price):
            return refusal_by(cap, price.cost_nanousd_max if asked.must_fit else None)
    return None


def refusal_by(cap: Cap, asked_nanousd: int | None) -> Refusal:
    """That a cap binds, as data: spent and held apart."""
    return Refusal(
        code="budget_exceeded",
        scope=cap.scope,
        id=cap.id,
        name=cap.name,
        limit_nanousd=cap.limit_nanousd,
        spent_nanousd=cap.spent_nanousd,
        is_partial=cap.is_partial,
        held_nanousd=cap.held_nanousd,
        asked_nanousd=asked_nanousd,
    )


def _does_not_fit(asked: Authorize, cap: Cap, price: Price) -> bool:
    if not asked.must_fit:
        return False
    if price.cost_nanousd_max is None:
        # What may cost anything fits nowhere.
        return True
    return cap.spent_nanousd + price.cost_nanousd_max > cap.limit_nanousd


def left_under(cap: Cap, newly_held: int = 0) -> CapLeft:
    """What remains under a cap, once `newly_held` is held as well."""
    held = (cap.held_nanousd or 0) + newly_held
    return CapLeft(
        scope=cap.scope,
        id=cap.id,
        name=cap.name,
        limit_nanousd=cap.limit_nanousd,
        spent_nanousd=cap.spent_nanousd,
        remaining_nanousd=max(cap.limit_nanousd - cap.spent_nanousd - held, 0),
        is_partial=cap.is_partial,
        cap_revision=cap.cap_revision,
        held_nanousd=held,
    )


def sentence_of(refusal: Refusal | None, caps: Sequence[Cap]) -> str:
    """Say a decision to a person: what is true and what to do."""
    if refusal is None:
        return "Allowed."
    if refusal.code != "budget_exceeded":
        return _OTHER_REFUSALS[refusal.code].format(name=refusal.name, id=refusal.id)
    cap = next(cap for cap in caps if (cap.scope, cap.id) == (refusal.scope, refusal.id))
    floor = "at least " if cap.is_partial else ""
    spent = f"{floor}{usd_text(cap.spent_nanousd, SPENT_DECIMALS_MIN)} USD"
    limit = f"{usd_text(cap.limit_nanousd, LIMIT_DECIMALS_MIN)} USD"
    if cap.spent_nanousd < cap.limit_nanousd:
        return _does_not_fit_sentence(cap, refusal.asked_nanousd, spent, limit)
    if cap.month is None:
        return f"The {_cap_label(cap)} is exhausted: {spent} of {limit} are spent."
    return (
        f"{_cap_label(cap, capital=True)} exhausted: {spent} of {limit} are spent in {cap.month}. "
        f"Raise it, or wait for {next_month(cap.month)}."
    )


def _does_not_fit_sentence(cap: Cap, asked_nanousd: int | None, spent: str, limit: str) -> str:
    if cap.held_nanousd is None or asked_nanousd is None:
        return (
            f"This request must fit and may cost more than what remains of the {_cap_label(cap)} "
            f"({spent} of {limit} are spent), or its most is not known: state a smaller maximum."
        )
    most = f"{usd_text(asked_nanousd, SPENT_DECIMALS_MIN)} USD"
    held = f"{usd_text(cap.held_nanousd, SPENT_DECIMALS_MIN)} USD"
    return (
        f"This request may cost {most}, more than what remains of the {_cap_label(cap)}: {spent} "
        f"of {limit} are spent and {held} are held for requests under way. State a smaller "
        "maximum, or ask again when they are reported."
    )


_OTHER_REFUSALS = {
    "unpriced_model": (
        "The catalogue has no price for {name}, and this organization refuses models without one."
    ),
    "missing_context": (
        "This organization holds what a request may cost before it is sent, and the question does "
        "not bound it: state input_tokens_max (tool_counts_max for what is charged by the second), "
        "or cost_nanousd_max (over HTTP cost_usd_max), as for models that make images."
    ),
    "run_deleted": (
        "The platform deleted run {id}: it may not spend any more. Start a new run for new work."
    ),
    "delegate_archived": "Delegate {id} is archived: it takes no more requests.",
    "delegate_version_missing": (
        "Delegate {id} is pinned at version {name}, which was never published: publish it, or pin "
        "another version."
    ),
}


def _cap_label(cap: Cap, *, capital: bool = False) -> str:
    if cap.month is None:
        return f"budget of {cap.scope} {cap.id}"
    if cap.scope == "person":
        label = f"shared monthly budget of proactive work of {cap.name}"
    else:
        label = f"{cap.name} {cap.scope} monthly budget"
    return label[:1].upper() + label[1:] if capital else label
