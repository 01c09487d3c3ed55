"""Prices of single requests, worked out by hand from the published rates of the pinned catalogue.

The one thing not to break: no expected amount comes from the code under test.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from genai_prices import data_snapshot

from contracts.types import BIGINT_MAX
from services.ledger.domain.prices import (
    AmountOutOfRange,
    Priced,
    TokenCounts,
    nanousd_from_usd,
    price_request,
)
from services.ledger.domain.rate_cards import NAMES_CACHED_MAX, RateBook

BOOK = RateBook.pinned()
FEB_2026 = datetime(2026, 2, 11, 12, tzinfo=UTC)
NOV_2026 = datetime(2026, 11, 30, 12, tzinfo=UTC)


def price(
    model: str,
    tokens: TokenCounts,
    *,
    provider: str | None = None,
    tool_counts: Mapping[str, int] | None = None,
    context: tuple[str | None, str | None] = (None, None),
    at: datetime = NOV_2026,
) -> Priced:
    """Price one request; `context` is service tier and processing."""
    service_tier, processing = context
    return price_request(
        book=BOOK,
        provider=provider,
        model=model,
        tokens=tokens,
        tool_counts=tool_counts or {},
        service_tier=service_tier,
        processing=processing,
        at=at,
    )


def test_prices_cache_writes_of_five_minutes_and_one_hour_apart() -> None:
    tokens = TokenCounts(
        input=16_000, output=500, cache_read=10_000, cache_write_5m=2_000, cache_write_1h=3_000
    )
    answer = price("claude-opus-4-6", tokens, provider="anthropic", at=FEB_2026)
    uncached, read, write_5m, write_1h = 1_000 * 5_000, 10_000 * 500, 2_000 * 6_250, 3_000 * 10_000
    assert answer == Priced(
        cost_nanousd=uncached + read + write_5m + write_1h + 500 * 25_000,
        priced=True,
        reason=None,
        price_source="catalogue",
        provider_id="anthropic",
        model_id="claude-opus-4-6",
        price_set="genai-prices 0.2.3",
    )


@pytest.mark.parametrize(
    ("input_tokens", "cost_nanousd"), [(200_000, 250_000_000), (200_001, 500_002_500)]
)
def test_applies_a_context_tier_to_the_whole_request(input_tokens: int, cost_nanousd: int) -> None:
    answer = price("gemini-2.5-pro", TokenCounts(input=input_tokens), provider="google")
    assert answer.cost_nanousd == cost_nanousd


@pytest.mark.parametrize(
    ("at", "cost_nanousd"),
    [
        (datetime(2025, 5, 20, tzinfo=UTC), 10_000_000_000),
        (datetime(2025, 6, 9, 23, 59, 59, tzinfo=UTC), 10_000_000_000),
        (datetime(2025, 6, 10, tzinfo=UTC), 2_000_000_000),
        (NOV_2026, 2_000_000_000),
    ],
)
def test_uses_the_price_of_the_day_of_the_request(at: datetime, cost_nanousd: int) -> None:
    answer = price("o3", TokenCounts(input=1_000_000), provider="openai", at=at)
    assert answer.cost_nanousd == cost_nanousd


@pytest.mark.parametrize(("hour", "cost_nanousd"), [(2, 1_320_000), (5, 660_000), (7, 1_320_000)])
def test_uses_the_price_of_the_hour_where_there_is_one(hour: int, cost_nanousd: int) -> None:
    at = datetime(2026, 11, 30, hour, tzinfo=UTC)
    answer = price("deepseek-v4-pro", TokenCounts(input=1_000), provider="deepseek", at=at)
    assert answer.cost_nanousd == cost_nanousd


@pytest.mark.parametrize(
    ("provider", "model", "context", "cost_nanousd"),
    [
        ("openai", "o3", (None, None), 2_000_000),
        ("openai", "o3", ("default", None), 2_000_000),
        ("openai", "o3", ("flex", None), 1_000_000),
        ("openai", "o3", ("priority", None), 3_500_000),
        ("openai", "o3", ("a tier that nobody sells", None), 2_000_000),
        ("openai", "o3", (None, "batch"), 1_000_000),
        ("openai", "gpt-5", ("flex", None), 625_000),
        ("azure", "gpt-5", ("flex", None), 1_250_000),
    ],
)
def test_knows_service_tiers_and_batches_at_the_models_own_provider(
    provider: str, model: str, context: tuple[str | None, str | None], cost_nanousd: int
) -> None:
    answer = price(model, TokenCounts(input=1_000), provider=provider, context=context)
    assert (answer.cost_nanousd, answer.provider_id) == (cost_nanousd, provider)


def test_prices_reasoning_as_a_part_of_the_output() -> None:
    tokens = TokenCounts(input=100, output=1_000, reasoning=400)
    apart = price("sonar-deep-research", tokens, provider="perplexity")
    assert apart.cost_nanousd == 100 * 2_000 + 600 * 8_000 + 400 * 3_000
    alike = price("o3", tokens, provider="openai")
    assert alike.cost_nanousd == 100 * 2_000 + 1_000 * 8_000


def test_prices_audio_apart() -> None:
    tokens = TokenCounts(input=1_000, output=200, audio_input=700, audio_output=150)
    answer = price("gpt-4o-realtime-preview", tokens, provider="openai")
    text, audio = 300 * 5_000 + 50 * 20_000, 700 * 40_000 + 150 * 80_000
    assert answer.cost_nanousd == text + audio


def test_adds_what_is_charged_per_request_and_per_search() -> None:
    tokens = TokenCounts(input=1_000, output=100)
    per_request = price("sonar", tokens, provider="perplexity")
    assert per_request.cost_nanousd == 1_000 * 1_000 + 100 * 1_000 + 12_000_000
    searches = price(
        "claude-opus-4-6", tokens, provider="anthropic", tool_counts={"web_searches": 3}
    )
    assert searches.cost_nanousd == 1_000 * 5_000 + 100 * 25_000 + 3 * 10_000_000


@pytest.mark.parametrize(
    ("model", "seconds", "cost_nanousd"),
    [("whisper-1", 90, 9_000_000), ("whisper-large-v3", 3, 308_333), ("whisper-1", 7, 700_000)],
)
def test_prices_audio_by_the_second(model: str, seconds: int, cost_nanousd: int) -> None:
    provider = "openai" if model == "whisper-1" else "groq"
    answer = price(model, TokenCounts(), provider=provider, tool_counts={"audio_seconds": seconds})
    assert answer.cost_nanousd == cost_nanousd


@pytest.mark.parametrize(
    ("cache_read", "cost_nanousd"),
    [(4, 14), (12, 44), (3, 11), (1, 4), (2, 7)],
    ids=["14.5 down", "43.5 up", "10.875", "3.625", "7.25"],
)
def test_rounds_fractions_of_a_nano_dollar_half_to_even(cache_read: int, cost_nanousd: int) -> None:
    # 0.003625 USD per million tokens read from the cache are 3.625 nano-USD each.
    tokens = TokenCounts(input=cache_read, cache_read=cache_read)
    answer = price("deepseek-v4-pro", tokens, provider="deepseek", at=FEB_2026)
    assert answer.cost_nanousd == cost_nanousd


@pytest.mark.parametrize(
    ("amount_usd", "nanousd"),
    [
        ("0", 0),
        ("0E+400", 0),
        ("0.0000000005", 0),
        ("0.0000000015", 2),
        ("0.00000000050000000000000000000000000000000000000000000001", 1),
        ("1E-400", 0),
        ("-0.0000000015", -2),
        ("9223372036.854775807", BIGINT_MAX),
        ("9223372036.8547758074", BIGINT_MAX),
    ],
)
def test_converts_dollars_once_and_half_to_even(amount_usd: str, nanousd: int) -> None:
    assert nanousd_from_usd(Decimal(amount_usd)) == nanousd


@pytest.mark.parametrize(
    "amount_usd",
    ["9223372036.8547758075", "9999999999.9999999999", "1E+400", "NaN", "sNaN", "Infinity"],
)
def test_refuses_an_amount_that_no_bigint_holds(amount_usd: str) -> None:
    with pytest.raises(AmountOutOfRange, match="does not fit"):
        nanousd_from_usd(Decimal(amount_usd))


@pytest.mark.parametrize("model", ["deepseek-chat-v3-0324:free", "stealth/crouton-alpha"])
def test_tells_free_from_unpriced(model: str) -> None:
    tokens = TokenCounts(input=1_000, output=100, cache_read=10)
    free = price(model, tokens, provider="openrouter")
    assert (free.cost_nanousd, free.priced, free.reason) == (0, True, None)
    search = price(model, tokens, provider="openrouter", tool_counts={"web_searches": 1})
    assert (search.cost_nanousd, search.priced, search.reason) == (0, False, "no_price")


@pytest.mark.parametrize("provider", [None, "anthropic", "a provider that nobody knows", ""])
def test_leaves_an_unknown_model_unpriced(provider: str | None) -> None:
    assert price("model-x-9000", TokenCounts(input=1), provider=provider) == Priced(
        cost_nanousd=0,
        priced=False,
        reason="unknown_model",
        price_source="unpriced",
        provider_id=None,
        model_id=None,
        price_set="genai-prices 0.2.3",
    )


@pytest.mark.parametrize("provider", ["our-own-proxy", "mistral", None])
def test_falls_back_to_the_model_name_alone(provider: str | None) -> None:
    answer = price("claude-opus-4-6", TokenCounts(input=1_000), provider=provider)
    assert (answer.cost_nanousd, answer.provider_id) == (5_000_000, "anthropic")


@pytest.mark.parametrize(
    "tokens",
    [
        TokenCounts(input=-1),
        TokenCounts(output=-1),
        TokenCounts(cache_write_1h=-1),
        TokenCounts(input=BIGINT_MAX + 1),
        TokenCounts(input=BIGINT_MAX),
        TokenCounts(input=100, cache_read=101),
        TokenCounts(input=100, cache_read=50, cache_write_5m=30, cache_write_1h=21),
        TokenCounts(input=100, audio_input=101),
        TokenCounts(output=100, reasoning=101),
        TokenCounts(output=100, audio_output=101),
    ],
)
@pytest.mark.parametrize(
    ("provider", "model"),
    [("anthropic", "claude-opus-4-6"), ("openai", "gpt-4o"), ("perplexity", "sonar-deep-research")],
)
def test_calls_impossible_counts_bad_usage(provider: str, model: str, tokens: TokenCounts) -> None:
    answer = price(model, tokens, provider=provider)
    assert (answer.cost_nanousd, answer.priced, answer.reason) == (0, False, "bad_usage")
    assert (answer.provider_id, answer.model_id) == (provider, model)


def test_calls_a_split_that_the_counts_leave_open_bad_usage() -> None:
    # How many of the cached tokens were audio? They cost 0.1 instead of 0.03 USD per million.
    tokens = TokenCounts(input=1_000, cache_read=400, audio_input=500)
    assert price("gemini-2.5-flash", tokens, provider="google").reason == "bad_usage"


@pytest.mark.parametrize("tool_counts", [{"web_searches": -1}, {"web_searches": BIGINT_MAX + 1}])
def test_calls_impossible_tool_counts_bad_usage(tool_counts: dict[str, int]) -> None:
    answer = price("claude-opus-4-6", TokenCounts(input=1), tool_counts=tool_counts)
    assert answer.reason == "bad_usage"


@pytest.mark.parametrize(
    ("provider", "model", "tokens", "tool_counts"),
    [
        ("openai", "text-embedding-3-small", TokenCounts(input=10, output=1), {}),
        ("openai", "whisper-1", TokenCounts(input=10), {}),
        ("openai", "whisper-1", TokenCounts(), {}),
        ("openai", "gpt-4o-2024-05-13", TokenCounts(input=10), {"rerank_searches": 1}),
        ("anthropic", "claude-opus-4-6", TokenCounts(input=10), {"phone_calls": 1}),
        ("anthropic", "claude-opus-4-6", TokenCounts(input=10), {"input_tokens": 1}),
        ("anthropic", "claude-opus-4-6", TokenCounts(input=10), {"requests": 1}),
    ],
)
def test_leaves_a_request_unpriced_when_a_used_thing_has_no_price(
    provider: str, model: str, tokens: TokenCounts, tool_counts: dict[str, int]
) -> None:
    answer = price(model, tokens, provider=provider, tool_counts=tool_counts)
    assert (answer.cost_nanousd, answer.priced, answer.reason) == (0, False, "no_price")


def test_ignores_tool_counts_of_zero() -> None:
    tokens = TokenCounts(input=1_000)
    answer = price("claude-opus-4-6", tokens, tool_counts={"web_searches": 0, "phone_calls": 0})
    assert (answer.cost_nanousd, answer.priced) == (5_000_000, True)


def test_remembers_a_bounded_number_of_names_and_leaves_no_trace_in_the_catalogue() -> None:
    snapshot = data_snapshot.get_snapshot()
    before = repr((snapshot._lookup_cache, snapshot._provider_cache, snapshot._provider_misses))
    book = RateBook.pinned()
    for number in range(NAMES_CACHED_MAX + 100):
        assert book.find_tariff("no-such-provider", f"no-such-model-{number}") is None
    assert book.names_cached_count == NAMES_CACHED_MAX
    after = repr((snapshot._lookup_cache, snapshot._provider_cache, snapshot._provider_misses))
    assert after == before
