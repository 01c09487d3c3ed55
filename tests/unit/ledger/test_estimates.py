"""What a request may cost at most: the dearest that it may be, or nothing that bounds it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.channel import Tokens
from contracts.ledger import Authorize
from contracts.types import UsageKind
from services.ledger.domain.holds import Estimate
from services.ledger.domain.pricing import estimate_question, price_question, price_usage
from services.ledger.domain.rate_cards import RateBook
from tests.factories import usage
from tests.integration.ledger.asking import ask

BOOK = RateBook.pinned()
AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
M = 1_000_000
FLASH = {"provider": "google", "model": "gemini-2.5-flash"}
SONIC = {"provider": "aws", "model": "amazon.nova-sonic-v1:0"}
REALTIME = {"provider": "openai", "model": "gpt-realtime"}
CHEAP_IMAGE = {"provider": "google", "model": "gemini-2.5-flash-image"}
WHISPER = {"provider": "groq", "model": "whisper-large-v3"}
OPUS = {"provider": "anthropic", "model": "claude-opus-4-6"}


def question(**fields: Any) -> Authorize:
    return ask("q", None, **fields)


def estimate(**fields: Any) -> Estimate:
    asked = question(**fields)
    return estimate_question(BOOK, asked, price_question(BOOK, asked, at=AT), AT)


def most(**fields: Any) -> int:
    found = estimate(**fields).most_nanousd
    assert found is not None
    return found


def costs(model: dict[str, str], tokens: Tokens, **fields: Any) -> int:
    said = usage("q", "r1", tokens=tokens, occurred_at=AT, **model, **fields)
    priced = price_usage(BOOK, said)
    assert priced.priced
    return priced.cost_nanousd


def test_audio_is_held_at_its_own_rate_unless_the_asker_says_that_there_is_none() -> None:
    counts = {"input_tokens_max": 10_000, "output_tokens_max": 1_000, "cache_write": "none"}
    words = costs(SONIC, Tokens(input=10_000, output=1_000))
    spoken = costs(SONIC, Tokens(input=10_000, output=1_000, audio_input=10_000))
    both = costs(SONIC, Tokens(input=10_000, output=1_000, audio_input=10_000, audio_output=1_000))
    assert words < spoken < both
    assert most(**SONIC, **counts) == both
    assert most(**SONIC, **counts, media=()) == words
    assert most(**SONIC, **counts, media=("audio_input",)) == spoken
    assert most(**SONIC, **counts, media=("audio_input", "audio_output")) == both


def test_images_that_are_shown_are_held_at_their_own_rate() -> None:
    counts = {"input_tokens_max": M, "output_tokens_max": 0, "cache_write": "none"}
    words, shown = (most(**REALTIME, **counts, media=media) for media in ((), ("image_input",)))
    assert shown > words
    assert most(**REALTIME, **counts) >= shown


def test_images_that_are_made_are_not_guessed() -> None:
    counts = {"input_tokens_max": 1_000, "output_tokens_max": 2_000}
    found = estimate(**CHEAP_IMAGE, **counts, kind=UsageKind.IMAGE)
    assert (found.is_priced, found.most_nanousd, found.cost_of) == (True, None, None)
    assert estimate(**CHEAP_IMAGE, input_tokens_max=1_000).cost_of is None
    stated = question(**CHEAP_IMAGE, **counts).model_copy(update={"cost_nanousd_max": 7})
    assert price_question(BOOK, stated, at=AT).cost_nanousd_max == 7


def test_images_that_are_made_are_held_where_their_number_is_stated() -> None:
    counts = {"input_tokens_max": 1_000, "output_tokens_max": 2_000, "cache_write": "none"}
    words, drawn = ({"output_image_tokens": most_images} for most_images in (0, 1_290))
    of_words = most(**CHEAP_IMAGE, **counts, tool_counts_max=words)
    of_images = most(**CHEAP_IMAGE, **counts, tool_counts_max=drawn)
    assert of_words == costs(CHEAP_IMAGE, Tokens(input=1_000, output=2_000), tool_counts=words)
    assert of_images == costs(CHEAP_IMAGE, Tokens(input=1_000, output=2_000), tool_counts=drawn)
    assert of_images > 5 * of_words
    unlimited = estimate(**CHEAP_IMAGE, input_tokens_max=1_000, tool_counts_max=drawn)
    assert (unlimited.most_nanousd, unlimited.cost_of) == (None, None)
    too_many = estimate(**CHEAP_IMAGE, **counts, tool_counts_max={"output_image_tokens": 2_001})
    assert too_many.most_nanousd is None, "more images than output is no bound"


def test_what_is_charged_by_the_second_is_bounded_by_seconds_and_not_by_tokens() -> None:
    assert estimate(**WHISPER, input_tokens_max=1_000).most_nanousd is None
    seconds = {"audio_seconds": 3_600, "input_audio_seconds": 3_600}
    stated = {"kind": UsageKind.AUDIO, "tool_counts_max": seconds}
    cost = costs(WHISPER, Tokens(), tool_counts=seconds)
    assert cost > 0
    assert most(**WHISPER, **stated) == cost
    assert most(**WHISPER, **stated, output_tokens_max=0) == cost


def test_a_cache_that_costs_more_to_read_than_new_input_is_held_at_that() -> None:
    dear = {"provider": "openrouter", "model": "~deepseek/deepseek-pro-latest"}
    counts = {"input_tokens_max": M, "output_tokens_max": 0, "cache_write": "none"}
    assert most(**dear, **counts) == costs(dear, Tokens(input=M, cache_read=M))
    assert most(**dear, **counts) > costs(dear, Tokens(input=M))


def test_searches_are_held_where_their_number_is_stated() -> None:
    counts = {"input_tokens_max": 1_000, "output_tokens_max": 100, "cache_write": "none"}
    without = most(**OPUS, **counts)
    assert most(**OPUS, **counts, tool_counts_max={"web_searches": 3}) == without + 30 * M
    unknown = estimate(**OPUS, **counts, tool_counts_max={"conjurings": 1})
    assert (unknown.most_nanousd, unknown.cost_of) == (None, None)


def test_seconds_alone_do_not_bound_what_is_charged_by_the_token() -> None:
    found = estimate(**OPUS, tool_counts_max={"web_searches": 1})
    assert (found.most_nanousd, found.cost_of) == (None, None)


@pytest.mark.parametrize("model", [FLASH, SONIC, REALTIME, OPUS])
@given(
    most_input=st.integers(0, 400_000),
    most_output=st.integers(0, 64_000),
    shares=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    cache_write=st.sampled_from((None, "5m", "1h")),
)
def test_no_report_within_the_stated_counts_costs_more_than_is_held(
    model: dict[str, str],
    most_input: int,
    most_output: int,
    shares: list[float],
    cache_write: str | None,
) -> None:
    used, out = int(most_input * shares[0]), int(most_output * shares[1])
    special = int(used * shares[2])
    kinds = [Tokens(input=used, output=out, audio_input=special, audio_output=int(out * shares[3]))]
    kinds.append(Tokens(input=used, output=out, cache_read=special))
    if cache_write != "1h":
        kinds.append(Tokens(input=used, output=out, cache_write_5m=special))
    if cache_write != "5m":
        kinds.append(Tokens(input=used, output=out, cache_write_1h=special))
    held = most(
        **model,
        input_tokens_max=most_input,
        output_tokens_max=most_output,
        cache_write=cache_write,
    )
    for tokens in kinds:
        said = usage("q", "r1", tokens=tokens, occurred_at=AT, **model)
        priced = price_usage(BOOK, said)
        # A split that the counts leave open has no price and is entered at 0.
        assert priced.cost_nanousd <= held, tokens
