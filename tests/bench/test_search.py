import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.bench.gateway.search import FINENESS, largest


@given(st.integers(0, 3000), st.integers(1, 100))
def test_the_limit_of_a_sharp_test_is_found_to_a_tenth(truth, start):
    found = largest(lambda number: number <= truth, start, 2000)
    assert found <= truth
    assert found >= min(truth, 2000) * (1 - FINENESS) - 1


@pytest.mark.parametrize("passes", [True, False])
def test_the_search_stays_within_its_bounds(passes):
    assert largest(lambda number: passes, 64, 500) == (500 if passes else 0)


def test_one_stall_does_not_count():
    tried: set[int] = set()

    def passes(number: int) -> bool:
        second_time = number in tried
        tried.add(number)
        return second_time

    assert largest(passes, 64, 256) == 256
