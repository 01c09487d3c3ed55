"""Decimal strings of USD at the HTTP edge, integers of nano-USD everywhere else.

The one thing not to break: both ways are exact, and no float comes near (design.md 3, *Money*).
"""

from __future__ import annotations

import re
from typing import Final

from contracts.types import NANOUSD_PER_USD

_PLACES: Final = 9
_USD: Final = re.compile(r"(-?)(\d{1,12})(?:\.(\d{1,30}))?\Z", re.ASCII)
"""No exponent (design.md 3); twelve digits are beyond every 64-bit amount of nano-USD."""


def usd_text(nanousd: int) -> str:
    """Write nano-USD as a decimal string of USD without exponent: 13542000 is `0.013542`."""
    sign = "-" if nanousd < 0 else ""
    whole, rest = divmod(abs(nanousd), NANOUSD_PER_USD)
    digits = f"{rest:0{_PLACES}d}".rstrip("0")
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def nanousd_of(text: str) -> int:
    """Read a decimal string of USD as nano-USD.

    Raises:
        ValueError: it is no number, or finer than a nano-dollar.
    """
    match = _USD.match(text)
    if match is None:
        raise ValueError(f"{text[:64]!r} is no amount of USD")
    sign, whole, fraction = match[1], match[2], match[3] or ""
    if fraction[_PLACES:].strip("0"):
        raise ValueError(f"{text[:64]!r} is finer than a nano-dollar")
    amount = int(whole) * NANOUSD_PER_USD + int(fraction[:_PLACES].ljust(_PLACES, "0"))
    return -amount if sign else amount
