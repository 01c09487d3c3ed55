"""Rate cards: what a model charges at one moment, compiled from the pinned price catalogue.

The one thing not to break: a card's total equals `genai_prices.calc_price(...).total_price`, digit
for digit, and it refuses what that refuses (tests/unit/ledger/test_prices_property.py). The
catalogue's own calculation costs 65 µs a call (dependencies.md 5), too slow for one per event;
a card does the same sums on integers. Nothing here reaches the network: the catalogue is the data
file of the pinned package, and nobody calls its `UpdatePrices`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache, lru_cache
from itertools import combinations
from operator import mul

import genai_prices
from genai_prices.data import providers as pinned_providers
from genai_prices.data_snapshot import DataSnapshot
from genai_prices.types import (
    ModelInfo,
    ModelPrice,
    Provider,
    StartDateConstraint,
    TieredPrices,
    TimeOfDateConstraint,
)
from genai_prices.units import UnitDef
from genai_prices.validation import validate_priced_units

from services.ledger.domain.usage_keys import (
    COUNTED_USAGE_KEYS,
    MEDIA_USAGE_KEYS,
    REGISTRY,
    REQUESTS,
    TOKEN_USAGE_KEYS,
)

NAMES_CACHED_MAX = 4096
"""Pairs of provider and model name whose search is remembered, unknown ones included. Names come
from publishers and are at most 128 and 255 characters long (contracts/types.py)."""

_EXACT = Context(prec=100)
"""Wide enough for the longest total: 19 digits of count times 17 of price, at 10**-24 USD."""

_AUDIO_S_BILLED_MIN = {
    ("groq", "whisper-large-v3"): 10,
    ("groq", "whisper-large-v3-turbo"): 10,
}
"""Shortest audio that is charged; a rule in the catalogue's code (`ModelInfo.calc_price`), not in
its data."""

_SNAPSHOT_AT = datetime(1970, 1, 1, tzinfo=UTC)
"""Stamp of the short-lived snapshots below; the default would read the clock, nothing reads it."""


class UsageContradictory(ValueError):
    """The counts contradict one another, or leave open how many of them cost which rate."""

    code = "bad-usage"


class PriceMissing(LookupError):
    """The catalogue knows the model and has no price for something that was used."""

    code = "no-price"


@dataclass(frozen=True, slots=True)
class _PricedUnit:
    """A unit with a rate of its own; its count includes those at the positions `parts`."""

    usage_key: str
    parts: tuple[int, ...]
    count_unreported: int


@dataclass(frozen=True, slots=True)
class _Unknowable:
    """The count of `usage_key`, where it was not reported and all of `reported` were used."""

    usage_key: str
    reported: frozenset[str]


@dataclass(frozen=True, slots=True)
class RateCard:
    """The rates of one model at one moment and in one price context.

    Units: a rate is an integer, USD per single unit times `per_usd`. `rates[i]` holds while more
    than `i` of `tier_starts` are below the request's input tokens: a context tier applies to the
    whole request, as in the catalogue (dependencies.md 5).
    """

    units: tuple[_PricedUnit, ...]
    unknowable: tuple[_Unknowable, ...]
    tier_starts: tuple[int, ...]
    rates: tuple[tuple[int, ...], ...]
    per_usd: Decimal
    priced_keys: frozenset[str]
    charged_keys: frozenset[str]
    """What has a rate of its own."""
    media_keys: frozenset[str]
    """Of these, images and films: how many tokens they are is known where a report says it."""
    dear_keys: frozenset[str]
    """Parts of words that cost more than the words that they are part of, if only in one tier."""
    is_due_without_counts: bool
    """False where nothing is charged but units that a report may leave out, such as seconds."""

    def total_usd(self, counts: Mapping[str, int]) -> Decimal:
        """Compute the exact price of one request.

        Args:
            counts: by the catalogue's usage key, none negative; all of `TOKEN_USAGE_KEYS`, and of
                `COUNTED_USAGE_KEYS` and `MEDIA_USAGE_KEYS` those that were used.

        Raises:
            UsageContradictory: where the catalogue would raise ValueError (checked first).
            PriceMissing: something used has no price, not even as part of something priced.
        """
        own_counts = self._own_counts(counts)
        for key, count in counts.items():
            if count and key not in self.priced_keys:
                raise PriceMissing(f"no price for {key}: report the cost that the provider states")
        if not self.is_due_without_counts and not any(counts.values()):
            raise PriceMissing("nothing was reported of what the model charges for")
        rates = self.rates[bisect_left(self.tier_starts, counts["input_tokens"])]
        return _EXACT.divide(Decimal(sum(map(mul, rates, own_counts))), self.per_usd)

    def _own_counts(self, counts: Mapping[str, int]) -> list[int]:
        """Take out of each unit's count what is charged at the rate of a part of it."""
        for gap in self.unknowable:
            if gap.usage_key not in counts and all(counts.get(key) for key in gap.reported):
                used = " and ".join(sorted(gap.reported))
                raise UsageContradictory(f"{used} were used and {gap.usage_key} is not known")
        own_counts: list[int] = []
        for unit in self.units:
            own = counts.get(unit.usage_key, unit.count_unreported)
            for position in unit.parts:
                own -= own_counts[position]
            if own < 0:
                raise UsageContradictory(f"the parts of {unit.usage_key} exceed it")
            own_counts.append(own)
        return own_counts


