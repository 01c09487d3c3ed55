"""Rate cards against the catalogue's own calculation, over the whole pinned catalogue.

The one thing not to break: the expected amount and the expected refusal come from
`genai_prices.calc_price` and its unit registry, never from the code under test.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction

from genai_prices import Usage, calc_price
from genai_prices.data import providers
from genai_prices.data_units import unit_data
from genai_prices.decompose import is_descendant_or_self
from genai_prices.types import (
    ModelInfo,
    ModelPrice,
    PriceCalculation,
    StartDateConstraint,
    TieredPrices,
)
from genai_prices.units import UnitRegistry
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contracts.types import BIGINT_MAX
from services.ledger.domain.prices import PricedRequest, TokenCounts, price_request
from services.ledger.domain.rate_cards import RateBook
from services.ledger.domain.usage_keys import COUNTED_USAGE_KEYS, MEDIA_USAGE_KEYS

BOOK = RateBook.pinned()
UNITS = UnitRegistry(unit_data).units
NOV_2026 = datetime(2026, 11, 30, 12, tzinfo=UTC)
TIER_STARTS = (32_000, 100_000, 128_000, 199_999, 200_000, 256_000, 272_000, 512_000, 524_288)
SERVICE_TIERS = (None, "default", "standard", "flex", "priority", "fast", "batch", "Flex", "")
UNKNOWN_TOOL = "phone_calls"

OWN = {provider.id: provider.models for provider in providers}
RESOLD = [
    (provider.id, model)
    for provider in providers
    for owner_id in provider.fallback_model_providers or ()
    for model in OWN[owner_id]
]
"""Models at a provider that only resells them, where service tiers and batches do not hold."""
MODELS = [(provider_id, model) for provider_id, models in OWN.items() for model in models] + RESOLD


def is_plain(model: ModelInfo) -> bool:
    """Whether it has one price at all times, for tokens only and without tiers."""
    return (
        not model.price_variants
        and isinstance(model.prices, ModelPrice)
        and all(
            isinstance(value, Decimal) and key in ("input_mtok", "output_mtok", "cache_read_mtok")
            for key, value in vars(model.prices).items()
        )
    )


ODD_MODELS = [(provider_id, model) for provider_id, model in MODELS if not is_plain(model)]


def instants_of(model: ModelInfo) -> Iterator[datetime]:
    """Yield a past and a present moment, and both sides of every change of the model's price."""
    yield datetime(2025, 5, 1, tzinfo=UTC)
    yield NOV_2026
    conditionals = [] if isinstance(model.prices, ModelPrice) else model.prices
    for dated in (*conditionals, *(model.price_variants or ())):
        if isinstance(dated.constraint, StartDateConstraint):
            day = dated.constraint.start_date
            start = datetime(day.year, day.month, day.day, tzinfo=UTC)
            yield from (start - timedelta(microseconds=1), start)
        elif dated.constraint is not None:
            for edge in (dated.constraint.start_time, dated.constraint.end_time):
                moment = NOV_2026.replace(hour=edge.hour, minute=edge.minute)
                yield from (moment - timedelta(microseconds=1), moment)


def catalogue_usage(request: PricedRequest) -> dict[str, int]:
    """Write the counts in the catalogue's words."""
    tokens = request["tokens"]
    return {
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "cache_read_tokens": tokens.cache_read,
        "cache_write_tokens": tokens.cache_write_5m + tokens.cache_write_1h,
        "cache_write_5m_tokens": tokens.cache_write_5m,
        "cache_write_1h_tokens": tokens.cache_write_1h,
        "output_reasoning_tokens": tokens.reasoning,
        "input_audio_tokens": tokens.audio_input,
        "output_audio_tokens": tokens.audio_output,
        **{key: n for key, n in request["tool_counts"].items() if n and key != UNKNOWN_TOOL},
    }


def ask_catalogue(request: PricedRequest) -> PriceCalculation | str:
    """Let the catalogue price it; by the model alone where the provider's name does not help."""
    if any(count < 0 for count in request["tool_counts"].values()):
        return "bad_usage"
    context = {
        name: value
        for name, value in (
            ("service_tier", request["service_tier"]),
            ("processing", request["processing"]),
        )
        if value is not None
    }
    try:
        usage = Usage(**catalogue_usage(request))
        for hint in dict.fromkeys((request["provider"], None)):
            try:
                return calc_price(
                    usage,
                    request["model"],
                    provider_id=hint,
                    genai_request_timestamp=request["at"],
                    price_context=context,
                )
            except LookupError:
                continue
    except ValueError:
        return "bad_usage"
    return "unknown_model"


