"""The ledger's projection of people: any order, any repetition, the newest state."""

from __future__ import annotations

import itertools
import random
from datetime import datetime
from typing import Any

import pytest

from contracts.catalog import event_of
from contracts.directory import (
    DepartmentChanged,
    DepartmentRemoved,
    DirectoryEntry,
    DirectoryPage,
    GetApplied,
    GetDirectory,
    MemberChanged,
    MemberRemoved,
    Membership,
)
from contracts.errors import Retryable
from contracts.types import Wire
from services.ledger.handlers.copying import DirectoryCopy
from tests.factories import NOON, Feed, agent, minutes, organization
from tests.ledger_room import LedgerRoom, _question

pytestmark = pytest.mark.integration


def member(revision: int, role: str = "member", user_id: str = "ana") -> MemberChanged:
    return MemberChanged(
        entity_revision=revision, user_id=user_id, name=user_id, role=role, changed_at=NOON
    )


def department(
    revision: int, *users: str, cap: int | None = None, ends_at: datetime | None = None
) -> DepartmentChanged:
    return DepartmentChanged(
        entity_revision=revision,
        department_id="sales",
        name="Sales",
        lead_user_id=None,
        monthly_budget_nanousd=cap,
        cap_revision=revision,
        members=tuple(
            Membership(user_id=user, effective_at=NOON, ends_at=ends_at) for user in users
        ),
        changed_at=NOON,
    )


def story(feed: Feed) -> list[Any]:
    said: list[tuple[Wire, str]] = [
        (member(1), "ana"),
        (member(2, "admin"), "ana"),
        (MemberRemoved(entity_revision=3, user_id="ana", removed_at=NOON), "ana"),
        (member(4, "viewer"), "ana"),
        (department(1), "sales"),
        (department(2, "ana", cap=5), "sales"),
        (department(3, "ana", "bea", cap=7, ends_at=NOON + minutes(5)), "sales"),
    ]
    return [feed.directory(data, entity_id) for data, entity_id in said]


STATE = """
    SELECT (SELECT jsonb_agg(to_jsonb(m) ORDER BY user_id) FROM member m) AS members,
        (SELECT jsonb_agg(to_jsonb(d) ORDER BY department_id) FROM department d) AS departments,
        (SELECT jsonb_agg(to_jsonb(i) ORDER BY user_id, effective_at)
            FROM department_member i) AS intervals
"""


async def test_every_order_and_cut_leaves_the_same_people(room: LedgerRoom, feed: Feed) -> None:
    deliveries = story(feed)
    seen = []
    chance = random.Random(4)
    for number in range(24):
        order = [*deliveries, *chance.sample(deliveries, 3)]
        chance.shuffle(order)
        await room.rows("DELETE FROM department_member RETURNING 1")
        await room.rows("UPDATE member SET changed_revision = 0, removed_revision = 0, role = NULL")
        await room.rows("UPDATE department SET changed_revision = 0, removed_revision = 0")
        await room.hear(order, batch=1 + number % 5)
        (state,) = await room.rows(STATE)
        seen.append(tuple(state))
    assert all(state == seen[0] for state in seen)
    members, departments, intervals = seen[0]
    assert [(row["role"], row["changed_revision"], row["removed_revision"]) for row in members] == [
        ("viewer", 4, 3)
    ]
    assert departments[0]["monthly_nanousd"] == 7
    assert [row["user_id"] for row in intervals] == ["ana", "bea"]
    assert all(row["ends_at"] is not None for row in intervals)


async def test_a_departments_cap_is_listed_until_it_is_removed(
    room: LedgerRoom, feed: Feed
) -> None:
    entries = [
        feed.directory(organization(), "acme"),
        feed.directory(agent("writer", 3), "writer"),
        feed.directory(agent("coder", 4), "coder"),
        feed.directory(department(2, "ana", cap=5_000), "sales"),
    ]
    await room.hear(entries)
    page = await room.caps()
    shown = [(row.scope, row.id, row.limit_nanousd, row.is_partial) for row in page.items]
    assert shown == [
        ("organization", "acme", 100_000_000_000, False),
        ("department", "sales", 5_000, False),
        ("agent", "coder", 4, False),
        ("agent", "writer", 3, False),
    ]
    assert page.total == 4
    gone = DepartmentRemoved(entity_revision=3, department_id="sales", removed_at=NOON)
    await room.hear([feed.directory(gone, "sales")])
    assert [row.scope for row in (await room.caps()).items] == ["organization", "agent", "agent"]


