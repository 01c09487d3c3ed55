"""What one provider request costs: an exact amount, or the reason why there is none.

The one thing not to break: unknown is not zero (design.md 3). A request that cannot be priced
costs 0 with `priced=False` and a reason, and every sum that holds it is a floor; a free model costs
0 with `priced=True`. Dollars become nano-USD in `nanousd_from_usd` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from types import MappingProxyType
from typing import Literal, NamedTuple, TypedDict, Unpack

from contracts.entries import PriceSource
from contracts.types import BIGINT_MAX
from services.ledger.domain.rate_cards import PriceMissing, RateBook, Tariff, UsageContradictory
from services.ledger.domain.usage_keys import (
    COUNTED_USAGE_KEYS,
    INPUT_MEDIA_KEYS,
    MEDIA_USAGE_KEYS,
)

UnpricedReason = Literal["unknown_model", "bad_usage", "no_price", "media_uncounted"]

_NANO = Decimal("1e-9")
_NANO_DIGITS = 9
_USD_ADJUSTED_MAX = 9
"""Power of ten of the largest amount: 2**63 - 1 nano-USD are 9.2 * 10**9 USD."""
_ROUNDING = Context(prec=_USD_ADJUSTED_MAX + 2 + _NANO_DIGITS, rounding=ROUND_HALF_EVEN)
"""Holds every amount that passes the check before it, with a digit for the carry."""

_SECONDS_KEYS = ("audio_seconds", "input_audio_seconds")


PROBE_TOKENS = 1_000_000
"""A model whose price of so many tokens each way is 0 is free."""


class AmountOutOfRange(ValueError):
    """An amount that a BIGINT of nano-USD cannot hold, or that is no finite number."""

    code = "amount-out-of-range"


def nanousd_from_usd(amount_usd: Decimal) -> int:
    """Round an amount to whole nano-USD, half to even, once.

    Units: USD in, nano-USD out (1 USD = 10**9). The sign is kept.
    Errors: AmountOutOfRange.
    Source: design.md 3, *Money*.
    """
    if not amount_usd:
        return 0
    if not amount_usd.is_finite() or amount_usd.adjusted() > _USD_ADJUSTED_MAX:
        raise AmountOutOfRange(f"{amount_usd} USD does not fit into a BIGINT of nano-USD")
    nanousd = int(amount_usd.quantize(_NANO, context=_ROUNDING).scaleb(_NANO_DIGITS, _ROUNDING))
    if abs(nanousd) > BIGINT_MAX:
        raise AmountOutOfRange(f"{amount_usd} USD does not fit into a BIGINT of nano-USD")
    return nanousd


class TokenCounts(NamedTuple):
    """Tokens of one request as they were reported, impossible ones included (events.md).

    `input` holds the uncached tokens, `cache_read`, `cache_write_5m` and `cache_write_1h`;
    `audio_input` is a part of `input`, `reasoning` and `audio_output` are parts of `output`.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    reasoning: int = 0
    audio_input: int = 0
    audio_output: int = 0
    image_input: int = 0
    video_input: int = 0
    """Parts of `input` that estimates know; reports count them among the tool counts."""


class PricedRequest(TypedDict):
    """What `price_request` must know of a request."""

    provider: str | None
    """Whom it was sent to, where the publisher said; a hint."""
    model: str
    """The name that the response reported."""
    tokens: TokenCounts
    tool_counts: Mapping[str, int]
    """Counts besides those, by the catalogue's usage key (`web_searches` ...); tokens of images
    and films are among them (`output_image_tokens` ...)."""
    service_tier: str | None
    processing: str | None
    """`batch`, or None."""
    at: datetime
    """When it was made (aware): prices change, some by the hour."""


