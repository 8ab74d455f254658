"""Sessions stay where their KV cache is, and yield to health."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.routing.affinity import SessionRing, session_key

NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8, unique=True)
KEYS = st.integers(0, 2**64 - 1)


def _keys(count: int) -> list[int]:
    return [session_key("team", f"session-{number}") for number in range(count)]


@settings(deadline=None)
@given(NAMES, KEYS)
def test_every_replica_ranks_alike_whatever_the_order_of_its_list(
    names: list[str], key: int
) -> None:
    one = SessionRing(dict.fromkeys(names, 4))
    other = SessionRing(dict.fromkeys(reversed(names), 4))
    assert one.ranking(key) == other.ranking(key)
    assert sorted(one.ranking(key)) == sorted(names)


@settings(deadline=None)
@given(NAMES, KEYS)
def test_a_deployment_that_goes_moves_only_its_own_sessions(names: list[str], key: int) -> None:
    before = SessionRing(dict.fromkeys(names, 4)).ranking(key)
    for gone in names:
        rest = SessionRing({name: 4 for name in names if name != gone}).ranking(key)
        assert rest == [name for name in before if name != gone]


@settings(deadline=None)
@given(NAMES, KEYS, st.data())
def test_the_session_goes_to_the_highest_of_its_ranking_that_is_offered(
    names: list[str], key: int, data: st.DataObject
) -> None:
    ring = SessionRing(dict.fromkeys(names, 4))
    offered = data.draw(st.lists(st.sampled_from(names), unique=True))
    ordered = ring.first(key, offered)
    assert sorted(ordered) == sorted(offered)
    if offered:
        assert ordered[0] == next(name for name in ring.ranking(key) if name in offered)
        assert ordered[1:] == [name for name in offered if name != ordered[0]]


def test_sessions_spread_in_proportion_to_slots() -> None:
    ring = SessionRing({"small": 10, "large": 30, "none": 0})
    homes = Counter(ring.ranking(key)[0] for key in _keys(4000))
    assert homes["none"] == 0
    assert homes["large"] / homes["small"] == pytest.approx(3, rel=0.15)


def test_the_sessions_of_a_lost_deployment_spread_over_the_others() -> None:
    ring = SessionRing(dict.fromkeys("abcd", 8))
    second = Counter(ring.ranking(key)[1] for key in _keys(4000) if ring.ranking(key)[0] == "a")
    assert set(second) == set("bcd")
    assert min(second.values()) > 0.25 * second.total()


def test_what_is_offered_but_not_in_the_ring_keeps_its_order() -> None:
    assert SessionRing({}).first(1, ["new", "newer"]) == ["new", "newer"]


def test_tenants_do_not_share_sessions() -> None:
    assert session_key("a", "bc") != session_key("ab", "c")
