"""When a stream or a durable becomes an alarm."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.catalog import stream_spec
from services.host.bootstrap.watching import is_falling_behind, is_filling

CHANNEL = stream_spec("CHANNEL")


@pytest.mark.parametrize(
    ("share", "alarm"), [(0.0, False), (0.699, False), (0.701, True), (1, True)]
)
def test_a_stream_is_an_alarm_from_seventy_percent_of_its_bytes(share: float, alarm: bool):
    assert is_filling(CHANNEL, int(share * CHANNEL.bytes_max)) is alarm


def test_a_stream_that_drops_its_oldest_never_fills():
    assert not is_filling(stream_spec("PULSE"), stream_spec("PULSE").bytes_max)


def test_a_durable_is_an_alarm_after_a_quarter_of_the_streams_age():
    quarter = timedelta(seconds=CHANNEL.age_s_max / 4)
    assert not is_falling_behind(CHANNEL, None)
    assert not is_falling_behind(CHANNEL, quarter)
    assert is_falling_behind(CHANNEL, quarter + timedelta(seconds=1))


def test_a_stream_without_age_loses_nothing_to_time():
    assert not is_falling_behind(stream_spec("DIRECTORY"), timedelta(days=900))
