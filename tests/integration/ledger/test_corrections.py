"""Corrections: further entries, in every figure that holds the entry they correct."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest

from contracts.channel import Tokens
from contracts.errors import Fault
from tests.factories import NOON, Feed, agent, ingestion, minutes, started, usage
from tests.ledger_room import LedgerRoom

pytestmark = pytest.mark.integration
ONE_REQUEST = 7_500_000
UNKNOWN = "01900000-0000-7000-8000-000000000000"


async def only_entry(room: LedgerRoom, run_id: str = "r1"):
    (entry,) = (await room.entries(run_id)).items
    return entry


async def refusal(asking) -> str:
    with pytest.raises(Fault) as refused:
        await asking
    return refused.value.reason


async def sums(room: LedgerRoom) -> dict[str, int]:
    """Every sum that holds an entry of the run r1, whose tree is r0's."""
    spend = await room.spend()
    months = await room.rows("SELECT scope, scope_id, cost_nanousd FROM month_spend")
    lines = await room.rows("SELECT coalesce(sum(cost_nanousd), 0) AS c FROM run_line")
    entered = await room.rows("SELECT coalesce(sum(cost_nanousd), 0) AS c FROM entry")
    return {
        "own": (await room.run("r1")).own.cost_nanousd,
        "tree": (await room.run("r0")).totals.cost_nanousd,
        "lines": int(lines[0]["c"]),
        "entries": int(entered[0]["c"]),
        "bill": spend.cost_nanousd,
        "by_agent": sum(line.cost_nanousd for line in spend.by_agent),
        "by_provider": sum(line.cost_nanousd for line in spend.by_provider),
        "by_key": sum(line.cost_nanousd for line in spend.by_key),
        "by_day": sum(line.cost_nanousd for line in spend.by_day),
        **{f"{row['scope']} {row['scope_id']}": int(row["cost_nanousd"]) for row in months},
    }


async def test_every_sum_that_holds_the_entry_moves(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.directory(agent("coder", 10**9), "coder")])
    await room.hear(
        [
            feed.channel(started("r0")),
            feed.channel(started("r1", agent_id="helper", root_run_id="r0", parent_run_id="r0")),
            feed.channel(usage("q1", "r1", turn_id="t1", key_id="k1")),
        ]
    )
    assert set((await sums(room)).values()) == {ONE_REQUEST}
    entry = await only_entry(room)
    made = await room.correct(entry.id, 9_000_000, "c1")
    assert (made.before_nanousd, made.difference_nanousd) == (ONE_REQUEST, 1_500_000)
    assert set((await sums(room)).values()) == {9_000_000}
    again = await room.correct(entry.id, 1, "c2")
    assert (again.before_nanousd, again.difference_nanousd) == (9_000_000, -8_999_999)
    assert set((await sums(room)).values()) == {1}
    assert (await room.run("r1")).totals.request_count == 1
    first, second, third = (await room.entries("r1")).items
    assert first == entry, "what was entered stays as it was"
    assert [second.kind, third.kind] == ["correction", "correction"]
    assert {second.corrects_entry_id, third.corrects_entry_id} == {entry.id}
    assert (second.correction_reason, second.price_source) == ("the invoice says so", "corrected")
    assert (second.turn_id, second.key_id, second.tokens) == ("t1", "k1", Tokens())
    assert (second.occurred_at, second.request_id) == (entry.occurred_at, "q1")
    assert second.billed_at == entry.billed_at, "in the entry's month"


async def test_an_unpriced_entry_loses_its_floor_even_at_zero(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(usage(f"q{n}", "r1", model="no-such-model")) for n in (1, 2)])
    for number, entry in enumerate((await room.entries("r1")).items):
        assert (await room.run("r1")).is_partial
        assert (await room.spend()).month_to_date_is_partial
        await room.correct(entry.id, 0, f"c{number}")
    run, spend = await room.run("r1"), await room.spend()
    assert (run.is_partial, run.totals.unpriced_count, run.totals.cost_nanousd) == (False, 0, 0)
    assert not any((spend.is_partial, spend.month_to_date_is_partial, spend.partial_run_count))
    assert await refusal(room.correct(entry.id, 0, "c9")) == "correction_changes_nothing"


