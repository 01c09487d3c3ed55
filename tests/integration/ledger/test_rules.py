"""What the ledger refuses, and what it does with reports that repeat, grow or contradict."""

from __future__ import annotations

import pytest

from contracts.channel import Tokens
from contracts.types import RunStatus
from services.ledger.domain.months import UTC_ALWAYS, zone_starts
from tests.factories import (
    NOON,
    Feed,
    agent,
    channel,
    finished,
    heartbeat,
    minutes,
    organization,
    started,
    usage,
)
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ONE_REQUEST = 7_500_000
"""1 000 tokens in at 5 USD and 100 out at 25 USD a million: 0.0075 USD."""


async def dead_reasons(room: LedgerRoom) -> list[str]:
    return [
        row["reason"]
        for row in await room.rows("SELECT reason FROM dead_letter ORDER BY stream_sequence")
    ]


async def test_a_report_that_grew_adds_the_difference(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(started("r1")), feed.channel(usage("q1", "r1"))])
    grown = usage("q1", "r1", tokens=Tokens(input=1_000, output=300))
    await room.hear([feed.channel(grown), feed.channel(grown), feed.channel(usage("q1", "r1"))])
    run = await room.run("r1")
    assert run.totals.cost_nanousd == 12_500_000
    assert run.totals.request_count == 1
    assert run.totals.tokens.output == 300
    page = await room.entries("r1")
    assert [entry.cost_nanousd for entry in page.items] == [7_500_000, 5_000_000]
    assert [entry.tokens.output for entry in page.items] == [100, 200]