class Priced(NamedTuple):
    """The price of a request; `cost_nanousd` is 0 where `priced` is false.

    `provider_id` and `model_id` are the catalogue's names and None where it knows no such model.
    """

    cost_nanousd: int
    priced: bool
    reason: UnpricedReason | None
    price_source: PriceSource
    provider_id: str | None
    model_id: str | None
    price_set: str
    provider_rate: str | None = None
    """Units of the provider's currency per US dollar, where its amount was converted."""
    leaves_media_open: bool = False
    """The model charges images or films apart, and the counts do not say how many tokens of them
    there were, if any: the amount is what so many words would have cost."""


def price_request(*, book: RateBook, **request: Unpack[PricedRequest]) -> Priced:
    """Price one request; the first reason that applies wins, and nothing is raised.

    1. `bad_usage`: a count is negative or above BIGINT.
    2. `unknown_model`: neither provider and model nor the model alone is in the catalogue.
    3. `bad_usage`: cache parts exceed the input; audio, image or video input exceeds the input;
       reasoning, or audio, image or video output, exceeds the output; or the model's rates need a
       split that the counts leave open: cached tokens and audio tokens of a model that prices
       cached audio apart, a part of a counted unit (`input_audio_seconds`) without its whole
       (`audio_seconds`), or above it where both have a price.
    4. `no_price`: something used has no price of its own and is no part of anything priced (output
       of an embedding model, tokens of a model charged by the hour, a search of a model without a
       search price, a tool key that the catalogue does not have), or nothing was reported of a
       model that charges for no token. The whole request then counts as unpriced: an amount
       without its search would look exact.
    5. `bad_usage`: the cost exceeds a BIGINT of nano-USD.

    A tool key with a count of 0 says nothing, but of images and films that there were none. Where
    only part of a request lacks a price, the channel can still report the provider's own cost,
    which comes first (design.md 4).

    Source: design.md 3 and 4, *Prices*; facts.md 2.2, items 6 and 8.
    """
    tariff = book.find_tariff(request["provider"], request["model"])
    tokens, tool_counts = request["tokens"], request["tool_counts"]
    if not _is_in_range(tokens, tool_counts):
        return _unpriced("bad_usage", book, tariff)
    if tariff is None:
        return _unpriced("unknown_model", book, None)
    if not (_is_consistent(tokens) and _holds_media(tokens, tool_counts)):
        return _unpriced("bad_usage", book, tariff)

    context = _context(request["service_tier"], request["processing"])
    counts = _usage_counts(tokens)
    if tool_counts:
        counts.update(_counted_units(tool_counts, tariff.audio_s_billed_min))
    try:
        card = tariff.card_at(request["at"], context)
        total_usd = card.total_usd(counts)
        cost_nanousd = nanousd_from_usd(total_usd)
    except (UsageContradictory, AmountOutOfRange):
        return _unpriced("bad_usage", book, tariff)
    except PriceMissing:
        return _unpriced("no_price", book, tariff)
    return Priced(
        cost_nanousd=cost_nanousd,
        priced=True,
        reason=None,
        price_source="catalogue",
        provider_id=tariff.provider_id,
        model_id=tariff.model_id,
        price_set=book.price_set,
        leaves_media_open=bool(card.media_keys)
        and _leaves_open(card.media_keys - counts.keys(), tokens, tool_counts),
    )


def _leaves_open(
    uncounted: frozenset[str], tokens: TokenCounts, tool_counts: Mapping[str, int]
) -> bool:
    """Whether tokens may be of a kind that is charged apart and that nobody counted.

    What is audio is no image; a part of a counted kind (cached images) is counted with it.
    """
    return any(
        key not in tool_counts
        and not key.startswith("cache_")
        and (
            tokens.input > tokens.audio_input
            if key in INPUT_MEDIA_KEYS
            else tokens.output > tokens.audio_output
        )
        for key in uncounted
    )


def _context(service_tier: str | None, processing: str | None) -> dict[str, str]:
    known = (("service_tier", service_tier), ("processing", processing))
    return {name: value for name, value in known if value is not None}


