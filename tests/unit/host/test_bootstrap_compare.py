"""Comparing streams and durables with the catalogue: what is applied, what waits for a person."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from nats.js import api

from contracts.catalog import DURABLES, STREAMS, DurableSpec, StreamSpec
from services.host.bootstrap.compare import (
    compare_durable,
    compare_stream,
    durable_config,
    stream_config,
)
from services.host.bootstrap.errors import UnsafeDifference

CHANNEL = next(stream for stream in STREAMS if stream.name == "CHANNEL")
DURABLE = DURABLES[0]


def stream_verdict(found: dict[str, Any], *, is_empty: bool = False) -> list[tuple[str, str]]:
    held = stream_config(CHANNEL).evolve(**found)
    return [(one.field, one.safety) for one in compare_stream(CHANNEL, held, is_empty=is_empty)]


def durable_verdict(found: dict[str, Any]) -> list[tuple[str, str]]:
    held = durable_config(DURABLE).evolve(**found)
    return [(one.field, one.safety) for one in compare_durable(DURABLE, held)]


@pytest.mark.parametrize("spec", STREAMS, ids=lambda spec: spec.name)
def test_finds_no_difference_in_what_it_would_make_itself(spec: StreamSpec) -> None:
    assert compare_stream(spec, stream_config(spec), is_empty=False) == ()


@pytest.mark.parametrize("spec", DURABLES, ids=lambda spec: f"{spec.stream}/{spec.durable}")
def test_finds_no_difference_in_the_durable_it_would_make(spec: DurableSpec) -> None:
    assert compare_durable(spec, durable_config(spec)) == ()


@pytest.mark.parametrize(
    "found",
    [
        {"max_age": 3_600.0},
        {"max_bytes": 1_000_000},
        {"max_msgs": 10},
        {"max_msgs_per_subject": 5},
        {"max_msg_size": 1_000},
        {"duplicate_window": 60.0},
        {"description": "another"},
        {"deny_delete": False},
        {"subjects": []},
    ],
)
def test_applies_what_only_lets_more_in(found: dict[str, Any]) -> None:
    assert stream_verdict(found) == [(next(iter(found)), "safe")]


@pytest.mark.parametrize(
    "found",
    [
        {"max_age": 0.0},
        {"max_age": 365 * 86_400.0},
        {"max_bytes": -1},
        {"max_bytes": CHANNEL.bytes_max * 2},
        {"duplicate_window": 3_600.0},
    ],
)
def test_leaves_a_smaller_limit_to_a_person_unless_nothing_is_held(found: dict[str, Any]) -> None:
    field = next(iter(found))
    assert stream_verdict(found) == [(field, "decide")]
    assert stream_verdict(found, is_empty=True) == [(field, "safe")]


@pytest.mark.parametrize(
    ("found", "safety"),
    [
        ({"subjects": [*CHANNEL.subjects, "somebody.else.>"]}, "decide"),
        ({"discard": api.DiscardPolicy.OLD}, "decide"),
        ({"allow_rollup_hdrs": True}, "decide"),
        ({"allow_msg_ttl": True}, "decide"),
        ({"no_ack": True}, "decide"),
        ({"sealed": True}, "recreate"),
        ({"storage": api.StorageType.MEMORY}, "recreate"),
        ({"retention": api.RetentionPolicy.WORK_QUEUE}, "recreate"),
    ],
)
def test_never_changes_by_itself_what_may_lose_messages(found: dict[str, Any], safety: str) -> None:
    assert stream_verdict(found) == [(next(iter(found)), safety)]


def test_knows_that_no_limit_is_the_largest() -> None:
    unlimited = replace(CHANNEL, age_s_max=0, bytes_max=-1)
    differences = compare_stream(unlimited, stream_config(CHANNEL), is_empty=False)
    assert [(one.field, one.safety) for one in differences] == [
        ("max_age", "safe"),
        ("max_bytes", "safe"),
    ]


def test_leaves_alone_what_the_catalogue_does_not_speak_of() -> None:
    assert stream_verdict({"num_replicas": 3, "allow_direct": True, "metadata": {"a": "b"}}) == []


@pytest.mark.parametrize("field", ["ack_wait", "max_deliver", "max_ack_pending"])
def test_applies_the_limits_of_a_durable(field: str) -> None:
    assert durable_verdict({field: 7}) == [(field, "safe")]


@pytest.mark.parametrize(
    "found",
    [
        {"deliver_policy": api.DeliverPolicy.NEW},
        {"ack_policy": api.AckPolicy.NONE},
        {"filter_subject": "rienda.event.acme.>"},
        {"inactive_threshold": 60.0},
        {"deliver_subject": "somewhere"},
        {"backoff": [1.0]},
        {"headers_only": True},
    ],
)
def test_never_changes_by_itself_what_a_durable_delivers(found: dict[str, Any]) -> None:
    assert durable_verdict(found) == [(next(iter(found)), "recreate")]


def test_names_stream_field_values_and_the_command() -> None:
    held = stream_config(CHANNEL).evolve(max_age=0.0, storage=api.StorageType.MEMORY)
    text = str(UnsafeDifference(compare_stream(CHANNEL, held, is_empty=False)))
    assert "CHANNEL: storage is memory, the catalogue says file" in text
    assert "`python -m services.host.bootstrap prepare --recreate CHANNEL`" in text
    assert "CHANNEL: max_age is not set, the catalogue says 604800" in text
    assert "`python -m services.host.bootstrap prepare --accept CHANNEL.max_age`" in text


def test_gives_every_stream_a_refusal_instead_of_a_silent_loss() -> None:
    for spec in STREAMS:
        config = stream_config(spec)
        assert config.discard == spec.discard
        assert config.max_bytes is not None
        assert config.max_bytes > 0
        assert (spec.discard == "new") or spec.name in ("PULSE", "DEAD")
