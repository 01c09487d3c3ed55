"""Whatever the catalogue holds: what is held pays for every report within what was asked for.

The amounts of reports come from `price_usage`, which `test_prices_property.py` compares with the
catalogue's own calculation.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contracts.channel import PriceContext, Tokens
from contracts.ledger import Authorize
from contracts.types import CapMode, OnUnreachable, UnpricedPolicy
from services.ledger.domain.caps import Cap, Policy
from services.ledger.domain.holds import GRANT_TOKENS_MAX, GRANT_TOKENS_MIN, decide_strict
from services.ledger.domain.pricing import estimate_question, price_question, price_usage
from services.ledger.domain.rate_cards import RateBook
from tests.factories import usage
from tests.integration.ledger.asking import ask
from tests.unit.ledger.test_prices_property import MODELS, ODD_MODELS, TIER_STARTS

BOOK = RateBook.pinned()
AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
POLICY = Policy(CapMode.STRICT, UnpricedPolicy.ALLOW_AS_FLOOR, OnUnreachable.REFUSE)
ODD, ALL = (
    st.sampled_from(sorted({(provider_id, model.id) for provider_id, model in models}))
    for models in (ODD_MODELS, MODELS)
)
EDGES = [start + delta for start in TIER_STARTS for delta in (0, 1)]
INPUTS = st.one_of(st.integers(0, 300_000), st.sampled_from(EDGES))
SHARES = st.lists(st.one_of(st.just(1.0), st.just(0.0), st.floats(0, 1)), min_size=8, max_size=8)
CONTEXTS = st.builds(
    PriceContext,
    service_tier=st.sampled_from([None, "standard", "flex", "priority"]),
    processing=st.sampled_from([None, "batch"]),
)


@st.composite
def questions(draw: st.DrawFn) -> Authorize:
    provider, model = draw(st.one_of(ODD, ALL))
    bound: dict[str, Any] = {"output_tokens_max": draw(st.none() | st.integers(0, 64_000))}
    if bound["output_tokens_max"] is not None and draw(st.booleans()):
        images = draw(st.integers(0, bound["output_tokens_max"]))
        bound["tool_counts_max"] = {"output_image_tokens": images}
    return ask(
        "q",
        None,
        provider=provider,
        model=model,
        input_tokens_max=draw(INPUTS),
        cache_write=draw(st.sampled_from([None, "none", "5m", "1h"])),
        media=draw(st.sampled_from([None, (), ("image_input",), ("audio_input", "audio_output")])),
        price_context=draw(CONTEXTS),
        **bound,
    )


def used(asked: Authorize, output_max: int, shares: list[float]) -> tuple[Tokens, dict[str, int]]:
    """Some request that keeps to what its question said, down to which kinds its tokens are."""
    media = (
        asked.media if asked.media is not None else ("audio_input", "audio_output", "image_input")
    )
    given = int((asked.input_tokens_max or 0) * shares[0])
    made = int(output_max * shares[1])
    read = int(given * shares[2])
    written = int((given - read) * shares[3])
    writes = {"5m": ("5m",), "1h": ("1h",), "none": (), None: ("5m", "1h")}[asked.cache_write]
    fresh = given - read - (written if writes else 0)
    counts = {}
    if "image_input" in media:
        counts["input_image_tokens"] = int(fresh * shares[4])
    drawn = asked.tool_counts_max.get("output_image_tokens")
    if drawn is not None:
        counts["output_image_tokens"] = min(int(drawn * shares[5]), made)
    rest = made - counts.get("output_image_tokens", 0)
    return Tokens(
        input=given,
        output=made,
        cache_read=read,
        cache_write_5m=written if "5m" in writes and (shares[6] > 0.5 or len(writes) == 1) else 0,
        cache_write_1h=0 if "1h" not in writes or ("5m" in writes and shares[6] > 0.5) else written,
        reasoning=int(rest * shares[7]),
        audio_input=int((fresh - counts.get("input_image_tokens", 0)) * shares[5])
        if "audio_input" in media
        else 0,
        audio_output=int(rest * shares[4]) if "audio_output" in media else 0,
    ), counts


@given(asked=questions(), room=st.integers(1, 20 * 10**9), shares=SHARES, second=SHARES)
def test_what_is_held_fits_and_pays_for_whatever_keeps_to_the_answer(
    asked: Authorize, room: int, shares: list[float], second: list[float]
) -> None:
    cap = Cap("organization", "acme", "Acme", room + 7, 3, False, "2026-11", 1, held_nanousd=4)
    estimate = estimate_question(BOOK, asked, price_question(BOOK, asked, at=AT), AT)
    decided = decide_strict(asked=asked, caps=[cap], policy=POLICY, estimate=estimate, at=AT)
    answer = decided.answer
    if not answer.allowed or estimate.is_free or answer.unpriced:
        assert decided.amount_nanousd == 0
        return
    assert answer.held_nanousd == decided.amount_nanousd
    assert decided.amount_nanousd <= room, "no more is held than remained"
    output_max = answer.output_tokens_max
    if asked.output_tokens_max is None and output_max is not None:
        assert GRANT_TOKENS_MIN <= output_max <= GRANT_TOKENS_MAX
    for each in (shares, second, [1.0] * 8):
        tokens, counts = used(asked, output_max or 0, each)
        said = usage(
            "q",
            "r1",
            provider=asked.provider,
            model=asked.model,
            tokens=tokens,
            tool_counts=counts,
            price_context=asked.price_context,
            occurred_at=AT,
        )
        assert price_usage(BOOK, said).cost_nanousd <= decided.amount_nanousd, (tokens, counts)
