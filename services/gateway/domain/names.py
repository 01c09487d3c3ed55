"""Names and addresses that people read: what they may hold.

The one thing not to break: two names that look alike on a screen are alike. Control characters and
those that turn the direction of writing make a name lie about itself.
"""

from __future__ import annotations

import re
import unicodedata

EMAIL_CHARS_MAX = 254
_DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Unicode's marks, embeddings, overrides and isolates of direction (UAX 9)."""
_UNSEEN = frozenset(
    "\u00ad\u034f\u115f\u1160\u180e\u200b\u2060\u2061\u2062\u2063\u2064\u3164\ufeff"
)
"""Characters without a shape of their own; joiners stay, scripts and emoji need them."""
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Co", "Cn", "Zl", "Zp"})
_EMAIL = re.compile(r"[^\s@<>()\[\]\\,;:\"]{1,64}@[^\s@<>()\[\]\\,;:\"]{1,253}\Z")


def clean_name(name: str) -> str:
    """A name in Unicode's composed form.

    Raises:
        ValueError: it is blank, begins or ends with blanks, or holds characters that are not seen
            or that turn the direction of writing.
    """
    composed = unicodedata.normalize("NFC", name)
    if composed != composed.strip() or not composed:
        raise ValueError("a name does not begin or end with blanks, and is not blank")
    for character in composed:
        if character in _DIRECTION:
            raise ValueError("a name holds no characters that turn the direction of writing")
        if character in _UNSEEN or unicodedata.category(character) in _FORBIDDEN_CATEGORIES:
            raise ValueError("a name holds no control characters and none that are not seen")
    return composed


def clean_sentence(text: str) -> str:
    """A sentence that somebody wrote, in Unicode's composed form and on one line.

    Raises:
        ValueError: as `clean_name`.
    """
    try:
        return clean_name(text)
    except ValueError as error:
        raise ValueError(str(error).replace("a name", "a sentence")) from None


def clean_email(address: str) -> str:
    """An address as it is compared: composed and in lower case.

    Raises:
        ValueError: it has not the form of one.
    """
    folded = unicodedata.normalize("NFC", address).strip().lower()
    if len(folded) > EMAIL_CHARS_MAX or not _EMAIL.match(folded):
        raise ValueError("write an address such as ana@example.org")
    return clean_name(folded)
