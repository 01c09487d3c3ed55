"""Who floods, by counts alone: rates between looks, twice in a row, each key by all it has open."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.host.bootstrap.floods import FORGIVEN_S, FloodWatch, Pauses, Traffic
from services.host.bootstrap.nats_config import organizations_text


def keys(floods) -> list[str]:
    return [flood.key for flood in floods]


def test_a_flood_is_two_looks_above_the_limit() -> None:
    watch = FloodWatch(messages_per_s_max=100)
    assert watch.look([Traffic(1, "a", 1_000_000, 0)], 0.0) == []
    assert watch.look([Traffic(1, "a", 1_000_101, 0)], 1.0) == []
    found = watch.look([Traffic(1, "a", 1_000_202, 0)], 2.0)
    assert keys(found) == ["a"]
    assert found[0].messages_per_s == 101


def test_one_quiet_look_begins_anew() -> None:
    watch = FloodWatch(messages_per_s_max=100)
    counts = [0, 500, 510, 1_010, 1_020]
    looks = [watch.look([Traffic(1, "a", count, 0)], float(at)) for at, count in enumerate(counts)]
    assert looks == [[], [], [], [], []]


def test_the_limit_itself_is_no_flood_and_bytes_count_too() -> None:
    watch = FloodWatch(messages_per_s_max=100, bytes_per_s_max=1_000)
    for at in range(4):
        traffic = [Traffic(1, "a", 100 * at, 1_000 * at), Traffic(2, "b", at, 1_001 * at)]
        found = keys(watch.look(traffic, float(at)))
    assert found == ["b"]


def test_many_connections_of_one_key_count_together() -> None:
    watch = FloodWatch(messages_per_s_max=100)
    for at in range(3):
        found = keys(watch.look([Traffic(n, "a", 60 * at, 0) for n in range(2)], float(at)))
    assert found == ["a"]


def test_a_new_connection_counts_from_its_beginning() -> None:
    watch = FloodWatch(messages_per_s_max=100)
    found = []
    for at in range(3):
        # Opened anew for every look, as a sender that hides would do.
        found = keys(watch.look([Traffic(at, "a", 150, 0)], float(at)))
    assert found == ["a"]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20))
def test_whoever_stays_within_the_limit_is_never_cut(sent: list[int]) -> None:
    watch = FloodWatch(messages_per_s_max=100)
    total = 0
    for at, count in enumerate(sent):
        total += count
        assert watch.look([Traffic(1, "a", total, 0)], float(at)) == []


def test_pauses_grow_and_are_forgiven() -> None:
    pauses = Pauses(10.0)
    lengths = [pauses.begin("acme.c1", at_s) for at_s in (0.0, 20.0, 200.0, 900.0)]
    assert lengths == [10.0, 60.0, 300.0, 300.0]
    assert pauses.now(1_199.9) == {"acme.c1"}
    assert pauses.now(1_200.0) == frozenset()
    assert pauses.begin("acme.c1", 1_200.1 + FORGIVEN_S) == 10.0


def test_a_pause_is_lifted() -> None:
    pauses = Pauses(10.0)
    pauses.begin("acme.c1", 0.0)
    pauses.lift("acme.c1", 1.0)
    pauses.lift("acme.c2", 1.0)
    assert pauses.now(1.0) == frozenset()


def test_a_paused_channel_keeps_its_organizations_account() -> None:
    text = organizations_text({"acme.c1": "UKEY"}, paused={"acme.c1"})
    assert '"ORG_acme"' in text
    assert "UKEY" not in text
