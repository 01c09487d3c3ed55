"""Addresses of servers of somebody else's."""

from __future__ import annotations

import pytest

from services.host.errors import OutsideUrlUnusable
from services.host.outside import BusLogin, Outside, OutsideNats, read_outside


def test_without_variables_everything_is_embedded() -> None:
    assert read_outside({"RIENDA_NATS_URL": "", "PATH": "/bin"}) == Outside(None, None)


@pytest.mark.parametrize(
    ("given", "url", "login"),
    [
        ("nats://h:4222", "nats://h:4222", BusLogin(None, None)),
        ("nats://u:p%40ss@h:4222", "nats://h:4222", BusLogin("u", "p@ss")),
        ("tls://a:b@h1, tls://a:b@h2:1", "tls://h1,tls://h2:1", BusLogin("a", "b")),
    ],
)
def test_the_login_is_taken_out_of_the_address(given: str, url: str, login: BusLogin) -> None:
    assert read_outside({"RIENDA_NATS_URL": given}).nats == OutsideNats(url, login)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RIENDA_NATS_URL", "http://h:4222"),
        ("RIENDA_NATS_URL", "nats://secret-token@h:4222"),
        ("RIENDA_NATS_URL", "nats://h:4222,secret"),
        ("RIENDA_POSTGRES_URL", "postgresql:///rienda?host=/run/secret"),
        ("RIENDA_POSTGRES_URL", "mysql://secret:secret@h/d"),
    ],
)
def test_a_useless_address_is_refused_without_being_repeated(variable: str, value: str) -> None:
    with pytest.raises(OutsideUrlUnusable) as refused:
        read_outside({variable: value})
    assert variable in str(refused.value)
    assert "secret" not in str(refused.value)


def test_no_password_shows_in_a_repr() -> None:
    outside = read_outside(
        {
            "RIENDA_NATS_URL": "nats://u:hidden@h",
            "RIENDA_POSTGRES_URL": "postgresql://u:hidden@h/d",
        }
    )
    assert "hidden" not in repr(outside)
