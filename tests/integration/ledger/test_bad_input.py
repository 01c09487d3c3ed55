"""Each wrong report has one clear answer: a reason of its own, and nothing half-done.

What cannot be understood, or may not be said, is a dead letter with its reason and enters nothing.
What was paid for and is only strange is entered, at what can be known of it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.channel import Tokens
from contracts.envelope import BODY_BYTES_MAX
from contracts.types import BIGINT_MAX, BIGINT_MIN
from services.ledger.domain.merging import CLAIMS_PER_CHANNEL_MAX
from shared.consume import Delivery
from tests.factories import (
    NOON,
    Feed,
    finished,
    heartbeat,
    ingestion,
    minutes,
    started,
    usage,
)
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ONE_REQUEST = 7_500_000
GONE = object()
"""The key is left out."""


def spoiled(delivery: Delivery, path: str, value: Any) -> Delivery:
    """The same event with one field of its data as no honest sender writes it."""
    body = json.loads(delivery.body)
    *folders, name = path.split(".")
    place = body["data"]
    for folder in folders:
        place = place.setdefault(folder, {})
    if value is GONE:
        del place[name]
    else:
        place[name] = value
    return Delivery(delivery.subject, json.dumps(body).encode(), delivery.stream, delivery.sequence)


async def dead(room: LedgerRoom) -> list[str]:
    rows = await room.rows("SELECT reason FROM dead_letter ORDER BY stream_sequence")
    return [row["reason"] for row in rows]


async def assert_nothing_entered(room: LedgerRoom) -> None:
    for table in ("entry", "run", "request", "run_line", "month_spend"):
        assert await room.rows(f"SELECT 1 FROM {table}") == [], table


OF_BOTH: list[tuple[str, Any, str]] = [
    ("request_id", GONE, "invalid_field"),
    ("request_id", None, "invalid_field"),
    ("request_id", "", "invalid_field"),
    ("request_id", "has blanks", "invalid_field"),
    ("request_id", "x" * 129, "invalid_field"),
    ("request_id", 7, "invalid_field"),
    ("model", GONE, "invalid_field"),
    ("model", "", "invalid_field"),
    ("model", "m" * 256, "invalid_field"),
    ("model", "m\x00", "nul_character"),
    ("provider", "no/provider", "invalid_field"),
    ("key_id", "", "invalid_field"),
    ("tokens", GONE, "invalid_field"),
    ("tokens", None, "invalid_field"),
    ("tokens", 5, "invalid_field"),
    ("tokens.input", BIGINT_MAX + 1, "invalid_field"),
    ("tokens.output", BIGINT_MIN - 1, "invalid_field"),
    ("tokens.cache_read", 1.5, "invalid_field"),
    ("tokens.reasoning", "12", "invalid_field"),
    ("tokens.audio_input", True, "invalid_field"),
    ("tokens.audio_output", None, "invalid_field"),
    ("tool_counts", {"web searches": 1}, "invalid_field"),
    ("tool_counts", {"web_searches": BIGINT_MAX + 1}, "invalid_field"),
    ("tool_counts", {f"t{n}": 1 for n in range(33)}, "invalid_field"),
    ("price_context.processing", "slow", "invalid_field"),
    ("provider_cost", {"amount": "1"}, "invalid_field"),
    ("provider_cost", {"amount": 1, "currency": "USD"}, "invalid_field"),
    ("provider_cost", {"amount": "1" * 65, "currency": "USD"}, "invalid_field"),
    ("provider_cost", {"amount": "1", "currency": "U" * 17}, "invalid_field"),
    ("interrupted", "perhaps", "invalid_field"),
    ("unauthorized_reason", "w" * 1_001, "invalid_field"),
    ("started_at", "yesterday", "invalid_field"),
    ("occurred_at", GONE, "invalid_field"),
    ("occurred_at", None, "invalid_field"),
    ("occurred_at", "2026-11-20T12:00:00", "naive_time"),
    ("occurred_at", "2026-11-20", "naive_time"),
    ("occurred_at", "2026-13-20T12:00:00Z", "invalid_field"),
    ("occurred_at", "1970-01-01T00:00:00Z", "invalid_field"),
    ("occurred_at", 1_763_640_000, "invalid_field"),
    ("occurred_at", "2026-11-20T12:40:00Z", "time_in_future"),
    ("occurred_at", "2026-11-10T12:00:00Z", "usage_too_old"),
    ("further", "x" * BODY_BYTES_MAX, "oversized"),
]
OF_USAGE: list[tuple[str, Any, str]] = [
    ("run_id", GONE, "invalid_field"),
    ("run_id", None, "invalid_field"),
    ("run_id", "a/b", "invalid_field"),
    ("billed_run_id", "", "invalid_field"),
    ("delegation_id", "x y", "invalid_field"),
    ("kind", "correction", "invalid_field"),
    ("kind", "dreaming", "invalid_field"),
    ("kind", None, "invalid_field"),
]
OF_INGESTION: list[tuple[str, Any, str]] = [
    ("ingestion_id", GONE, "invalid_field"),
    ("ingestion_id", None, "invalid_field"),
    ("ingestion_id", "a/b", "invalid_field"),
    ("document_id", "", "invalid_field"),
    ("collection_id", "x" * 129, "invalid_field"),
]


@pytest.mark.parametrize(
    ("said", "cases"),
    [
        (usage("q1", "r1"), OF_BOTH + OF_USAGE),
        (ingestion("q1"), OF_BOTH + OF_INGESTION),
    ],
    ids=["usage_reported", "ingestion_reported"],
)
async def test_a_wrong_field_is_a_dead_letter_that_says_why(
    room: LedgerRoom, feed: Feed, said, cases
):
    await room.know(feed)
    wrong = [spoiled(feed.channel(said), path, value) for path, value, _ in cases]
    # In one batch with a good one: its neighbours do it no harm.
    await room.hear([*wrong, feed.channel(started("good"))])
    assert list(zip([path for path, *_ in cases], await dead(room), strict=True)) == [
        (path, reason) for path, _, reason in cases
    ]
    shown = await room.rows("SELECT message FROM dead_letter")
    assert all(row["message"] for row in shown)
    assert (await room.run("good")).started_at == NOON
    assert await room.rows("SELECT 1 FROM entry") == []
    assert await room.rows("SELECT 1 FROM request") == []
    assert (await room.runs()).total == 1


IMPOSSIBLE: list[dict[str, int]] = [
    {"input": -1},
    {"output": BIGINT_MIN},
    {"input": BIGINT_MAX, "output": BIGINT_MAX},
    {"input": 5, "cache_read": 6},
    {"input": 5, "cache_read": 2, "cache_write_5m": 2, "cache_write_1h": 2},
    {"output": 5, "reasoning": 6},
    {"input": 5, "audio_input": 6},
    {"output": 5, "audio_output": 6},
]


@pytest.mark.parametrize("tokens", IMPOSSIBLE)
async def test_impossible_counts_are_kept_at_0_as_a_floor(room: LedgerRoom, feed: Feed, tokens):
    await room.know(feed)
    await room.hear([feed.channel(usage("q1", "r1", tokens=Tokens(**tokens)))])
    await room.hear([feed.channel(ingestion("q2", tokens=Tokens(**tokens)))])
    assert await dead(room) == []
    for entry in (*(await room.entries("r1")).items, *(await room.ingested("i1")).items):
        assert (entry.cost_nanousd, entry.priced, entry.reason) == (0, False, "bad_usage")
        assert entry.tokens == Tokens(), "they add nothing to any sum"
    spend = await room.spend()
    assert (spend.cost_nanousd, spend.is_partial, spend.ingestion.is_partial) == (0, True, True)
    kept = await room.rows("SELECT reported_tokens FROM entry")
    order = tuple(Tokens.model_fields)
    assert [list(row["reported_tokens"]) for row in kept] == [
        [tokens.get(name, 0) for name in order]
    ] * 2


async def test_sums_beyond_64_bits_are_exact(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    cost = {"amount": "9223372036.854775807", "currency": "USD"}
    said = [usage(f"q{n}", "r1", provider_cost=cost) for n in range(3)]
    await room.hear([feed.channel(each) for each in said])
    await room.hear([feed.channel(ingestion("q9", provider_cost=cost))])
    assert (await room.run("r1")).totals.cost_nanousd == 3 * BIGINT_MAX
    assert (await room.spend()).cost_nanousd == 4 * BIGINT_MAX


async def test_usage_of_an_ended_run_and_of_an_unknown_one_is_billed(room: LedgerRoom, feed: Feed):
    """What was paid for is never lost, whatever the run was said to be."""
    await room.know(feed)
    await room.hear([feed.channel(started("ended")), feed.channel(finished("ended"))])
    after = NOON + minutes(20)
    await room.hear([feed.channel(usage("q1", "ended", occurred_at=after))])
    await room.hear([feed.channel(usage("q2", "unknown"))])
    ended, unknown = await room.run("ended"), await room.run("unknown")
    assert (ended.status, ended.totals.cost_nanousd) == ("completed", ONE_REQUEST)
    assert ended.ended_at == NOON + minutes(10)
    assert (unknown.provisional, unknown.totals.cost_nanousd) == (True, ONE_REQUEST)
    assert await dead(room) == []


async def test_usage_of_a_run_that_was_failed_for_its_silence_is_billed(
    room: LedgerRoom, feed: Feed
):
    """What it paid before its last sign says nothing of its life; what it paid since, it lives."""
    await room.know(feed)
    await room.hear([feed.channel(started("r1")), feed.channel(heartbeat("r1", NOON + minutes(3)))])
    assert await room.reaper.sweep(NOON + minutes(60), minutes(2)) == 1
    await room.hear([feed.channel(usage("q1", "r1", occurred_at=NOON + minutes(2)))])
    dead_run = await room.run("r1")
    assert (dead_run.status, dead_run.ended_at) == ("failed", NOON + minutes(3))
    assert dead_run.totals.cost_nanousd == ONE_REQUEST
    await room.hear([feed.channel(usage("q2", "r1", occurred_at=NOON + minutes(4)))])
    alive = await room.run("r1")
    assert (alive.status, alive.ended_at) == ("running", None)
    assert alive.totals.cost_nanousd == (await room.spend()).cost_nanousd == 2 * ONE_REQUEST
    assert await dead(room) == []


async def test_another_channels_run_is_refused_and_enters_nothing(room: LedgerRoom, feed: Feed):
    await room.know(feed, channels=("c1", "c2"))
    await room.hear([feed.channel(started("r1"))])
    foreign = [usage("q1", "r1"), usage("q2", "mine", billed_run_id="r1")]
    await room.hear([feed.channel(each, channel_id="c2") for each in foreign])
    assert await dead(room) == ["run_of_other_channel"] * 2
    assert (await room.runs(include_delegations=True)).total == 1
    assert await room.rows("SELECT 1 FROM entry") == []


@pytest.mark.parametrize(
    "second",
    [
        {"run_id": "r2"},
        {"model": "claude-haiku-4-5"},
        {"run_id": "r2", "model": "claude-haiku-4-5"},
    ],
)
async def test_a_request_with_another_run_or_model_is_kept_flagged_and_not_added(
    room: LedgerRoom, feed: Feed, second
):
    await room.know(feed)
    first = usage("q1", "r1")
    other = usage("q1", **({"run_id": "r1", "occurred_at": NOON + minutes(2)} | second))
    await room.hear([feed.channel(first), feed.channel(other)])
    assert (await room.spend()).cost_nanousd == ONE_REQUEST
    (flagged,) = await room.rows("SELECT * FROM entry WHERE reason = 'request_conflict'")
    assert (flagged["cost_nanousd"], flagged["priced"]) == (0, False)
    assert flagged["run_id"] == other.run_id
    assert flagged["model"] == other.model
    assert await dead(room) == []


async def test_more_claims_on_a_request_than_any_honest_channel_makes(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    said = [usage("q1", f"r{n}") for n in range(CLAIMS_PER_CHANNEL_MAX)]
    await room.hear([feed.channel(each) for each in [*said, ingestion("q1")]])
    assert await dead(room) == ["too_many_claims"]
    assert (await room.spend()).cost_nanousd == ONE_REQUEST


async def test_a_revoked_channel_reports_nothing_more(room: LedgerRoom, feed: Feed):
    from tests.factories import channel

    await room.know(feed)
    await room.hear([feed.directory(channel("c1", revoked=True, entity_revision=2), "c1")])
    await room.hear([feed.channel(usage("q1", "r1")), feed.channel(ingestion("q2"))])
    assert await dead(room) == ["channel_revoked"] * 2
    await assert_nothing_entered(room)
