"""One provider request is one amount, however often and by whom it is reported (design.md 4).

`bill` is a function of the *set* of reports, so every order and every repetition of the same
reports bills the same. What is entered is always the difference between two bills.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from contracts.channel import IngestionReported, Tokens, UsageReported
from contracts.entries import EntryReason, PriceSource
from contracts.types import UsageKind
from services.ledger.domain.amounts import NOTHING, Amount
from services.ledger.domain.prices import Priced

_TOKENS = attrgetter(*Tokens.model_fields)
"""The counts of a report, in the order of their contract."""
CLAIMS_PER_CHANNEL_MAX = 16
"""Runs and models of one channel that may claim one request; a further one is refused."""


class Ingested(NamedTuple):
    """What money that belongs to no run was spent on, and when; windows select by the time."""

    ingestion_id: str
    document_id: str | None
    collection_id: str | None
    occurred_at: datetime


class Report(NamedTuple):
    """One report, priced: all that the bill of its request depends on."""

    channel_id: str
    run_id: str
    """Empty: ingestion, which belongs to no run."""
    model: str
    billed_run_id: str
    """Empty: ingestion."""
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
    """Whether its run asked for this request before it was reported, and was allowed to."""
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
    provider_rate: str | None = None
    ingestion_id: str = ""
    """Empty: usage of a run."""
    document_id: str | None = None
    collection_id: str | None = None

    @property
    def context(self) -> tuple[str, str, str, str]:
        """Who claims the request: the channel, the run or ingestion, and the model."""
        return (self.channel_id, self.run_id, self.ingestion_id, self.model)

    @property
    def ingested(self) -> Ingested | None:
        """What it was spent on, where it belongs to no run."""
        if not self.ingestion_id:
            return None
        return Ingested(self.ingestion_id, self.document_id, self.collection_id, self.occurred_at)

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


class Claim(NamedTuple):
    """What one context says about a request: its best report and its earliest time."""

    best: Report
    first_occurred_at: datetime
    channel_place: int
    """0 for the channel that claimed the request first, as it arrived here; then 1 and so on."""
    settled_digest: str = ""
    """The report whose floor a correction took away; another best report brings a floor again."""
    corrections: tuple[tuple[str, int], ...] = ()
    """What corrections made while it was billed add to the request, by the month of their making;
    nano-USD. They are the request's: they lie where its amount lies (ADR 0021)."""

    @property
    def is_settled(self) -> bool:
        """Whether somebody said what its best report should have cost (ADR 0021)."""
        return self.settled_digest == self.best.digest


class Line(NamedTuple):
    """Where an amount is entered; what the breakdowns group by."""

    billed_run_id: str
    month: str
    provider: str
    model: str
    key_id: str
    kind: str
    late_month: str = ""
    ingested: Ingested | None = None
    """Null: the line is a run's."""


class Draft(NamedTuple):
    """An entry to append: where, how much, and the report that explains it."""

    line: Line
    amount: Amount
    report: Report
    priced: bool
    reason: EntryReason | None
    is_correction: bool = False
    """Whether it moves what corrections said, along with the request that they correct."""


Claims = tuple[Claim, ...]
"""All claims on one request, in the order of their contexts."""


def report_digest(usage: UsageReported | IngestionReported) -> str:
    """SHA-256 over what a report says; decides between equals, the same for every order."""
    return hashlib.sha256(usage.model_dump_json().encode()).hexdigest()


class Circumstances(NamedTuple):
    """What is known of a report besides what it says."""

    channel_id: str
    month: str
    late_month: str
    billed_at: datetime
    authorized: bool


def make_report(
    usage: UsageReported | IngestionReported, priced: Priced, known: Circumstances
) -> Report:
    """Bring a report, its price and its circumstances together.

    Impossible counts are kept on the entry of the report and add nothing to any sum.
    """
    tokens = usage.tokens
    cost = usage.provider_cost
    return Report(
        **_bearer(usage),
        channel_id=known.channel_id,
        model=usage.model,
        provider=usage.provider or "",
        key_id=usage.key_id or "",
        month=known.month,
        late_month=known.late_month,
        authorized=known.authorized,
        interrupted=usage.interrupted,
        tokens=_TOKENS(tokens),
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
        provider_rate=priced.provider_rate,
    )


