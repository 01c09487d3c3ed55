"""The form of credentials: API keys, sessions, invitations, and the deployment key.

The one thing not to break: what is stored of a secret can be compared with it, never turned into
it. A secret has 256 random bits, so a plain SHA-256 needs neither salt nor stretching.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from enum import StrEnum

TOKEN_ID_HEX_DIGITS = 16
SECRET_CHARS = 43
"""32 random bytes in URL-safe base64 without padding."""
_TOKEN = re.compile(r"(rk|rs|ri)_([0-9a-f]{16})_([A-Za-z0-9_-]{43})\Z", re.ASCII)
_DEPLOYMENT_KEY = re.compile(r"rd_[A-Za-z0-9_-]{43}\Z", re.ASCII)


class TokenKind(StrEnum):
    """What a token opens; its prefix, so that a leaked one is recognized."""

    API_KEY = "rk"
    SESSION = "rs"
    INVITATION = "ri"


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it was presented or drawn: nothing about it is checked yet."""

    kind: TokenKind
    token_id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The whole token, shown once when it is made."""
        return f"{self.kind}_{self.token_id}_{self.secret}"

    @property
    def secret_sha256(self) -> bytes:
        """What is stored of the secret."""
        return hashlib.sha256(self.secret.encode()).digest()

    def fits(self, secret_sha256: bytes) -> bool:
        """Whether this is the token that the stored digest was made of, in constant time."""
        return hmac.compare_digest(self.secret_sha256, secret_sha256)


def parse_token(text: str) -> Token | None:
    """Read `<kind>_<16 hex digits>_<43 characters>`; None where the text has another form."""
    match = _TOKEN.match(text)
    return Token(TokenKind(match[1]), match[2], match[3]) if match else None


def is_deployment_key(text: str, *, sha256_hex: str) -> bool:
    """Whether the text is the deployment's key: `rd_<43 characters>` with that SHA-256.

    The digest is of the whole text, prefix included, as `sha256sum` gives it.
    """
    if not _DEPLOYMENT_KEY.match(text):
        return False
    digest = hashlib.sha256(text.encode()).hexdigest()
    return hmac.compare_digest(digest, sha256_hex.lower())