def contradicts_itself(request: PricedRequest) -> bool:
    """Whether a part exceeds its whole, which the catalogue overlooks where it has no price."""
    tokens = request["tokens"]
    wholes = {"input": tokens.input, "output": tokens.output}
    return (
        any(
            count > wholes[UNITS[key].dimensions["direction"]]
            for key, count in request["tool_counts"].items()
            if key in MEDIA_USAGE_KEYS
        )
        or tokens.cache_read + tokens.cache_write_5m + tokens.cache_write_1h > tokens.input
        or tokens.audio_input > tokens.input
        or max(tokens.reasoning, tokens.audio_output) > tokens.output
    )


def lacks_a_price(request: PricedRequest, model_price: ModelPrice) -> bool:
    """Whether the catalogue counted something that was used as if it cost nothing."""
    priced_keys = {key for key, value in vars(model_price).items() if value is not None}
    priced = [unit for unit in UNITS.values() if unit.price_key in priced_keys]
    used = [key for key, count in catalogue_usage(request).items() if count]
    if request["tool_counts"].get(UNKNOWN_TOOL):
        return True
    if not priced:
        return any(UNITS[key].dimensions["family"] != "tokens" for key in used)
    if not used:
        return all(unit.dimensions["family"] not in ("tokens", "requests") for unit in priced)
    return any(not any(is_descendant_or_self(unit, UNITS[key]) for unit in priced) for key in used)


def assert_agrees_with_the_catalogue(request: PricedRequest) -> None:
    """Compare amount, refusal, and the names of provider and model."""
    ours = price_request(book=BOOK, **request)
    theirs = ask_catalogue(request)
    if isinstance(theirs, PriceCalculation):
        if contradicts_itself(request):
            theirs = "bad_usage"
        elif lacks_a_price(request, theirs.model_price):
            theirs = "no_price"
    if isinstance(theirs, str):
        assert (ours.reason, ours.cost_nanousd) == (theirs, 0)
        assert (ours.priced, ours.price_source) == (False, "unpriced")
        return
    # `round` of a Fraction is half to even.
    assert ours.cost_nanousd == round(Fraction(theirs.total_price) * 10**9)
    assert (ours.priced, ours.reason, ours.price_source) == (True, None, "catalogue")
    assert (ours.provider_id, ours.model_id) == (theirs.provider.id, theirs.model.id)


@st.composite
def names(draw: st.DrawFn) -> tuple[str | None, str]:
    """Draw a provider hint and a model name: right, wrong, spelled otherwise, or unknown."""
    provider_id, model = draw(st.one_of(st.sampled_from(ODD_MODELS), st.sampled_from(MODELS)))
    spelling = draw(st.sampled_from(["as is"] * 8 + ["alone", "elsewhere", "litellm", "loud", "?"]))
    match spelling:
        case "alone":
            return None, model.id
        case "elsewhere":
            others = [provider.id for provider in providers]
            return draw(st.sampled_from([*others, "google-vertex", "bedrock", "", "x"])), model.id
        case "litellm":
            return "litellm", f"{provider_id}/{model.id}"
        case "loud":
            return f" {provider_id.upper()} ", model.id.upper()
        case "?":
            return draw(st.none() | st.text(max_size=5)), draw(st.text(max_size=9))
    return provider_id, model.id


@st.composite
def token_counts(draw: st.DrawFn) -> TokenCounts:
    """Draw counts that mostly hold together, often at the edge of a context tier."""
    if draw(st.integers(0, 19)) == 0:
        wild = st.integers(-2, 1_000_000)
        return TokenCounts(*(draw(wild) for _ in range(8)))
    edges = [start + delta for start in TIER_STARTS for delta in (0, 1)]
    whole = st.one_of(st.just(0), st.sampled_from(edges), st.integers(1, 10_000_000))
    input_tokens, output_tokens = draw(whole), draw(whole)

    def part_of(rest: int) -> int:
        return draw(st.one_of(st.just(0), st.integers(0, rest)))

    cache_read = part_of(input_tokens)
    cache_write_5m = part_of(input_tokens - cache_read)
    return TokenCounts(
        input=input_tokens,
        output=output_tokens,
        cache_read=cache_read,
        cache_write_5m=cache_write_5m,
        cache_write_1h=part_of(input_tokens - cache_read - cache_write_5m),
        reasoning=part_of(output_tokens),
        audio_input=part_of(input_tokens),
        audio_output=part_of(output_tokens),
    )