async def test_a_priced_report_after_the_correction_takes_no_second_floor_away(
    room: LedgerRoom, feed: Feed
):
    """One floor less than there are entries without a price would hide the others."""
    await room.know(feed)
    bad = usage("q1", "r1", tokens=Tokens(input=-1))
    await room.hear([feed.channel(bad), feed.channel(usage("q2", "r1", model="no-such-model"))])
    entries = {entry.request_id: entry for entry in (await room.entries("r1")).items}
    await room.correct(entries["q1"].id, 3_000_000, "c1")
    assert (await room.run("r1")).totals.unpriced_count == 1
    await room.hear([feed.channel(bad), feed.channel(usage("q1", "r1")), feed.channel(bad)])
    run = await room.run("r1")
    assert (run.totals.unpriced_count, run.is_partial) == (1, True), "that of q2"
    assert run.totals.cost_nanousd == 3_000_000 + ONE_REQUEST


async def test_a_report_that_grows_without_a_price_is_a_floor_again(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(usage("q1", "r1", model="no-such-model"))])
    await room.correct((await only_entry(room)).id, 5, "c1")
    assert not (await room.run("r1")).is_partial
    grown = usage("q1", "r1", model="no-such-model", tokens=Tokens(input=1_000, output=300))
    await room.hear([feed.channel(grown), feed.channel(grown)])
    run = await room.run("r1")
    assert (run.totals.unpriced_count, run.totals.cost_nanousd) == (1, 5)
    last = (await room.entries("r1")).items[-1]
    await room.correct(last.id, 7, "c2")
    run = await room.run("r1")
    assert (run.totals.unpriced_count, run.totals.cost_nanousd) == (0, 12)


async def test_a_corrected_request_that_grows_adds_its_own_difference(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(usage("q1", "r1"))])
    await room.correct((await only_entry(room)).id, 10_000_000, "c1")
    grown = usage("q1", "r1", tokens=Tokens(input=1_000, output=300))
    await room.hear([feed.channel(grown), feed.channel(grown)])
    assert (await room.run("r1")).totals.cost_nanousd == 15_000_000