def compile_rate_card(price: ModelPrice) -> RateCard:
    """Turn the catalogue's prices of a model into a card.

    A price without any entry is the catalogue's way to say *free* (zero is not a legal price
    there), so that every token is covered at no cost; tools are not.

    Errors: ValueError or KeyError where the catalogue's data are inconsistent; a test compiles
    every card of the pinned data.
    """
    by_key: dict[str, Decimal | TieredPrices] = {
        REGISTRY.unit_for_price_key(key).usage_key: value
        for key, value in vars(price).items()
        if value is not None
    }
    # The catalogue's order: what is most specific first, so that parts precede what holds them.
    priced = sorted(
        (REGISTRY.units[key] for key in by_key),
        key=lambda unit: (-len(unit.dimensions), unit.usage_key),
    )
    validate_priced_units(priced, REGISTRY)

    tiered = [value for value in by_key.values() if isinstance(value, TieredPrices)]
    tier_starts = sorted({tier.start for value in tiered for tier in value.tiers})
    bands = [
        [_rate(by_key[unit.usage_key], input_tokens) / unit.per for unit in priced]
        for input_tokens in (0, *(start + 1 for start in tier_starts))
    ]
    by_unit = [unit.usage_key for unit in priced]
    per_usd = math.lcm(*(rate.denominator for band in bands for rate in band))
    return RateCard(
        units=tuple(_priced_unit(unit, priced) for unit in priced),
        unknowable=tuple(gap for unit in priced for gap in _unknowable(unit.usage_key)),
        tier_starts=tuple(tier_starts),
        rates=tuple(tuple(int(rate * per_usd) for rate in band) for band in bands),
        per_usd=Decimal(per_usd),
        priced_keys=_covered_keys(frozenset(by_key)),
        charged_keys=frozenset(by_key),
        media_keys=frozenset(by_key) & MEDIA_USAGE_KEYS,
        dear_keys=_dear_keys([dict(zip(by_unit, band, strict=True)) for band in bands]),
        is_due_without_counts=not priced
        or any(unit.dimensions["family"] in ("tokens", REQUESTS) for unit in priced),
    )


def _dear_keys(bands: Sequence[Mapping[str, Fraction]]) -> frozenset[str]:
    wholes = {"cache_read_tokens": "input_tokens", "output_reasoning_tokens": "output_tokens"}
    return frozenset(
        part
        for part, whole in wholes.items()
        if any(part in rates and rates[part] > rates.get(whole, 0) for rates in bands)
    )


