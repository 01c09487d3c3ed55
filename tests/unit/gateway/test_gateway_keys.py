"""The form of keys, and comparing them."""

from __future__ import annotations

import hashlib

import pytest

from services.gateway.domain.keys import is_deployment_key, parse_token

SECRET = "s" * 42 + "-"
TEXT = f"rk_0123456789abcdef_{SECRET}"


def test_reads_a_key() -> None:
    key = parse_token(TEXT)
    assert key is not None
    assert (key.token_id, key.secret, key.text) == ("0123456789abcdef", SECRET, TEXT)
    assert SECRET not in repr(key)


def test_fits_its_own_digest_only() -> None:
    key, other = parse_token(TEXT), parse_token(TEXT[:-1] + "_")
    assert key is not None
    assert other is not None
    assert key.fits(hashlib.sha256(SECRET.encode()).digest())
    assert not other.fits(key.secret_sha256)


@pytest.mark.parametrize(
    "text",
    ["", "rk_", TEXT + "\n", TEXT[:-1], TEXT + "x", TEXT.upper(), f" {TEXT}", f"rd_{SECRET}"],
)
def test_reads_nothing_of_another_form(text: str) -> None:
    assert parse_token(text) is None


def test_knows_the_deployment_key_by_its_digest() -> None:
    text = f"rd_{SECRET}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert is_deployment_key(text, sha256_hex=digest)
    assert is_deployment_key(text, sha256_hex=digest.upper())
    assert not is_deployment_key(f"rd_{'t' * 43}", sha256_hex=digest)
    assert not is_deployment_key(TEXT, sha256_hex=hashlib.sha256(TEXT.encode()).hexdigest())