def _unpriced(reason: UnpricedReason, book: RateBook, tariff: Tariff | None) -> Priced:
    return Priced(
        cost_nanousd=0,
        priced=False,
        reason=reason,
        price_source="unpriced",
        provider_id=tariff.provider_id if tariff else None,
        model_id=tariff.model_id if tariff else None,
        price_set=book.price_set,
    )


def _is_in_range(tokens: TokenCounts, tool_counts: Mapping[str, int]) -> bool:
    return (
        0 <= tokens.input <= BIGINT_MAX
        and 0 <= tokens.output <= BIGINT_MAX
        and 0 <= tokens.cache_read <= BIGINT_MAX
        and 0 <= tokens.cache_write_5m <= BIGINT_MAX
        and 0 <= tokens.cache_write_1h <= BIGINT_MAX
        and 0 <= tokens.reasoning <= BIGINT_MAX
        and 0 <= tokens.audio_input <= BIGINT_MAX
        and 0 <= tokens.audio_output <= BIGINT_MAX
        and all(0 <= count <= BIGINT_MAX for count in tool_counts.values())
    )


def _is_consistent(tokens: TokenCounts) -> bool:
    cached = tokens.cache_read + tokens.cache_write_5m + tokens.cache_write_1h
    return (
        cached <= tokens.input
        and tokens.audio_input <= tokens.input
        and tokens.reasoning <= tokens.output
        and tokens.audio_output <= tokens.output
    )


def _holds_media(tokens: TokenCounts, tool_counts: Mapping[str, int]) -> bool:
    """Whether images and films are no more than the tokens that they are part of."""
    return all(
        count <= (tokens.input if key in INPUT_MEDIA_KEYS else tokens.output)
        for key, count in tool_counts.items()
        if key in MEDIA_USAGE_KEYS
    )


def _usage_counts(tokens: TokenCounts) -> dict[str, int]:
    """Name the token counts as the catalogue does.

    Its `cache_write_tokens` is the sum of both lifetimes, with the one-hour part named beside it
    (dependencies.md 5); a model without a one-hour price charges all writes alike.
    """
    counts = {
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "cache_read_tokens": tokens.cache_read,
        "cache_write_tokens": tokens.cache_write_5m + tokens.cache_write_1h,
        "cache_write_5m_tokens": tokens.cache_write_5m,
        "cache_write_1h_tokens": tokens.cache_write_1h,
        "output_reasoning_tokens": tokens.reasoning,
        "input_audio_tokens": tokens.audio_input,
        "output_audio_tokens": tokens.audio_output,
    }
    if tokens.image_input:
        counts["input_image_tokens"] = tokens.image_input
    if tokens.video_input:
        counts["input_video_tokens"] = tokens.video_input
    return counts


_PROBE = MappingProxyType(_usage_counts(TokenCounts(input=PROBE_TOKENS, output=PROBE_TOKENS)))


def is_free(
    *,
    book: RateBook,
    provider: str | None,
    model: str,
    service_tier: str | None,
    processing: str | None,
    at: datetime,
) -> bool | None:
    """Whether `PROBE_TOKENS` each way cost nothing; None where the catalogue knows no such model.

    Source: design.md 4, *Ask first* (free models pass).
    """
    tariff = book.find_tariff(provider, model)
    if tariff is None:
        return None
    return tariff.costs_nothing_at(at, _context(service_tier, processing), _PROBE)


def _counted_units(tool_counts: Mapping[str, int], audio_s_billed_min: int) -> dict[str, int]:
    """Name the tool counts; a key that the catalogue lacks keeps a name that nothing prices."""
    counts = {
        key if key in COUNTED_USAGE_KEYS or key in MEDIA_USAGE_KEYS else f"tool:{key}": count
        for key, count in tool_counts.items()
        if count
    }
    seconds = next((counts[key] for key in _SECONDS_KEYS if key in counts), 0)
    if audio_s_billed_min and seconds:
        counts.update(dict.fromkeys(_SECONDS_KEYS, max(seconds, audio_s_billed_min)))
    return counts
