"""From a usage report or a question to its price."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import ROUND_05UP, Context, Decimal, DecimalException
from typing import Final, Literal

from contracts.channel import IngestionReported, ProviderCost, Tokens, UsageReported
from contracts.ledger import Authorize, Media
from contracts.types import BIGINT_MAX, UsageKind
from services.ledger.domain.caps import Price
from services.ledger.domain.holds import Estimate
from services.ledger.domain.prices import (
    PROBE_TOKENS,
    AmountOutOfRange,
    Priced,
    TokenCounts,
    is_free,
    nanousd_from_usd,
    price_request,
)
from services.ledger.domain.rate_cards import RateBook, RateCard

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
INPUT_MEDIA: Final[Mapping[Media, tuple[str, str]]] = {
    "audio_input": ("input_audio_tokens", "audio_input"),
    "image_input": ("input_image_tokens", "image_input"),
    "video_input": ("input_video_tokens", "video_input"),
}
"""What the catalogue calls a medium, and what `TokenCounts` does."""
MADE_APART: Final = frozenset({"output_image_tokens", "output_video_tokens"})
"""What a model makes at rates of its own."""


Reported = UsageReported | IngestionReported


def price_usage(book: RateBook, usage: Reported, rates: Rates = NO_RATES) -> Priced:
    """Price one report at the time of its call.

    What the provider says that it cost comes first (the seed, *Un coste que no se pudo medir lo
    dice*); an amount or a currency that cannot be used falls back to the catalogue. Impossible
    counts stay `bad_usage` either way: they say that the report is broken.
    """
    priced = _catalogue_price(book, usage)
    if priced.leaves_media_open:
        # What so many words would cost is the least: a floor (ADR 0045).
        priced = priced._replace(priced=False, reason="media_uncounted")
    if usage.provider_cost is None or priced.reason == "bad_usage":
        return priced
    currency = usage.provider_cost.currency.strip().upper()
    cost_nanousd = provider_nanousd(usage.provider_cost, rates)
    if cost_nanousd is None:
        return priced
    return priced._replace(
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
    charged = _charged(book, asked, at)
    most = asked.cost_nanousd_max
    is_dear = False
    if most is None and _is_bounded(asked, charged) and asked.output_tokens_max is not None:
        most = _most_of(book, asked, asked.output_tokens_max, at)
        # What these counts cost tells that the model is not free: the probe would cost as much.
        is_dear = bool(most)
    return Price(
        is_priced=charged is not None,
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
    if most is None and _is_bounded(asked, _charged(book, asked, at)):
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


def _card(book: RateBook, asked: Authorize, at: datetime) -> RateCard | None:
    """The rates of the asked model; null: the catalogue does not know it."""
    tariff = book.find_tariff(asked.provider, asked.model)
    if tariff is None:
        return None
    context = asked.price_context
    stated = {"service_tier": context.service_tier, "processing": context.processing}
    return tariff.card_at(at, {name: value for name, value in stated.items() if value is not None})


def _charged(book: RateBook, asked: Authorize, at: datetime) -> frozenset[str] | None:
    """What has a rate of its own at the asked model; null: the catalogue does not know it."""
    card = _card(book, asked, at)
    return None if card is None else card.charged_keys


def _is_bounded(asked: Authorize, charged: frozenset[str] | None) -> bool:
    """Whether the stated counts can bound the cost.

    Images and films that a model makes cost many times what its words do: how many tokens they
    will be at most is stated beside the output's limit, or nothing is guessed. Input has to be
    stated where tokens are charged.
    """
    if charged is None:
        return False
    made = charged & MADE_APART
    if made and (asked.output_tokens_max is None or not made <= asked.tool_counts_max.keys()):
        return False
    if asked.input_tokens_max is not None:
        return True
    return bool(asked.tool_counts_max) and not any(key.endswith("_tokens") for key in charged)


def _by_output(book: RateBook, asked: Authorize, at: datetime) -> Callable[[int], int]:
    def cost_of(output_tokens: int) -> int:
        cost = _most_of(book, asked, output_tokens, at)
        return BIGINT_MAX if cost is None else cost

    return cost_of


def _is_free(book: RateBook, asked: Authorize, at: datetime) -> bool:
    if not asked.tool_counts_max:
        context = asked.price_context
        free = is_free(
            book=book,
            provider=asked.provider,
            model=asked.model,
            service_tier=context.service_tier,
            processing=context.processing,
            at=at,
        )
        return bool(free)
    probe = _price_of(book, asked, TokenCounts(input=PROBE_TOKENS, output=PROBE_TOKENS), at)
    return probe.priced and probe.cost_nanousd == 0


def _most_of(book: RateBook, asked: Authorize, output: int, at: datetime) -> int | None:
    """The dearest way to pay for the largest counts.

    Input may be uncached, written to a cache (which costs more than reading anew), read from one
    that costs more, audio, images or films; output may be audio. An asker who says which of these
    can be pays for those. Ways that the model does not charge apart cost what another way costs.
    """
    costs = [_price_of(book, asked, way, at) for way in _ways(book, asked, output, at)]
    return max((cost.cost_nanousd for cost in costs if cost.priced), default=None)


def _ways(book: RateBook, asked: Authorize, output: int, at: datetime) -> list[TokenCounts]:
    card = _card(book, asked, at)
    charged, dear = (card.charged_keys, card.dear_keys) if card else (frozenset(), frozenset())
    tokens = asked.input_tokens_max or 0
    reasoning = output if "output_reasoning_tokens" in dear else 0
    plain = TokenCounts(input=tokens, output=output, reasoning=reasoning)
    ways = [plain]
    if "cache_read_tokens" in dear:
        ways.append(plain._replace(cache_read=tokens))
    if asked.cache_write in (None, "5m"):
        ways.append(plain._replace(cache_write_5m=tokens))
    if asked.cache_write in (None, "1h"):
        ways.append(plain._replace(cache_write_1h=tokens))
    for medium, (charge, part) in INPUT_MEDIA.items():
        if charge in charged and _may_be(asked, medium):
            ways.append(plain._replace(**{part: tokens}))
    if "output_audio_tokens" in charged and _may_be(asked, "audio_output"):
        ways += [way._replace(audio_output=output, reasoning=0) for way in ways]
    return ways


def _may_be(asked: Authorize, medium: Media) -> bool:
    return asked.media is None or medium in asked.media


def _price_of(book: RateBook, asked: Authorize, tokens: TokenCounts, at: datetime) -> Priced:
    return price_request(
        book=book,
        provider=asked.provider,
        model=asked.model,
        tokens=tokens,
        tool_counts=asked.tool_counts_max,
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
