"""Who the server lets in: the holder of a key that it was told, and nobody else."""

from __future__ import annotations

import nats
import nats.errors
import pytest

from services.host.bootstrap.keys import new_seed
from tests.integration.bus.house import House

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "login",
    [
        {},
        {"nkeys_seed_str": new_seed()},
        {"user": "ledger", "password": "ledger"},
        {"user": "bootstrap", "password": ""},
        {"token": "t"},
    ],
    ids=["nobody", "an unknown key", "a name", "a name of before", "a token"],
)
async def test_lets_nobody_in_without_a_known_key(house: House, login: dict[str, str]) -> None:
    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await nats.connect(house.server.url, allow_reconnect=False, error_cb=_ignore, **login)


@pytest.mark.parametrize("user", ["ledger", "acme.c1", "witness", "bootstrap"])
async def test_a_public_key_is_no_credential(house: House, user: str) -> None:
    """Whoever reads the server's configuration can sign in as nobody."""
    written = (house.home / "nats.conf").read_text()
    written += (house.home / "organizations.conf").read_text()
    assert house.seeds[user] not in written
    assert "password" not in written


async def _ignore(error: Exception) -> None:
    """The refusal itself is what the test looks at."""