NO_TOOLS: dict[str, int] = {}
TOOL_COUNTS = st.one_of(
    st.just(NO_TOOLS),
    st.just(NO_TOOLS),
    st.dictionaries(
        st.sampled_from(["web_searches", "audio_seconds", "input_audio_seconds"]),
        st.integers(0, 40),
    ),
    st.dictionaries(
        st.sampled_from([*sorted(COUNTED_USAGE_KEYS), UNKNOWN_TOOL]), st.integers(-1, 9), max_size=3
    ),
    st.dictionaries(
        st.sampled_from(["input_image_tokens", "output_image_tokens", "cache_image_read_tokens"]),
        st.integers(0, 40_000),
    ),
    st.dictionaries(st.sampled_from(sorted(MEDIA_USAGE_KEYS)), st.integers(-1, 900), max_size=3),
)
INSTANTS = st.datetimes(datetime(2023, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 - the strategy adds the zone


@st.composite
def requests(draw: st.DrawFn) -> PricedRequest:
    """Draw a whole request."""
    provider, model = draw(names())
    changes = [moment for _, known in MODELS if known.id == model for moment in instants_of(known)]
    return PricedRequest(
        provider=provider,
        model=model,
        tokens=draw(token_counts()),
        tool_counts=draw(TOOL_COUNTS),
        service_tier=draw(st.sampled_from(SERVICE_TIERS)),
        processing=draw(st.sampled_from([None, "batch"])),
        at=draw(st.one_of(st.sampled_from(changes or [NOV_2026]), INSTANTS)),
    )


def plain_request(provider: str | None, model: str, tokens: TokenCounts) -> PricedRequest:
    """Build a request of today without tools and price context."""
    return PricedRequest(
        provider=provider,
        model=model,
        tokens=tokens,
        tool_counts={},
        service_tier=None,
        processing=None,
        at=NOV_2026,
    )


@settings(max_examples=600, deadline=None)
@given(requests())
@example(plain_request("google", "gemini-2.5-pro", TokenCounts(input=200_000)))
@example(plain_request("google", "gemini-2.5-pro", TokenCounts(input=200_001)))
@example(
    plain_request(
        "anthropic", "claude-opus-4-6", TokenCounts(input=9, cache_write_5m=4, cache_write_1h=5)
    )
)
@example(plain_request("openai", "gpt-realtime", TokenCounts(input=9, cache_read=1, audio_input=1)))
@example(plain_request("groq", "whisper-large-v3", TokenCounts()))
@example(plain_request(None, "model-x-9000", TokenCounts(input=1)))
def test_agrees_with_the_catalogue_on_any_request(request: PricedRequest) -> None:
    assert_agrees_with_the_catalogue(request)


def test_agrees_with_the_catalogue_on_every_model_period_tier_and_context() -> None:
    tokens = TokenCounts(
        input=31_999,
        output=1_237,
        cache_read=7_919,
        cache_write_5m=1_013,
        cache_write_1h=2_003,
        reasoning=331,
    )
    for provider_id, model in MODELS:
        for at in instants_of(model):
            for service_tier in SERVICE_TIERS if model.price_variants else (None,):
                for processing in (None, "batch") if model.price_variants else (None,):
                    request = plain_request(provider_id, model.id, tokens)
                    request["at"] = at
                    request["service_tier"] = service_tier
                    request["processing"] = processing
                    assert_agrees_with_the_catalogue(request)


def test_agrees_with_the_catalogue_at_the_edge_of_every_context_tier() -> None:
    for provider_id, model in ODD_MODELS:
        price = model.get_prices(NOV_2026)
        tiered = [value for value in vars(price).values() if isinstance(value, TieredPrices)]
        for start in {tier.start for value in tiered for tier in value.tiers}:
            for input_tokens in (start - 1, start, start + 1):
                tokens = TokenCounts(input=input_tokens, output=7, cache_read=11, cache_write_5m=13)
                assert_agrees_with_the_catalogue(plain_request(provider_id, model.id, tokens))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(MODELS), st.integers(0, BIGINT_MAX), st.integers(0, BIGINT_MAX))
def test_stays_exact_for_any_count_and_calls_an_amount_beyond_bigint_bad_usage(
    named: tuple[str, ModelInfo], input_tokens: int, output_tokens: int
) -> None:
    provider_id, model = named
    tokens = TokenCounts(input=input_tokens, output=output_tokens)
    request = plain_request(provider_id, model.id, tokens)
    # The catalogue rounds to 28 digits by default, too few for counts of 19.
    with localcontext(prec=100):
        theirs = ask_catalogue(request)
    if isinstance(theirs, str) or lacks_a_price(request, theirs.model_price):
        assert price_request(book=BOOK, **request).priced is False
        return
    nanousd = round(Fraction(theirs.total_price) * 10**9)
    ours = price_request(book=BOOK, **request)
    assert (ours.cost_nanousd, ours.reason) == (
        (nanousd, None) if nanousd <= BIGINT_MAX else (0, "bad_usage")
    )
