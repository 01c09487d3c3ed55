"""One provider request is one amount, however often and by whom it is reported (design.md 4).

`bill` is a function of the *set* of reports, so every order and every repetition of the same
reports bills the same. What is entered is always the difference between two bills.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from contracts.channel import Tokens, UsageReported
from contracts.ledger import EntryReason, PriceSource
from services.ledger.domain.amounts import NOTHING, Amount
from services.ledger.domain.prices import Priced

CLAIMS_PER_CHANNEL_MAX = 16
"""Runs and models of one channel that may claim one request; a further one is refused."""


@dataclass(frozen=True, slots=True)
class Report:
    """One usage report, priced: all that the bill of its request depends on."""

    channel_id: str
    run_id: str
    model: str
    billed_run_id: str
    kind: str
    provider: str
    """Empty: not recorded."""
    key_id: str
    """Empty: not recorded."""
    delegation_id: str | None
    turn_id: str | None
    month: str
    late_month: str
    """The month whose caps bear it as well because it came late; empty: it is not late."""
    authorized: bool
    """Whether its run asked for this request before it was sent, and was allowed to."""
    interrupted: bool
    tokens: tuple[int, ...]
    """In the order of `contracts.channel.Tokens`."""
    cost_nanousd: int
    priced: bool
    reason: EntryReason | None
    price_source: PriceSource
    price_set: str
    provider_amount: str | None
    provider_currency: str | None
    occurred_at: datetime
    billed_at: datetime
    digest: str

    @property
    def context(self) -> tuple[str, str, str]:
        """Who claims the request: the channel, the run and the model."""
        return (self.channel_id, self.run_id, self.model)

    @property
    def rank(self) -> tuple[bool, bool, int, int, str]:
        """The stated total order: usable counts, not interrupted, output, input, digest (ADR 7)."""
        return (
            self.reason != "bad_usage",
            not self.interrupted,
            self.tokens[1],
            self.tokens[0],
            self.digest,
        )


_REPORT_FIELDS = tuple(field.name for field in fields(Report))


@dataclass(frozen=True, slots=True)
class Claim:
    """What one context says about a request: its best report and its earliest time."""

    best: Report
    first_occurred_at: datetime
    channel_place: int
    """0 for the channel that claimed the request first, as it arrived here; then 1 and so on."""


@dataclass(frozen=True, slots=True)
class Line:
    """Where an amount is entered; what the breakdowns group by."""

    billed_run_id: str
    month: str
    provider: str
    model: str
    key_id: str
    kind: str
    late_month: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry to append: where, how much, and the report that explains it."""

    line: Line
    amount: Amount
    report: Report
    priced: bool
    reason: EntryReason | None


Claims = tuple[Claim, ...]
"""All claims on one request, in the order of their contexts."""


