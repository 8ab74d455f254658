"""How slots are divided: doorman's worked examples, and what holds for all wants."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.domain.sharing import (
    BATCH_FRACTION,
    Sharing,
    banded_shares,
    shares,
    whole_shares,
)

WANTS = st.lists(st.integers(0, 300), min_size=1, max_size=12)
CAPACITY = st.integers(0, 400)
SHARED = st.sampled_from([Sharing.PROPORTIONAL, Sharing.FAIR])


def test_static_gives_each_what_it_wants_up_to_the_capacity() -> None:
    assert shares(Sharing.STATIC, 120, [50, 200, 300]) == [50, 120, 120]


def test_proportional_share_tops_up_in_proportion_to_need() -> None:
    got = shares(Sharing.PROPORTIONAL, 120, [1000, 50, 10])
    assert got == pytest.approx([69.69, 40.31, 10], abs=0.005)


def test_fair_share_satisfies_as_many_as_possible() -> None:
    assert shares(Sharing.FAIR, 120, [1000, 50, 10]) == [60, 50, 10]


@pytest.mark.parametrize("algorithm", Sharing)
def test_everybody_gets_all_if_it_fits(algorithm: Sharing) -> None:
    assert shares(algorithm, 120, [60, 50, 10]) == [60, 50, 10]


@settings(deadline=None)
@given(SHARED, CAPACITY, WANTS)
def test_no_more_than_the_capacity_is_shared_and_no_more_than_is_wanted(
    algorithm: Sharing, capacity: int, wants: list[int]
) -> None:
    got = shares(algorithm, capacity, wants)
    assert sum(got) == pytest.approx(min(capacity, sum(wants)))
    assert all(0 <= share <= want + 1e-9 for share, want in zip(got, wants, strict=True))


@settings(deadline=None)
@given(SHARED, CAPACITY, WANTS)
def test_everybody_gets_at_least_the_equal_share_or_what_it_wants(
    algorithm: Sharing, capacity: int, wants: list[int]
) -> None:
    equal = capacity / len(wants)
    for share, want in zip(shares(algorithm, capacity, wants), wants, strict=True):
        assert share >= min(want, equal) - 1e-9


@settings(deadline=None)
@given(SHARED, CAPACITY, WANTS, st.integers(0, 100))
def test_whole_slots_lose_and_invent_nothing(
    algorithm: Sharing, capacity: int, wants: list[int], turn: int
) -> None:
    whole = whole_shares(algorithm, capacity, wants, turn)
    assert sum(whole) == min(capacity, sum(wants))
    exact = shares(algorithm, capacity, wants)
    for got, want, share in zip(whole, wants, exact, strict=True):
        assert 0 <= got <= want
        assert abs(got - share) < 1 + 1e-9


def test_with_fewer_slots_than_replicas_slots_go_round() -> None:
    served = [whole_shares(Sharing.FAIR, 2, [1, 1, 1, 1, 1], turn) for turn in range(5)]
    assert [sum(replica) for replica in zip(*served, strict=True)] == [2, 2, 2, 2, 2]


@settings(deadline=None)
@given(CAPACITY, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1))
def test_batch_takes_only_what_interactive_leaves(
    capacity: int, wants: list[tuple[int, int]]
) -> None:
    interactive = [want for want, _ in wants]
    alone = whole_shares(Sharing.FAIR, capacity, interactive)
    banded = banded_shares(Sharing.FAIR, capacity, interactive, [want for _, want in wants])
    assert [total - batch for total, batch in banded] == alone
    assert sum(total for total, _ in banded) <= capacity
    assert sum(batch for _, batch in banded) <= max(1, capacity * BATCH_FRACTION)