async def test_says_how_far_it_has_come(room: LedgerRoom, feed: Feed) -> None:
    async def applied(kind: Any, entity_id: str) -> int:
        question = _question(GetApplied(kind=kind, id=entity_id), "acme")
        return (await room.reader.answer_get_applied(question)).entity_revision

    assert await applied("organization", "acme") == 0
    await room.hear(
        [
            feed.directory(organization(entity_revision=4), "acme"),
            feed.directory(agent("writer", 3, entity_revision=6), "writer"),
            feed.directory(department(2), "sales"),
        ]
    )
    assert await applied("organization", "acme") == 4
    assert await applied("agent", "writer") == 6
    assert await applied("department", "sales") == 2
    assert await applied("organization", "other") == 0


class Pages:
    """A directory that is asked page by page, and fails where it is told to."""

    def __init__(self, entries: list[DirectoryEntry], page: int) -> None:
        self.entries = entries
        self.page = page
        self.asked: list[str | None] = []
        self.fails_at: str | None = None

    async def ask(self, room: str, question: str, data: GetDirectory, *_: Any, **__: Any) -> Any:
        assert (room, question) == ("gateway", "get_directory")
        self.asked.append(data.cursor)
        if data.cursor == self.fails_at is not None:
            raise Retryable("away")
        start = int(data.cursor or 0)
        end = start + self.page
        cursor = str(end) if end < len(self.entries) else None
        return DirectoryPage(entries=tuple(self.entries[start:end]), cursor=cursor)


def entry(data: Wire, org: str = "acme") -> DirectoryEntry:
    event = event_of(type(data))
    return DirectoryEntry(org=org, event=event.name, version=1, data=data.model_dump(mode="json"))


async def test_an_empty_room_copies_the_directory_once_and_goes_on_where_it_was(
    room: LedgerRoom, feed: Feed
) -> None:
    entries = [entry(organization()), entry(agent("writer", 3)), entry(department(1, "u1"))]
    entries += [entry(member(1, user_id=f"u{number}")) for number in range(5)]
    entries.append(DirectoryEntry(org="acme", event="not_known_here", version=1, data={}))
    # The stream was faster with one of them: the copy's older state changes nothing.
    await room.hear([feed.directory(member(2, "admin", "u3"), "u3")])
    pages = Pages(entries, 4)
    copy = DirectoryCopy(database=room.database, asker=pages, clock=room.clock)  # type: ignore[arg-type]
    pages.fails_at = "8"
    with pytest.raises(Retryable):
        await copy.copy()
    pages.fails_at = None
    again = DirectoryCopy(database=room.database, asker=pages, clock=room.clock)  # type: ignore[arg-type]
    await again.copy()
    await again.copy()
    assert pages.asked == [None, "4", "8", "8"]
    rows = await room.rows("SELECT user_id, role FROM member ORDER BY user_id")
    assert [tuple(row) for row in rows] == [
        *((f"u{number}", "member") for number in range(3)),
        ("u3", "admin"),
        ("u4", "member"),
    ]
    assert [tuple(row) for row in await room.rows("SELECT user_id FROM department_member")] == [
        ("u1",)
    ]


async def test_many_states_of_one_entity_in_one_batch(room: LedgerRoom, feed: Feed) -> None:
    states = [
        feed.directory(organization(entity_revision=n, name=f"n{n}"), "acme") for n in range(1, 9)
    ]
    for order in itertools.islice(itertools.permutations(states, 8), 0, 40_000, 9_973):
        await room.hear(list(order))
        (row,) = await room.rows("SELECT name, entity_revision FROM organization")
        assert tuple(row) == ("n8", 8)
        await room.rows("UPDATE organization SET entity_revision = 0, name = ''")