def report_digest(usage: UsageReported) -> str:
    """SHA-256 over what a report says; decides between equals, the same for every order."""
    return hashlib.sha256(usage.model_dump_json().encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known of a report besides what it says."""

    channel_id: str
    month: str
    late_month: str
    billed_at: datetime
    authorized: bool


def make_report(usage: UsageReported, priced: Priced, known: Circumstances) -> Report:
    """Bring a report, its price and its circumstances together.

    Impossible counts are kept on the entry of the report and add nothing to any sum.
    """
    tokens = usage.tokens
    cost = usage.provider_cost
    return Report(
        channel_id=known.channel_id,
        run_id=usage.run_id,
        model=usage.model,
        billed_run_id=usage.billed_run_id or usage.run_id,
        kind=usage.kind.value,
        provider=usage.provider or "",
        key_id=usage.key_id or "",
        delegation_id=usage.delegation_id,
        turn_id=usage.turn_id,
        month=known.month,
        late_month=known.late_month,
        authorized=known.authorized,
        interrupted=usage.interrupted,
        tokens=tuple(getattr(tokens, name) for name in Tokens.model_fields),
        cost_nanousd=priced.cost_nanousd,
        priced=priced.priced,
        reason=priced.reason,
        price_source=priced.price_source,
        price_set=priced.price_set,
        provider_amount=cost.amount if cost else None,
        provider_currency=cost.currency if cost else None,
        occurred_at=usage.occurred_at,
        billed_at=known.billed_at,
        digest=report_digest(usage),
    )


def merge(claims: Claims, report: Report) -> Claims:
    """Add a report to the claims on its request.

    Commutative, associative and idempotent but for the places of channels, which are those of
    their arrival: like a run, a request is the channel's that said it first (design.md 2).
    """
    by_context = {claim.best.context: claim for claim in claims}
    known = by_context.get(report.context)
    if known is None:
        places = {claim.best.channel_id: claim.channel_place for claim in claims}
        place = places.get(report.channel_id, len(places))
        by_context[report.context] = Claim(report, report.occurred_at, place)
    else:
        by_context[report.context] = Claim(
            max(known.best, report, key=lambda item: item.rank),
            min(known.first_occurred_at, report.occurred_at),
            known.channel_place,
        )
    return tuple(by_context[context] for context in sorted(by_context))


def owner_of(claims: Claims) -> Claim:
    """The claim that is billed (ADR 0007).

    One that was authorized goes first, then those of the channel that came first, then the
    earliest by the publisher's time; ties by run and model.
    """
    return min(
        claims,
        key=lambda claim: (
            not claim.best.authorized,
            claim.channel_place,
            claim.first_occurred_at,
            claim.best.context,
        ),
    )


def claims_of_channel(claims: Claims, channel_id: str) -> int:
    """How many claims on a request come from one channel."""
    return sum(claim.best.channel_id == channel_id for claim in claims)


def bill(claims: Claims) -> dict[Line, tuple[Amount, Claim]]:
    """What a request costs and where: the owner's best report; other claims are flagged at 0."""
    if not claims:
        return {}
    owner = owner_of(claims)
    billed: dict[Line, tuple[Amount, Claim]] = {}
    # The owner last: of two contexts that share a line it is the owner that explains it.
    for claim in sorted(claims, key=lambda item: item is owner):
        line = line_of(claim.best)
        amount = _amount(claim.best) if claim is owner else Amount(unpriced_count=1)
        before, _ = billed.get(line, (NOTHING, claim))
        billed[line] = (before + amount, claim)
    return billed


def line_of(report: Report) -> Line:
    """Where a report's amount is entered."""
    return Line(
        report.billed_run_id,
        report.month,
        report.provider,
        report.model,
        report.key_id,
        report.kind,
        report.late_month,
    )


def _amount(report: Report) -> Amount:
    counts = report.tokens if report.reason != "bad_usage" else (0,) * len(report.tokens)
    return Amount(
        report.cost_nanousd,
        1,
        0 if report.priced else 1,
        0,
        *counts,
    )


def draft_entries(before: Claims, after: Claims) -> list[Draft]:
    """The entries that lead from one bill to the next: one per line that changed."""
    old, new = bill(before), bill(after)
    drafts = []
    for line in {**old, **new}:
        was, was_claim = old.get(line, (NOTHING, None))
        now, now_claim = new.get(line, (NOTHING, None))
        difference = now - was
        if not difference:
            continue
        claim = now_claim or was_claim
        if claim is None:
            raise AssertionError("a line without a claim on either side")
        owns = bool(new) and owner_of(after).best.context == claim.best.context
        drafts.append(
            Draft(
                line=line,
                amount=difference,
                report=claim.best,
                priced=claim.best.priced and owns,
                reason=claim.best.reason if owns else "request_conflict",
            )
        )
    return drafts


def claims_to_json(claims: Claims) -> list[dict[str, Any]]:
    """What is kept of a request's reports, for the next one to merge with."""
    return [
        {
            **{name: getattr(claim.best, name) for name in _REPORT_FIELDS},
            "occurred_at": claim.best.occurred_at.isoformat(),
            "billed_at": claim.best.billed_at.isoformat(),
            "first_occurred_at": claim.first_occurred_at.isoformat(),
            "channel_place": claim.channel_place,
        }
        for claim in claims
    ]


def claims_from_json(rows: Sequence[Mapping[str, Any]]) -> Claims:
    """Read `claims_to_json` back."""
    claims = []
    for row in rows:
        values = dict(row)
        first = datetime.fromisoformat(values.pop("first_occurred_at"))
        place = values.pop("channel_place")
        values["occurred_at"] = datetime.fromisoformat(values["occurred_at"])
        values["billed_at"] = datetime.fromisoformat(values["billed_at"])
        values["tokens"] = tuple(values["tokens"])
        claims.append(Claim(Report(**values), first, place))
    return tuple(claims)
