"""What a provider says that a request cost: used, converted, or left to the catalogue."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contracts.channel import ProviderCost, Tokens
from contracts.types import BIGINT_MAX
from services.ledger.domain.pricing import price_usage, provider_nanousd
from services.ledger.domain.rate_cards import RateBook
from services.ledger.settings import Settings
from tests.factories import ingestion, usage

BOOK = RateBook.pinned()
CATALOGUE = 7_500_000
NOK = {"NOK": Decimal(10)}


def cost(amount: str, currency: str) -> ProviderCost:
    return ProviderCost(amount=amount, currency=currency)


@pytest.mark.parametrize(
    ("amount", "currency", "nanousd", "rate"),
    [
        ("0.013542", "USD", 13_542_000, None),
        ("0", "USD", 0, None),
        (" 1.5e-05 ", "usd", 15_000, None),
        ("1E2", "USD", 100_000_000_000, None),
        ("0.0000000005", "USD", 0, None),
        ("0.0000000015", "USD", 2, None),
        ("0.27", "NOK", 27_000_000, "10"),
        ("0.000000025", " nok ", 2, "10"),
        ("0.000000035", "NOK", 4, "10"),
    ],
)
@pytest.mark.parametrize("report", [usage("q", "r"), ingestion("q")])
def test_a_usable_amount_goes_before_the_catalogue(report, amount, currency, nanousd, rate):
    said = report.model_copy(update={"provider_cost": cost(amount, currency)})
    priced = price_usage(BOOK, said, NOK)
    assert (priced.cost_nanousd, priced.priced) == (nanousd, True)
    assert (priced.price_source, priced.provider_rate) == ("provider_reported", rate)


@pytest.mark.parametrize(
    ("amount", "currency"),
    [
        ("-1", "USD"),
        ("-0", "USD"),
        ("+1", "USD"),
        ("NaN", "USD"),
        ("sNaN", "NOK"),
        ("Infinity", "USD"),
        ("1,5", "USD"),
        ("1_000", "USD"),
        ("1 USD", "USD"),
        ("$1", "USD"),
        ("", "USD"),
        (".", "NOK"),
        ("0x10", "USD"),
        ("\u0661", "USD"),
        ("1e9999", "USD"),
        ("1e999", "NOK"),
        ("9223372036.854775808", "USD"),
        ("92233720368.54775808", "NOK"),
        ("1" * 33, "USD"),
        ("1", "SEK"),
        ("1", "XYZ"),
        ("1", ""),
    ],
)
def test_what_cannot_be_used_falls_back_to_the_catalogue(amount, currency):
    priced = price_usage(BOOK, usage("q", "r", provider_cost=cost(amount, currency)), NOK)
    assert (priced.cost_nanousd, priced.price_source) == (CATALOGUE, "catalogue")
    assert priced.provider_rate is None


def test_a_currency_without_a_rate_falls_back_to_the_catalogue():
    said = usage("q", "r", provider_cost=cost("0.27", "NOK"))
    assert price_usage(BOOK, said).price_source == "catalogue"
    unknown = usage("q", "r", model="no-such-model", provider_cost=cost("0.27", "NOK"))
    assert price_usage(BOOK, unknown).reason == "unknown_model"
    assert price_usage(BOOK, unknown, NOK).priced


def test_impossible_counts_stay_impossible_whatever_they_cost():
    said = usage("q", "r", tokens=Tokens(input=-1), provider_cost=cost("1", "USD"))
    assert price_usage(BOOK, said, NOK).reason == "bad_usage"


@given(
    units=st.integers(0, 10**30),
    exponent=st.integers(-30, 3),
    rate=st.decimals("0.000001", "999999", places=6),
)
def test_a_converted_amount_is_the_exact_quotient_rounded_once_half_to_even(units, exponent, rate):
    amount = f"{units}e{exponent}"
    exact = round(Fraction(Decimal(amount)) / Fraction(rate) * 10**9)
    expected = exact if exact <= BIGINT_MAX else None
    assert provider_nanousd(cost(amount, "NOK"), {"NOK": rate}) == expected


@given(halves=st.integers(0, 10**9), digits=st.integers(0, 25), sign=st.sampled_from((-1, 0, 1)))
def test_a_quotient_beside_a_half_is_not_taken_for_one(halves, digits, sign):
    """Rounding twice would make a half of 0.4999… and even of it again."""
    nanousd = Fraction(2 * halves + 1, 2) + Fraction(sign, 10**digits * 4)
    rate = Decimal(8)
    amount = Decimal((nanousd * 8).numerator) / Decimal((nanousd * 8).denominator)
    if Fraction(amount) != nanousd * 8 or len(amount.as_tuple().digits) > 28:
        return
    # With an exponent: spelt out, it may have more decimals than an amount may have.
    text = f"{amount:f}e-9"
    assert provider_nanousd(cost(text, "NOK"), {"NOK": rate}) == round(nanousd)


@pytest.mark.parametrize("rate", ["0", "-1", "NaN", "Infinity", "ten", "1e10"])
def test_a_rate_that_is_none_stops_the_start(monkeypatch, rate):
    monkeypatch.setenv("STAV_NOK_PER_USD", rate)
    with pytest.raises(ValidationError):
        Settings(postgres_url="p", nats_url="n")


def test_the_rate_is_read_under_the_name_that_people_know(monkeypatch):
    monkeypatch.delenv("STAV_NOK_PER_USD", raising=False)
    assert Settings(postgres_url="p", nats_url="n").rates == {}
    monkeypatch.setenv("STAV_NOK_PER_USD", "")
    assert Settings(postgres_url="p", nats_url="n").rates == {}
    monkeypatch.setenv("STAV_NOK_PER_USD", "10.42")
    assert Settings(postgres_url="p", nats_url="n").rates == {"NOK": Decimal("10.42")}
