"""Decimal strings both ways."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.types import BIGINT_MAX, BIGINT_MIN
from services.gateway.domain.money import parse_usd, usd_text


@pytest.mark.parametrize(
    ("nanousd", "text"),
    [
        (0, "0.000000"),
        (1, "0.000000001"),
        (13_542_000, "0.013542"),
        (500_000_000, "0.500000"),
        (34_894_475_450, "34.89447545"),
        (-1_500_000_000, "-1.500000"),
        (-1, "-0.000000001"),
        (BIGINT_MAX, "9223372036.854775807"),
        (BIGINT_MIN, "-9223372036.854775808"),
    ],
)
def test_writes_exactly(nanousd: int, text: str) -> None:
    assert usd_text(nanousd) == text


@given(st.integers(0, BIGINT_MAX))
def test_reads_back_what_it_wrote(nanousd: int) -> None:
    assert parse_usd(usd_text(nanousd)) == nanousd


@given(st.integers(BIGINT_MIN, BIGINT_MAX))
def test_writes_the_same_number_as_decimal(nanousd: int) -> None:
    text = usd_text(nanousd)
    assert Decimal(text) * 10**9 == nanousd
    assert "e" not in text.lower()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "+1",
        "-1",
        "1e3",
        "1.",
        ".5",
        "1.0000000001",
        "NaN",
        "Infinity",
        "1,5",
        "1_0",
        "\u0661",
        "9223372036.854775808",
        "12345678901",
        1,
        1.5,
        None,
        True,
    ],
)
def test_refuses_what_is_no_amount(text: object) -> None:
    with pytest.raises(ValueError, match=r"USD"):
        parse_usd(text)


@pytest.mark.parametrize(
    ("text", "nanousd"), [("1", 10**9), ("007.5", 7_500_000_000), ("0.1", 100_000_000)]
)
def test_reads_short_forms(text: str, nanousd: int) -> None:
    assert parse_usd(text) == nanousd