async def test_a_past_months_correction_is_billed_there_and_borne_by_this_months_cap(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    await room.hear([feed.channel(usage("q1", "r1"))])
    room.clock.at = NOON.replace(month=12, day=3)
    made = await room.correct((await only_entry(room)).id, ONE_REQUEST + 11, "c1")
    assert made.month == "2026-11"
    (cap,) = (await room.caps()).items
    assert (cap.month, cap.spent_nanousd, cap.late_nanousd) == ("2026-12", 0, 11)
    months = await room.rows(
        "SELECT month, cost_nanousd FROM month_spend WHERE scope = 'organization' ORDER BY 1"
    )
    assert [(row["month"], int(row["cost_nanousd"])) for row in months] == [
        ("2026-11", ONE_REQUEST + 11),
        ("2026-12", 0),
    ]


async def test_a_correction_moves_along_with_its_run(room: LedgerRoom, feed: Feed):
    """The start that names the agent and the tree comes after the correction."""
    await room.know(feed)
    await room.hear([feed.channel(usage("q1", "c"))])
    await room.correct((await only_entry(room, "c")).id, 100, "c1")
    child = started("c", agent_id="helper", root_run_id="r", parent_run_id="r")
    await room.hear([feed.channel(child), feed.channel(started("r"))])
    assert (await room.run("r")).totals.cost_nanousd == 100
    rows = await room.rows("SELECT scope_id, cost_nanousd FROM month_spend WHERE scope = 'agent'")
    assert {row["scope_id"]: int(row["cost_nanousd"]) for row in rows} == {
        "coder": 100,
        "helper": 100,
    }


async def test_a_correction_follows_its_request_to_the_run_that_owns_it(
    room: LedgerRoom, feed: Feed
):
    """The first run's figure would be negative, and the second's not what somebody said."""
    await room.know(feed)
    await room.hear([feed.channel(usage("q1", "r1", occurred_at=NOON + minutes(3), key_id="k1"))])
    first = await only_entry(room)
    await room.correct(first.id, 100, "c1")
    # An earlier claim of another run takes the bill.
    await room.hear([feed.channel(usage("q1", "r2", occurred_at=NOON, key_id="k2"))])
    assert (await room.run("r1")).own.cost_nanousd == 0
    assert (await room.run("r2")).own.cost_nanousd == 100
    spend = await room.spend()
    assert {line.key_id: line.cost_nanousd for line in spend.by_key} == {"k1": 0, "k2": 100}
    moved = (await room.entries("r2")).items[-1]
    assert (moved.kind, moved.corrects_entry_id, moved.cost_nanousd) == (
        "correction",
        None,
        100 - ONE_REQUEST,
    )
    assert await refusal(room.correct(moved.id, 1, "c9")) == "entry_is_correction"
    # What is said later of the first entry is said of the request, wherever it is billed.
    await room.correct(first.id, 70, "c2")
    assert (await room.run("r1")).own.cost_nanousd == 0
    assert (await room.run("r2")).own.cost_nanousd == 70
    # And on to ingestion, and to a third run.
    await room.hear([feed.channel(ingestion("q1", occurred_at=NOON - minutes(1)))])
    assert (await room.run("r2")).own.cost_nanousd == 0
    assert (await room.spend()).ingestion.cost_nanousd == 70
    await room.hear([feed.channel(usage("q1", "r3", occurred_at=NOON - minutes(2)))])
    assert (await room.run("r3")).own.cost_nanousd == 70
    assert (await room.spend()).ingestion.cost_nanousd == 0
    assert (await room.spend()).cost_nanousd == 70


async def test_a_past_months_correction_is_borne_by_the_cap_of_its_making_wherever_it_goes(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed)
    late = usage("q1", "r1", occurred_at=NOON + minutes(3))
    await room.hear([feed.channel(late, stored_at=NOON + minutes(4))])
    room.clock.at = NOON.replace(month=12, day=3)
    await room.correct((await only_entry(room)).id, ONE_REQUEST + 11, "c1")
    earlier = usage("q1", "r2", occurred_at=NOON)
    await room.hear([feed.channel(earlier, stored_at=NOON + minutes(5))])
    months = await room.rows(
        "SELECT month, cost_nanousd, late_nanousd FROM month_spend WHERE scope = 'organization' "
        "ORDER BY 1"
    )
    assert [tuple(map(int, (row["cost_nanousd"], row["late_nanousd"]))) for row in months] == [
        (ONE_REQUEST + 11, 0),
        (0, 11),
    ]
    assert (await room.run("r2")).own.cost_nanousd == ONE_REQUEST + 11


async def test_a_correction_beside_the_claim_that_takes_its_request_is_lost_by_neither(
    room: LedgerRoom,
):
    feed = Feed()
    await room.know(feed)
    for number in range(6):
        request = f"q{number}"
        mine = usage(request, f"b{number}", occurred_at=NOON + minutes(3))
        await room.hear([feed.channel(mine)])
        entry = await only_entry(room, f"b{number}")
        taking = feed.channel(usage(request, f"a{number}", occurred_at=NOON))
        await asyncio.gather(room.correct(entry.id, 100, f"c{number}"), room.hear([taking]))
        own = [(await room.run(f"{name}{number}")).own.cost_nanousd for name in "ab"]
        assert own == [100, 0]
    assert (await room.spend()).cost_nanousd == 600


async def test_ingestion_is_corrected_in_the_organizations_figures(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(ingestion("q1", model="no-such-model", document_id="d1"))])
    (entry,) = (await room.ingested("i1")).items
    assert (await room.spend()).is_partial
    await room.correct(entry.id, 400, "c1")
    spend = await room.spend()
    assert (spend.cost_nanousd, spend.ingestion.cost_nanousd, spend.is_partial) == (400, 400, False)
    assert (spend.ingestion.request_count, spend.month_to_date_nanousd) == (1, 400)
    last = (await room.ingested("i1")).items[-1]
    assert (last.kind, last.document_id, last.corrects_entry_id) == ("correction", "d1", entry.id)


async def test_wrong_corrections_have_one_clear_answer_and_enter_nothing(
    room: LedgerRoom, feed: Feed
):
    await room.know(feed, "acme", "beta")
    await room.hear([feed.channel(usage("q1", "r1"))])
    entry = await only_entry(room)
    made = await room.correct(entry.id, 5, "c1")
    for entry_id in (UNKNOWN, "nothing"):
        assert await refusal(room.correct(entry_id, 1, "c2")) == "entry_unknown"
    assert await refusal(room.correct(entry.id, 1, "c2", org="beta")) == "entry_unknown"
    assert await refusal(room.correct(made.id, 1, "c2")) == "entry_is_correction"
    assert await refusal(room.correct(entry.id, 5, "c2")) == "correction_changes_nothing"
    assert await refusal(room.correct(entry.id, 6, "c1")) == "correction_id_used"
    assert await refusal(room.correct(entry.id, 5, "c1", reason="other")) == "correction_id_used"
    for held in ((), ("runs:view", "budgets:view")):
        asked = room.correct(entry.id, 7, "c2", permissions=held)
        assert await refusal(asked) == "permission_missing", "the room checks what was stamped"
    assert (await room.run("r1")).totals.cost_nanousd == 5
    assert len(await room.rows("SELECT 1 FROM entry")) == 2
    assert len(await room.rows("SELECT 1 FROM correction")) == 1


