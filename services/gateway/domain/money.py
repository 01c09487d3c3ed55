"""Nano-dollars and the decimal strings that HTTP shows.

The one thing not to break: both directions are exact. No float, no exponent, no rounding.
"""

from __future__ import annotations

import re

from contracts.types import BIGINT_MAX, NANOUSD_PER_USD

FRACTION_DIGITS_MAX = 9
"""One nano-dollar (design.md 3, *Money*)."""
FRACTION_DIGITS_MIN = 6
"""Shown at least, as in design.md 3: `0.013542`."""
USD_PATTERN = r"^[0-9]{1,10}(\.[0-9]{1,9})?$"
_USD = re.compile(r"([0-9]{1,10})(?:\.([0-9]{1,9}))?\Z", re.ASCII)


def usd_text(nanousd: int) -> str:
    """Write an amount in USD: exact, trailing zeros cut down to six fractional digits.

    Units: nano-USD in, a decimal string of USD out; negative amounts keep their sign.
    """
    whole, fraction = divmod(abs(nanousd), NANOUSD_PER_USD)
    digits = f"{fraction:0{FRACTION_DIGITS_MAX}d}".rstrip("0").ljust(FRACTION_DIGITS_MIN, "0")
    return f"{'-' if nanousd < 0 else ''}{whole}.{digits}"


def parse_usd(text: object) -> int:
    """Read an amount in USD that is not negative.

    Units: a decimal string of USD in, nano-USD out.

    Raises:
        ValueError: it is no string of digits with at most nine after the point, or too large.
    """
    match = _USD.match(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError('write USD as a decimal string with at most 9 digits after ".": "12.50"')
    fraction = (match[2] or "").ljust(FRACTION_DIGITS_MAX, "0")
    nanousd = int(match[1]) * NANOUSD_PER_USD + int(fraction)
    if nanousd > BIGINT_MAX:
        raise ValueError("at most 9223372036.854775807 USD")
    return nanousd
