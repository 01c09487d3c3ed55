"""What the price catalogue calls the things that it can price, sorted by who counts them.

Pure: read once from the data of the pinned package.
"""

from __future__ import annotations

from typing import Final

from genai_prices.data_units import unit_data
from genai_prices.units import UnitRegistry

REGISTRY: Final = UnitRegistry(unit_data)
REQUESTS: Final = "requests"

TOKEN_USAGE_KEYS = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "output_reasoning_tokens",
    "input_audio_tokens",
    "output_audio_tokens",
)
"""The catalogue's names of the token counts that every report carries (events.md 1)."""

COUNTED_USAGE_KEYS = frozenset(
    key
    for key, unit in REGISTRY.units.items()
    if unit.dimensions["family"] not in ("tokens", REQUESTS)
)
"""What the catalogue can price besides tokens: searches, seconds, pages, characters ..."""

MEDIA_USAGE_KEYS = frozenset(
    key
    for key, unit in REGISTRY.units.items()
    if unit.dimensions["family"] == "tokens"
    and unit.dimensions.get("modality") in ("image", "video")
)
"""Tokens of images and films: parts of the input or the output, said among the tool counts."""

INPUT_MEDIA_KEYS: Final = frozenset(
    key for key in MEDIA_USAGE_KEYS if REGISTRY.units[key].dimensions["direction"] == "input"
)
"""Those that are part of the input; the others are part of the output."""
