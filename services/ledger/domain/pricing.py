"""From a usage report or a question to its price."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import ROUND_05UP, Context, Decimal, DecimalException
from typing import Final, Literal

from contracts.channel import IngestionReported, ProviderCost, Tokens, UsageReported
from contracts.ledger import Authorize
from contracts.types import BIGINT_MAX, UsageKind
from services.ledger.domain.caps import Price
from services.ledger.domain.holds import Estimate
from services.ledger.domain.prices import (
    AmountOutOfRange,
    Priced,
    TokenCounts,
    nanousd_from_usd,
    price_request,
)
from services.ledger.domain.rate_cards import RateBook

PROVIDER_REPORTED: Final[Literal["provider_reported"]] = "provider_reported"
DOLLAR: Final = "USD"
Rates = Mapping[str, Decimal]
"""Units of a currency per US dollar, above 0, as an operator keeps them (the seed)."""
NO_RATES: Final[Rates] = {}
_AMOUNT: Final = re.compile(r"[0-9]{1,32}(\.[0-9]{1,32})?([eE][+-]?[0-9]{1,3})?\Z", re.ASCII)
"""What a provider's amount may look like: no sign, no NaN, no infinity, no separators. Small
amounts come with an exponent, because that is how floats are written."""
_CONVERSION: Final = Context(prec=64, rounding=ROUND_05UP)
"""Divides so that the one rounding to nano-USD that follows is that of the exact quotient."""
PROBE_TOKENS = 1_000_000
"""A model whose price of so many tokens each way is 0 is free."""


Reported = UsageReported | IngestionReported


def price_usage(book: RateBook, usage: Reported, rates: Rates = NO_RATES) -> Priced:
    """Price one report at the time of its call.

    What the provider says that it cost comes first (the seed, *Un coste que no se pudo medir lo
    dice*); an amount or a currency that cannot be used falls back to the catalogue. Impossible
    counts stay `bad_usage` either way: they say that the report is broken.
    """
    priced = _catalogue_price(book, usage)
    if usage.provider_cost is None or priced.reason == "bad_usage":
        return priced
    currency = usage.provider_cost.currency.strip().upper()
    cost_nanousd = provider_nanousd(usage.provider_cost, rates)
    if cost_nanousd is None:
        return priced
    return replace(
        priced,
        cost_nanousd=cost_nanousd,
        priced=True,
        reason=None,
        price_source=PROVIDER_REPORTED,
        provider_rate=None if currency == DOLLAR else f"{rates[currency]:f}",
    )


def provider_nanousd(cost: ProviderCost, rates: Rates = NO_RATES) -> int | None:
    """A provider's amount in nano-USD, half to even; null where it cannot be used.

    US dollars are used directly; another currency is divided by the operator's rate, and cannot be
    used without one.
    Source: facts.md 2.2, item 7; ADR 0020.
    """
    currency = cost.currency.strip().upper()
    amount = cost.amount.strip()
    if not _AMOUNT.match(amount) or (currency != DOLLAR and currency not in rates):
        return None
    try:
        if currency == DOLLAR:
            return nanousd_from_usd(Decimal(amount))
        return nanousd_from_usd(_CONVERSION.divide(Decimal(amount), rates[currency]))
    except (DecimalException, AmountOutOfRange):
        return None


def _catalogue_price(book: RateBook, usage: Reported) -> Priced:
    return price_request(
        book=book,
        provider=usage.provider,
        model=usage.model,
        tokens=_counts(usage.tokens),
        tool_counts=usage.tool_counts,
        service_tier=usage.price_context.service_tier,
        processing=usage.price_context.processing,
        at=usage.occurred_at,
    )


def price_question(book: RateBook, asked: Authorize, *, at: datetime) -> Price:
    """What is known of a request before it is sent.

    The most it can cost is what the asker states, else its largest counts at the dearest rates.
    """
    most = asked.cost_nanousd_max
    is_dear = False
    if most is None and asked.input_tokens_max is not None and asked.output_tokens_max is not None:
        most = _most_of(book, asked, asked.output_tokens_max, at)
        # What these counts cost tells that the model is not free: the probe would cost as much.
        is_dear = bool(most)
    return Price(
        is_priced=is_dear or book.find_tariff(asked.provider, asked.model) is not None,
        is_free=not is_dear and _is_free(book, asked, at),
        cost_nanousd_max=most,
    )


def estimate_question(book: RateBook, asked: Authorize, price: Price, at: datetime) -> Estimate:
    """What may have to be held for a request; by its output where that is not bounded.

    `price`: what `price_question` says of it. A request whose model charges for no output, or
    cannot have any (an embedding), is bounded by its input alone.
    """
    most = price.cost_nanousd_max
    by_output = None
    if most is None and asked.input_tokens_max is not None:
        if asked.kind is UsageKind.EMBEDDING or _most_of(book, asked, PROBE_TOKENS, at) is None:
            most = _most_of(book, asked, 0, at)
        else:
            by_output = _by_output(book, asked, at)
    return Estimate(
        is_priced=price.is_priced,
        is_free=price.is_free,
        most_nanousd=most,
        cost_of=by_output,
    )


def _by_output(book: RateBook, asked: Authorize, at: datetime) -> Callable[[int], int]:
    def cost_of(output_tokens: int) -> int:
        cost = _most_of(book, asked, output_tokens, at)
        return BIGINT_MAX if cost is None else cost

    return cost_of


def _is_free(book: RateBook, asked: Authorize, at: datetime) -> bool:
    probe = _price_of(book, asked, TokenCounts(input=PROBE_TOKENS, output=PROBE_TOKENS), at)
    return probe.priced and probe.cost_nanousd == 0


def _most_of(book: RateBook, asked: Authorize, output: int, at: datetime) -> int | None:
    """The dearest way to pay for the largest input: uncached, or written to a cache.

    Writing costs more than reading anew; an asker who says which cache is used pays for that one.
    """
    tokens = asked.input_tokens_max or 0
    plain = TokenCounts(input=tokens, output=output)
    ways = {
        "none": plain,
        "5m": replace(plain, cache_write_5m=tokens),
        "1h": replace(plain, cache_write_1h=tokens),
    }
    wanted = ("none", "5m", "1h") if asked.cache_write is None else ("none", asked.cache_write)
    costs = [_price_of(book, asked, ways[way], at) for way in wanted]
    return max((cost.cost_nanousd for cost in costs if cost.priced), default=None)


def _price_of(book: RateBook, asked: Authorize, tokens: TokenCounts, at: datetime) -> Priced:
    return price_request(
        book=book,
        provider=asked.provider,
        model=asked.model,
        tokens=tokens,
        tool_counts={},
        service_tier=asked.price_context.service_tier,
        processing=asked.price_context.processing,
        at=at,
    )


def _counts(tokens: Tokens) -> TokenCounts:
    return TokenCounts(
        input=tokens.input,
        output=tokens.output,
        cache_read=tokens.cache_read,
        cache_write_5m=tokens.cache_write_5m,
        cache_write_1h=tokens.cache_write_1h,
        reasoning=tokens.reasoning,
        audio_input=tokens.audio_input,
        audio_output=tokens.audio_output,
    )