async def test_an_interrupted_report_gives_way_to_a_whole_one(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    cut = usage("q1", "r1", interrupted=True, tokens=Tokens(input=1_000, output=900))
    await room.hear([feed.channel(cut), feed.channel(usage("q1", "r1"))])
    assert (await room.run("r1")).totals.cost_nanousd == ONE_REQUEST


async def test_one_request_claimed_by_two_runs_is_billed_once_and_flagged(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    mine = usage("q1", "r1")
    claim = usage("q1", "r2", occurred_at=NOON + minutes(2))
    await room.hear([feed.channel(claim)])
    await room.hear([feed.channel(mine)])
    first, second = await room.run("r1"), await room.run("r2")
    assert (first.totals.cost_nanousd, first.is_partial) == (ONE_REQUEST, False)
    assert (second.totals.cost_nanousd, second.is_partial) == (0, True)
    reasons = [entry.reason for entry in (await room.entries("r2")).items]
    assert reasons[-1] == "request_conflict"
    assert (await room.spend()).cost_nanousd == ONE_REQUEST


async def test_unpriced_and_impossible_requests_make_floors(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear(
        [
            feed.channel(started("r1")),
            feed.channel(usage("q1", "r1")),
            feed.channel(usage("q2", "r1", model="no-such-model")),
            feed.channel(started("r2")),
            feed.channel(usage("q3", "r2", tokens=Tokens(input=-1))),
            feed.channel(usage("q4", "r2", tokens=Tokens(input=2**63 - 1))),
            feed.channel(started("r3")),
            feed.channel(usage("q5", "r3")),
        ]
    )
    rows = {run.run_id: run for run in (await room.runs()).items}
    assert [rows[run].is_partial for run in ("r1", "r2", "r3")] == [True, True, False]
    assert rows["r1"].totals.cost_nanousd == ONE_REQUEST
    assert rows["r2"].totals.tokens.input == 0
    reasons = {entry.request_id: entry.reason for entry in (await room.entries("r2")).items}
    assert reasons["q3"] == "bad_usage"
    spend = await room.spend()
    assert (spend.is_partial, spend.partial_run_count) == (True, 2)
    assert [line.is_partial for line in spend.by_provider] == [True]
    assert await dead_reasons(room) == []


async def test_a_delegated_run_is_part_of_its_parents_tree_and_adds_nothing(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    child = started("c", agent_id="helper", root_run_id="r", parent_run_id="r", delegation_id="d1")
    await room.hear(
        [
            feed.channel(usage("q2", "c", provider="openai", model="gpt-5")),
            feed.channel(child),
            feed.channel(usage("q1", "r")),
            feed.channel(started("r")),
        ]
    )
    root, delegated = await room.run("r"), await room.run("c")
    assert root.totals.cost_nanousd == root.own.cost_nanousd + delegated.own.cost_nanousd
    assert root.delegation_count == 1
    page = await room.runs()
    assert [run.run_id for run in page.items] == ["r"]
    assert page.total == 1
    assert (await room.runs(parent_run_id="r")).items[0].run_id == "c"
    assert (await room.runs(include_delegations=True)).total == 2
    spend = await room.spend()
    assert [(line.agent_id, line.cost_nanousd) for line in spend.by_agent] == [
        ("coder", root.totals.cost_nanousd)
    ]
    assert {line.provider: line.cost_nanousd for line in spend.by_provider} == {
        "anthropic": root.own.cost_nanousd,
        "openai": delegated.own.cost_nanousd,
    }
    months = await room.rows(
        "SELECT scope_id, cost_nanousd FROM month_spend WHERE scope = 'agent' ORDER BY 1"
    )
    assert {row["scope_id"]: int(row["cost_nanousd"]) for row in months} == {
        "coder": root.totals.cost_nanousd,
        "helper": delegated.own.cost_nanousd,
    }


async def test_a_root_that_turns_out_to_be_delegated_takes_its_tree_along(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    grandchild = started("g", agent_id="deep", root_run_id="c", parent_run_id="c")
    child = started("c", agent_id="helper", root_run_id="r", parent_run_id="r")
    await room.hear([feed.channel(grandchild), feed.channel(usage("q1", "g"))])
    await room.hear([feed.channel(child)])
    await room.hear([feed.channel(started("r"))])
    assert (await room.run("r")).totals.cost_nanousd == ONE_REQUEST
    assert [line.agent_id for line in (await room.spend()).by_agent] == ["coder"]


async def test_a_later_end_replaces_an_earlier_one_whatever_comes_first(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    early = finished("r1", status=RunStatus.FAILED, error="it broke", ended_at=NOON + minutes(1))
    late = finished("r1", ended_at=NOON + minutes(5))
    await room.hear([feed.channel(late)])
    await room.hear([feed.channel(early), feed.channel(started("r1"))])
    run = await room.run("r1")
    assert (run.status, run.error, run.ended_at) == ("completed", None, NOON + minutes(5))
    assert not run.provisional


async def test_a_delegates_report_that_was_found_later_lifts_the_floor(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    without, complete = finished("r1", missing_delegates=1), finished("r1")
    await room.hear([feed.channel(started("r1")), feed.channel(without)])
    assert (await room.run("r1")).is_partial
    await room.hear([feed.channel(complete)])
    assert not (await room.run("r1")).is_partial
    await room.hear([feed.channel(without)])
    assert not (await room.run("r1")).is_partial


async def test_heartbeats_keep_the_newest_sign_of_life(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(heartbeat("r1", NOON + minutes(9)))])
    await room.hear([feed.channel(started("r1")), feed.channel(heartbeat("r1"))])
    run = await room.run("r1")
    assert run.last_sign_at == NOON + minutes(9)
    assert run.started_at == NOON


async def test_two_channels_with_the_same_ids_do_not_shadow_one_another(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed, "acme", "beta", channels=("c1", "c2"))
    for org, channel_id in (("acme", "c1"), ("acme", "c2"), ("beta", "c1")):
        run_id = "1" if channel_id == "c1" else "run-2"
        request_id = "1" if channel_id == "c1" else "req-2"
        for number, said in enumerate(
            (started(run_id), usage(request_id, run_id), finished(run_id)), start=1
        ):
            await room.hear(
                [feed.channel(said, org=org, channel_id=channel_id, event_id=str(number))]
            )
    assert await dead_reasons(room) == []
    assert (await room.spend("acme")).cost_nanousd == 2 * ONE_REQUEST
    assert (await room.spend("beta")).cost_nanousd == ONE_REQUEST


async def test_another_channels_run_is_refused_and_stays_as_it_is(room: LedgerRoom, feed: Feed):
    await room.know(feed, channels=("c1", "c2"))
    await room.hear([feed.channel(started("r1")), feed.channel(usage("q1", "r1"))])
    foreign = [
        started("r1", started_at=NOON - minutes(5)),
        usage("q2", "r1"),
        usage("q3", "other", billed_run_id="r1"),
        finished("r1"),
        heartbeat("r1"),
        started("child", root_run_id="r1", parent_run_id="r1"),
    ]
    await room.hear([feed.channel(said, channel_id="c2") for said in foreign])
    assert await dead_reasons(room) == ["run_of_other_channel"] * len(foreign)
    run = await room.run("r1")
    assert (run.channel_id, run.status, run.started_at) == ("c1", "running", NOON)
    assert run.totals.cost_nanousd == ONE_REQUEST
    assert (await room.runs(include_delegations=True)).total == 1


async def test_an_id_said_again_with_another_body_is_refused_and_noticed(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    await room.hear([feed.channel(started("r1"), event_id="1")])
    await room.hear([feed.channel(started("r2"), event_id="1")])
    assert await dead_reasons(room) == ["changed_body"]
    subjects = await room.rows("SELECT subject FROM outbox WHERE subject LIKE '%security%'")
    assert [row["subject"] for row in subjects] == ["rienda.event.acme.ledger.security_noticed.v1"]


async def test_times_ahead_and_revoked_channels_are_refused(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    ahead = room.clock.at + minutes(6)
    await room.hear([feed.channel(started("r1", started_at=ahead))])
    await room.hear([feed.directory(channel("c1", revoked=True, entity_revision=2), "c1")])
    await room.hear([feed.channel(started("r2"))])
    assert await dead_reasons(room) == ["time_in_future", "channel_revoked"]


async def test_reports_of_an_organization_that_is_not_known_yet_wait_for_it(
    room: LedgerRoom, feed: Feed
):
    await room.hear([feed.channel(started("r1")), feed.channel(usage("q1", "r1"))])
    assert (await room.runs()).total == 0
    await room.know(feed)
    room.clock.at += minutes(1)
    assert await room.consumers["CHANNEL"].retry_due() == 2
    assert (await room.run("r1")).totals.cost_nanousd == ONE_REQUEST
    assert await room.rows("SELECT * FROM retry") == []


async def test_the_directory_applies_newer_states_only(room: LedgerRoom, feed: Feed):
    newer = organization(entity_revision=3, monthly_budget_nanousd=None, name="New")
    older = organization(entity_revision=2)
    await room.hear([feed.directory(newer, "acme"), feed.directory(older, "acme")])
    await room.hear(
        [
            feed.directory(agent("coder", 5, entity_revision=4), "coder"),
            feed.directory(agent("coder", 9, entity_revision=3), "coder"),
        ]
    )
    caps = await room.caps()
    assert [(cap.scope, cap.limit_nanousd) for cap in caps.items] == [("agent", 5)]


async def test_figures_of_one_organization_are_no_other_ones(room: LedgerRoom, feed: Feed):
    await room.know(feed, "acme", "beta")
    await room.hear([feed.channel(started("r1")), feed.channel(usage("q1", "r1"))])
    assert (await room.runs("beta")).total == 0
    assert (await room.spend("beta")).cost_nanousd == 0
    from contracts.errors import NotFound

    for run_id in ("r1", "nothing"):
        with pytest.raises(NotFound) as refused:
            await room.run(run_id, "beta")
        assert refused.value.message == "there is no such run"


async def test_pages_of_entries_show_nothing_that_was_entered_after_the_first(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    await room.hear([feed.channel(usage(f"q{number}", "r1")) for number in range(5)])
    first = await room.entries("r1", limit=2)
    await room.hear([feed.channel(usage("q9", "r1"))])
    seen = [entry.request_id for entry in first.items]
    cursor = first.cursor
    while cursor:
        page = await room.entries("r1", limit=2, cursor=cursor)
        seen += [entry.request_id for entry in page.items]
        cursor = page.cursor
    assert sorted(seen) == [f"q{number}" for number in range(5)]
    assert len((await room.entries("r1")).items) == 6


async def test_sums_of_a_window_stay_linear_whatever_the_statistics_say(
    room: LedgerRoom, feed: Feed, servers
):
    """Analyzed while the organization had one run, the planner expects one row for ever."""
    from services.ledger.store import spend

    await room.know(feed)
    await room.hear([feed.channel(usage("q", "r"))])
    name = (await room.rows("SELECT current_database() AS name"))[0]["name"]
    await servers.analyze(name)
    await room.hear([feed.channel(usage(f"q{n}", f"r{n}")) for n in range(2_000)])
    plans = []

    class Explaining:
        def __init__(self, connection) -> None:
            self.connection = connection

        async def fetch(self, statement, *values):
            explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
            plans.append((await self.connection.fetchval(explained, *values))[0]["Plan"])
            return []

    def nodes(plan):
        yield plan
        for further in plan.get("Plans", ()):
            yield from nodes(further)

    # Within a slot, so that each of its trees is read; and up to now, so that none is.
    for end in (NOON + minutes(2), None):
        window = ("acme", NOON, end)
        async with room.database.reading() as connection:
            await spend.load_figures(Explaining(connection), *window, "2026-11")
            await spend.list_days(Explaining(connection), *window, zone_starts(UTC_ALWAYS))
    for node in (node for plan in plans for node in nodes(plan)):
        read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        read += node.get("Rows Removed by Join Filter", 0)
        assert read * node["Actual Loops"] < 10_000, node


async def test_orders_put_unfinished_runs_last_both_ways(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    for run_id, requests in (("dear", 3), ("cheap", 1), ("open", 9)):
        await room.hear([feed.channel(started(run_id))])
        await room.hear([feed.channel(usage(f"{run_id}-{n}", run_id)) for n in range(requests)])
    await room.hear([feed.channel(finished(run)) for run in ("dear", "cheap")])

    async def order(order_by: str, *, descending: bool) -> list[str]:
        from contracts.ledger import ListRuns
        from tests.ledger_room import _question

        asked = ListRuns(order_by=order_by, descending=descending)
        page = await room.reader.answer_list_runs(_question(asked, "acme"))
        return [run.run_id for run in page.items]

    assert await order("cost", descending=True) == ["dear", "cheap", "open"]
    assert await order("cost", descending=False) == ["cheap", "dear", "open"]
    assert await order("tokens", descending=True) == ["dear", "cheap", "open"]
    assert (await order("duration", descending=False))[-1] == "open"


async def test_the_providers_own_amount_goes_before_the_catalogue(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    costs = {
        "usd": {"amount": "0.0000000015", "currency": "USD"},
        "unknown-currency": {"amount": "1", "currency": "XYZ"},
        "no-number": {"amount": "1,5", "currency": "USD"},
        "negative": {"amount": "-1", "currency": "USD"},
    }
    await room.hear(
        [feed.channel(usage(name, "r1", provider_cost=cost)) for name, cost in costs.items()]
    )
    entries = {entry.request_id: entry for entry in (await room.entries("r1")).items}
    assert (entries["usd"].cost_nanousd, entries["usd"].price_source) == (2, "provider_reported")
    for name in ("unknown-currency", "no-number", "negative"):
        assert entries[name].cost_nanousd == ONE_REQUEST
        assert entries[name].price_source == "catalogue"