def _rate(price: Decimal | TieredPrices, input_tokens: int) -> Fraction:
    if isinstance(price, TieredPrices):
        reached = [tier.price for tier in price.tiers if input_tokens > tier.start]
        return Fraction(reached[-1] if reached else price.base)
    return Fraction(price)


def _priced_unit(unit: UnitDef, priced: Sequence[UnitDef]) -> _PricedUnit:
    return _PricedUnit(
        usage_key=unit.usage_key,
        parts=tuple(position for position, other in enumerate(priced) if _is_part(other, of=unit)),
        # One report is one request; everything else that is not reported was not used.
        count_unreported=1 if unit.usage_key == REQUESTS else 0,
    )


def _is_part(unit: UnitDef, *, of: UnitDef) -> bool:
    return unit is not of and of.dimensions.items() <= unit.dimensions.items()


@cache
def _unknowable(usage_key: str) -> tuple[_Unknowable, ...]:
    """List which used units forbid to take a missing count of `usage_key` for zero.

    Either a part of it was reported without the whole, or two that overlap in it (cached tokens
    and audio tokens: how many were cached audio?). The rule of `Usage` in the catalogue.
    """
    if usage_key in TOKEN_USAGE_KEYS:
        return ()
    missing = REGISTRY.units[usage_key]
    counted = sorted(COUNTED_USAGE_KEYS | MEDIA_USAGE_KEYS)
    reportable = [REGISTRY.units[key] for key in (*TOKEN_USAGE_KEYS, *counted)]
    parts = [frozenset({unit.usage_key}) for unit in reportable if _is_part(unit, of=missing)]
    overlaps = [
        frozenset({left.usage_key, right.usage_key})
        for left, right in combinations(reportable, 2)
        if left.is_compatible_with(right)
        and not _is_part(left, of=right)
        and not _is_part(right, of=left)
        and missing.dimensions == {**left.dimensions, **right.dimensions}
    ]
    return tuple(_Unknowable(usage_key, reported) for reported in (*parts, *overlaps))


@cache
def _covered_keys(priced_keys: frozenset[str]) -> frozenset[str]:
    """List the usage keys that a price exists for, be it as part of something priced."""
    if not priced_keys:
        return frozenset(TOKEN_USAGE_KEYS)
    return frozenset(
        key
        for key in REGISTRY.units
        if key in priced_keys or REGISTRY.ancestor_usage_keys(key) & priced_keys
    )


