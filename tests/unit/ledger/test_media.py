"""Images and films in reports: charged at their rate where they are counted, else a floor."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from contracts.channel import ProviderCost, Tokens
from services.ledger.domain.prices import Priced
from services.ledger.domain.pricing import price_usage
from services.ledger.domain.rate_cards import RateBook
from tests.factories import usage

BOOK = RateBook.pinned()
AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
CHEAP_IMAGE = {"provider": "google", "model": "gemini-2.5-flash-image"}
REALTIME = {"provider": "openai", "model": "gpt-realtime"}
FILM = {"provider": "google", "model": "gemini-omni-flash-preview"}
OPUS = {"provider": "anthropic", "model": "claude-opus-4-6"}


def priced(model: dict[str, str], tokens: Tokens, **fields: Any) -> Priced:
    return price_usage(BOOK, usage("q", "r1", tokens=tokens, occurred_at=AT, **model, **fields))


def shown(answer: Priced) -> tuple[bool, str | None, str]:
    return (answer.priced, answer.reason, answer.price_source)


FLOOR = (False, "media_uncounted", "catalogue")
EXACT = (True, None, "catalogue")


def test_a_picture_that_nobody_counted_costs_words_at_least() -> None:
    tokens = Tokens(input=20, output=1_290)
    uncounted = priced(CHEAP_IMAGE, tokens)
    assert shown(uncounted) == FLOOR
    counted = priced(CHEAP_IMAGE, tokens, tool_counts={"output_image_tokens": 1_290})
    assert shown(counted) == EXACT
    words = priced(CHEAP_IMAGE, tokens, tool_counts={"output_image_tokens": 0})
    assert shown(words) == EXACT
    assert words.cost_nanousd == uncounted.cost_nanousd < counted.cost_nanousd
    assert counted.cost_nanousd == 20 * 300 + 1_290 * 30_000


def test_only_what_may_have_been_a_picture_is_left_open() -> None:
    assert shown(priced(CHEAP_IMAGE, Tokens(input=20))) == EXACT, "nothing was made"
    spoken = Tokens(input=500, output=90, audio_input=500, audio_output=90)
    assert shown(priced(REALTIME, spoken)) == EXACT, "all of it is audio"
    mixed = spoken.model_copy(update={"input": 501})
    assert shown(priced(REALTIME, mixed)) == FLOOR
    said = {"input_image_tokens": 1}
    assert shown(priced(REALTIME, mixed, tool_counts=said)) == EXACT
    assert shown(priced(OPUS, Tokens(input=20, output=9))) == EXACT, "no rate of their own"


def test_each_kind_that_is_charged_apart_has_to_be_counted() -> None:
    tokens = Tokens(input=10, output=1_000)
    answer = priced(FILM, tokens, tool_counts={"output_video_tokens": 900})
    needs = {"output_video_tokens": 900, "input_image_tokens": 0, "input_video_tokens": 0}
    assert shown(priced(FILM, tokens, tool_counts=needs)) == EXACT
    assert answer.cost_nanousd == priced(FILM, tokens, tool_counts=needs).cost_nanousd


@pytest.mark.parametrize(
    "counts",
    [{"output_image_tokens": 1_291}, {"input_image_tokens": 21}, {"input_image_tokens": -1}],
)
def test_a_part_is_no_more_than_its_whole(counts: dict[str, int]) -> None:
    for model in (CHEAP_IMAGE, OPUS):
        answer = priced(model, Tokens(input=20, output=1_290), tool_counts=counts)
        assert (answer.reason, answer.cost_nanousd) == ("bad_usage", 0)


def test_pictures_among_cached_tokens_leave_open_which_were_cached() -> None:
    tokens = Tokens(input=100, cache_read=60)
    said = {"input_image_tokens": 80}
    assert priced(REALTIME, tokens, tool_counts=said).reason == "bad_usage"
    split = said | {"cache_image_read_tokens": 50}
    assert shown(priced(REALTIME, tokens, tool_counts=split)) == EXACT


def test_what_the_provider_says_that_it_cost_is_no_floor() -> None:
    cost = ProviderCost(amount="0.04", currency="USD")
    answer = priced(CHEAP_IMAGE, Tokens(input=20, output=1_290), provider_cost=cost)
    assert (shown(answer), answer.cost_nanousd) == ((True, None, "provider_reported"), 40_000_000)