async def test_a_difference_that_no_entry_can_hold_is_refused(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    mine = usage("q1", "r1", occurred_at=NOON + minutes(3))
    await room.hear([feed.channel(mine)])
    # An earlier claim takes the bill: the first run's entry is taken back by a negative one.
    await room.hear([feed.channel(usage("q1", "r2", occurred_at=NOON))])
    taken_back = (await room.entries("r1")).items[-1]
    assert taken_back.cost_nanousd == -ONE_REQUEST
    asking = room.correct(taken_back.id, 2**63 - 1, "c1")
    assert await refusal(asking) == "correction_too_large"


async def test_the_same_correction_again_is_answered_the_same(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(usage("q1", "r1"))])
    entry = await only_entry(room)
    asked = [room.correct(entry.id, 42, "c1") for _ in range(6)]
    answers = await asyncio.gather(*asked)
    assert len(set(answers)) == 1
    assert (await room.run("r1")).totals.cost_nanousd == 42
    assert len(await room.rows("SELECT 1 FROM audit_entry")) == 1


async def test_two_at_once_are_made_one_after_the_other(room: LedgerRoom, feed: Feed):
    """Beside reports of the same run, which lock the same rows."""
    await room.know(feed)
    await room.hear([feed.channel(started("r1")), feed.channel(usage("q1", "r1"))])
    entry = await only_entry(room)
    said = [feed.channel(usage(f"further-{n}", "r1")) for n in range(6)]
    made = await asyncio.gather(
        *(room.correct(entry.id, 1_000 + n, f"c{n}") for n in range(8)),
        *(room.hear([each]) for each in said),
    )
    entered = await room.rows(
        "SELECT id, cost_nanousd FROM entry WHERE corrects_entry_id = $1 ORDER BY sequence",
        entry.id,
    )
    assert len(entered) == 8
    by_id = {answer.id: answer for answer in made if answer is not None}
    amount = ONE_REQUEST
    for row in entered:
        assert by_id[str(row["id"])].before_nanousd == amount
        amount += row["cost_nanousd"]
        assert by_id[str(row["id"])].cost_nanousd == amount
    run = await room.run("r1")
    assert run.totals.cost_nanousd == amount + 6 * ONE_REQUEST == run.own.cost_nanousd
    assert (await room.spend()).month_to_date_nanousd == run.totals.cost_nanousd


async def test_it_is_audited_with_its_actor_and_without_its_words(room: LedgerRoom, feed: Feed):
    await room.know(feed)
    await room.hear([feed.channel(usage("q1", "r1"))])
    entry = await only_entry(room)
    await room.correct(entry.id, 42, "c1", reason="a sentence about Ana")
    (row,) = await room.rows("SELECT chain, number, body FROM audit_entry")
    audited = json.loads(bytes(row["body"]))["entry"]
    assert (row["chain"], row["number"]) == ("acme", 1)
    assert (audited["actor"], audited["action"]) == ("somebody", "entry.corrected")
    assert (audited["target_type"], audited["target_id"]) == ("entry", entry.id)
    assert audited["details"]["cost_nanousd"] == {"from": str(ONE_REQUEST), "to": "42"}
    assert "Ana" not in bytes(row["body"]).decode()
    (fact,) = await room.rows("SELECT reason, reason_salt, actor FROM correction")
    salted = bytes(fact["reason_salt"]) + fact["reason"].encode()
    assert audited["details"]["reason_sha256"] == hashlib.sha256(salted).hexdigest()
    (said,) = await room.rows("SELECT subject FROM outbox WHERE subject LIKE '%audit%'")
    assert said["subject"] == "rienda.event.acme.ledger.audit_recorded.v1"
    assert await refusal(_without_actor(room, entry.id)) == "actor_missing"


async def _without_actor(room: LedgerRoom, entry_id: str):
    from contracts.entries import CorrectEntry
    from tests.ledger_room import _question

    asked = CorrectEntry(correction_id="c2", entry_id=entry_id, cost_nanousd=1, reason="because")
    await room.corrector.answer_correct_entry(_question(asked, "acme"))


async def test_two_at_once_of_what_belongs_to_no_run_wait_for_one_another(
    room: LedgerRoom, feed: Feed
):
    """There is no run to lock: the request alone keeps them apart."""
    await room.know(feed)
    await room.hear([feed.channel(ingestion("q1"))])
    (entry,) = (await room.ingested("i1")).items
    made = await asyncio.gather(*(room.correct(entry.id, 1_000 + n, f"c{n}") for n in range(8)))
    amounts = {answer.id: answer.cost_nanousd for answer in made}
    last = (await room.ingested("i1")).items[-1]
    spend = await room.spend()
    assert spend.ingestion.cost_nanousd == amounts[last.id] == spend.month_to_date_nanousd