class Tariff:
    """Every rate card of one model at one provider.

    Cards are compiled when first needed and kept; the catalogue's periods and price variants bound
    their number.
    """

    __slots__ = (
        "_applies_variants",
        "_cards",
        "_costs_nothing",
        "_model",
        "audio_s_billed_min",
        "model_id",
        "provider_id",
    )

    def __init__(self, *, provider: Provider, model: ModelInfo) -> None:
        """Keep the catalogue's rows; compile nothing yet."""
        self.provider_id = provider.id
        self.model_id = model.id
        self.audio_s_billed_min = _AUDIO_S_BILLED_MIN.get((provider.id, model.id), 0)
        self._model = model
        # As in the catalogue: service tiers hold at the model's own provider, and are not known
        # to hold where another one resells it.
        self._applies_variants = any(model is own for own in provider.models)
        self._cards: dict[tuple[int, tuple[int, ...]], RateCard] = {}
        self._costs_nothing: dict[tuple[int, tuple[int, ...]], bool] = {}

    def card_at(self, at: datetime, context: Mapping[str, str]) -> RateCard:
        """Return the card that holds at `at` (aware) in a price context.

        `context` is the catalogue's: `service_tier` and `processing`, absent where nobody said.
        """
        key = self._card_key(at, context)
        card = self._cards.get(key)
        if card is None:
            known_context = context if self._applies_variants else {}
            card = compile_rate_card(self._model.get_prices(at, known_context))
            self._cards[key] = card
        return card

    def costs_nothing_at(
        self, at: datetime, context: Mapping[str, str], counts: Mapping[str, int]
    ) -> bool:
        """Whether these counts cost nothing by the card that holds at `at`.

        Remembered by card: always ask with the same counts, of a request that uses a lot.
        """
        key = self._card_key(at, context)
        free = self._costs_nothing.get(key)
        if free is None:
            try:
                free = self.card_at(at, context).total_usd(counts) == 0
            except (UsageContradictory, PriceMissing):
                free = False
            self._costs_nothing[key] = free
        return free

    def _card_key(self, at: datetime, context: Mapping[str, str]) -> tuple[int, tuple[int, ...]]:
        known_context = context if self._applies_variants else {}
        return (self._period(at), self._variants(at, known_context))

    def _period(self, at: datetime) -> int:
        """Find the price that holds: the last active one, otherwise the first."""
        prices = self._model.prices
        if isinstance(prices, ModelPrice):
            return 0
        for position in range(len(prices) - 1, 0, -1):
            if _is_active(prices[position].constraint, at):
                return position
        return 0

    def _variants(self, at: datetime, context: Mapping[str, str]) -> tuple[int, ...]:
        if not context:
            return ()
        return tuple(
            position
            for position, variant in enumerate(self._model.price_variants or ())
            if all(context.get(name) == value for name, value in variant.when.items())
            and _is_active(variant.constraint, at)
        )


def _is_active(constraint: StartDateConstraint | TimeOfDateConstraint | None, at: datetime) -> bool:
    return constraint is None or constraint.active(at)


class RateBook:
    """Finds the tariff of a model by the names that publishers use.

    Both memories are bounded: names by `NAMES_CACHED_MAX`, tariffs by the catalogue. The
    catalogue's own search keeps every name it was ever asked (dependencies.md 5), so each search
    here uses a snapshot object that is dropped afterwards.
    """

    def __init__(self, *, providers: Sequence[Provider], price_set: str) -> None:
        """Take the catalogue and its name, which is stored with every price it gave."""
        self.price_set = price_set
        self._providers = list(providers)
        self._tariffs: dict[tuple[str, int], Tariff] = {}
        self._find_remembered = lru_cache(maxsize=NAMES_CACHED_MAX)(self._find)

    @classmethod
    def pinned(cls) -> RateBook:
        """Open the catalogue that came with the installed genai-prices."""
        return cls(providers=pinned_providers, price_set=f"genai-prices {genai_prices.__version__}")

    @property
    def names_cached_count(self) -> int:
        """Count the remembered names; never above `NAMES_CACHED_MAX`."""
        return self._find_remembered.cache_info().currsize

    def find_tariff(self, provider: str | None, model: str) -> Tariff | None:
        """Find a model by provider hint and name; by name alone where that fails.

        Returns None where the catalogue knows neither. Source: facts.md 2.2, item 6.
        """
        return self._find_remembered(provider, model)

    def _find(self, provider: str | None, model: str) -> Tariff | None:
        for hint in (None,) if provider is None else (provider, None):
            snapshot = DataSnapshot(
                providers=self._providers, from_auto_update=False, timestamp=_SNAPSHOT_AT
            )
            try:
                found = snapshot.find_provider_model(model, None, hint, None)
            except LookupError:
                continue
            return self._tariff(*found)
        return None

    def _tariff(self, provider: Provider, model: ModelInfo) -> Tariff:
        # Several names lead to one model; the object's id tells models apart that share a name.
        key = (provider.id, id(model))
        tariff = self._tariffs.get(key)
        if tariff is None:
            tariff = self._tariffs[key] = Tariff(provider=provider, model=model)
        return tariff
