"""Keys of bus users: Ed25519 in the form of NATS (`nkeys`), instead of passwords.

The one thing not to break: a seed goes to whoever signs in with it and nowhere else; what is
written for the server is the public half alone.

Source: dependencies.md 10, pitfall 8 (a reload checks every connected client again, which hashed
passwords make slow; a key is compared).
"""

from __future__ import annotations

import secrets
from typing import Final

import nkeys

SEED_BYTES: Final = 32
PUBLIC_LETTER: Final = "U"
"""What the public key of a user begins with."""


def new_seed() -> str:
    """Make a user's seed: 58 characters that begin with `SU`."""
    return str(nkeys.encode_seed(secrets.token_bytes(SEED_BYTES), nkeys.PREFIX_BYTE_USER).decode())


def public_key(seed: str) -> str:
    """The public half: 56 characters that begin with `U`.

    Errors: ValueError when it is no seed.
    """
    try:
        return str(nkeys.from_seed(bytearray(seed.encode())).public_key.decode())
    except nkeys.NkeysError as error:
        raise ValueError("this is no seed of a bus user") from error
