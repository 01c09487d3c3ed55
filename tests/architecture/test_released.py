"""What was released stays as it was released."""

from __future__ import annotations

from contracts.catalog import ROOMS
from tools.migrations import edited, present_digests, read_record


def test_a_released_migration_is_not_edited() -> None:
    """A database that ran it stays as it is: only a further migration reaches it."""
    assert edited(read_record(), present_digests()) == []


def test_every_room_and_the_floor_have_migrations_to_record() -> None:
    """A pattern that matches nothing would protect nothing."""
    found = present_digests()
    assert "shared/floor_0001.sql" in found
    for room in ROOMS:
        assert any(path.startswith(f"services/{room}/migrations/versions/") for path in found)


def test_an_edit_and_a_removal_are_named() -> None:
    recorded = {"a.sql": "1", "b.sql": "2", "c.sql": "3"}
    assert edited(recorded, {"a.sql": "1", "b.sql": "9", "d.sql": "4"}) == [
        "b.sql: was edited after its release",
        "c.sql: was released and is gone",
    ]