def _bearer(said: UsageReported | IngestionReported) -> dict[str, Any]:
    """Who bears an amount: a run, or nobody but the organization."""
    if isinstance(said, IngestionReported):
        return {
            "run_id": "",
            "billed_run_id": "",
            "kind": UsageKind.INGESTION.value,
            "delegation_id": None,
            "turn_id": None,
            "ingestion_id": said.ingestion_id,
            "document_id": said.document_id,
            "collection_id": said.collection_id,
        }
    return {
        "run_id": said.run_id,
        "billed_run_id": said.billed_run_id or said.run_id,
        "kind": said.kind.value,
        "delegation_id": said.delegation_id,
        "turn_id": said.turn_id,
    }


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
            _better(known.best, report),
            min(known.first_occurred_at, report.occurred_at),
            known.channel_place,
            known.settled_digest,
            known.corrections,
        )
    return tuple(by_context[context] for context in sorted(by_context))


def _better(known: Report, report: Report) -> Report:
    """The better report; of the same words stored twice, the first copy.

    One that came before any permission (ADR 0044), then one that was not late, or less.
    """
    if known.digest == report.digest:
        return min(known, report, key=lambda item: (item.authorized, item.late_month))
    return max(known, report, key=lambda item: item.rank)


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
    if len(claims) == 1:
        return {line_of(claims[0].best): (_amount(claims[0]), claims[0])}
    owner = owner_of(claims)
    billed: dict[Line, tuple[Amount, Claim]] = {}
    # The owner last: of two contexts that share a line it is the owner that explains it.
    for claim in sorted(claims, key=lambda item: item is owner):
        line = line_of(claim.best)
        amount = _amount(claim) if claim is owner else Amount(unpriced_count=_floor(claim))
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
        report.ingested,
    )


def _amount(claim: Claim) -> Amount:
    report = claim.best
    counts = report.tokens if report.reason != "bad_usage" else (0,) * len(report.tokens)
    return Amount(
        report.cost_nanousd,
        1,
        0 if report.priced else _floor(claim),
        0,
        *counts,
    )


def _floor(claim: Claim) -> int:
    return 0 if claim.is_settled else 1


def draft_entries(before: Claims, after: Claims) -> list[Draft]:
    """The entries that lead from one bill to the next: one per line that changed."""
    old, new = bill(before), bill(after)
    drafts = []
    for line in {**old, **new}:
        was, was_claim = old.get(line, (NOTHING, None))
        now, now_claim = new.get(line, (NOTHING, None))
        difference = now - was if was is not NOTHING else now
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
    if any(claim.corrections for claim in before):
        drafts += _move_corrections(before, after)
    return drafts


def _move_corrections(before: Claims, after: Claims) -> list[Draft]:
    """What corrections said goes where the request goes: another run, month, key or provider."""
    was, now = owner_of(before).best, owner_of(after).best
    drafts = []
    for month, amount in corrections_of(before).items():
        drafts += move_correction(
            (correction_line(line_of(was), month), was),
            (correction_line(line_of(now), month), now),
            amount,
        )
    return drafts


def corrections_of(claims: Claims) -> dict[str, int]:
    """What corrections add to a request, by the month of their making."""
    sums: dict[str, int] = {}
    for claim in claims:
        for month, amount in claim.corrections:
            sums[month] = sums.get(month, 0) + amount
    return sums


def correction_line(line: Line, made_in: str) -> Line:
    """Where a correction of an amount on a line lies.

    For a month that is over, the caps of the month of its making bear it as well (ADR 0010).
    """
    return line._replace(late_month=made_in if line.month < made_in else "")


def move_correction(
    old: tuple[Line, Report], new: tuple[Line, Report], amount_nanousd: int
) -> list[Draft]:
    """The two entries that move an amount from one line to another; none where it lies there."""
    if old[0] == new[0] or not amount_nanousd:
        return []
    return [
        Draft(line, Amount(amount), report, priced=True, reason=None, is_correction=True)
        for (line, report), amount in ((old, -amount_nanousd), (new, amount_nanousd))
    ]
