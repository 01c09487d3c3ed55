"""The ledger's settings that carry no room's name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from services.ledger.settings import Settings

PLAIN = "STALE_RUN_REAPED_AFTER_SECONDS"
NEEDED = {"RIENDA_LEDGER_POSTGRES_URL": "postgresql://h/d", "RIENDA_LEDGER_NATS_URL": "nats://h"}


def settings(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Settings:
    for name, value in (NEEDED | environment).items():
        monkeypatch.setenv(name, value)
    return Settings()


def test_silence_is_two_minutes_unless_somebody_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert settings(monkeypatch).stale_run_reaped_after_seconds == 120
    assert settings(monkeypatch, **{PLAIN: "0"}).stale_run_reaped_after_seconds == 0
    named = settings(monkeypatch, **{PLAIN: "30", f"RIENDA_LEDGER_{PLAIN}": "45"})
    assert named.stale_run_reaped_after_seconds == 45, "the room's own name goes first"


@pytest.mark.parametrize("wrong", ["-1", "1.5", "two minutes", "99999999999"])
def test_what_is_no_number_of_seconds_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    with pytest.raises(ValidationError, match=PLAIN):
        settings(monkeypatch, **{PLAIN: wrong})
