"""Retries are a share of the traffic, and a floor."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.reliability.retry_budget import RetryBudget
from prime_inference.reliability.settings import RetrySettings

SETTINGS = RetrySettings(window_s=10, ratio=0.2, floor_per_s=1.0)


def _spent(budget: RetryBudget, now: float) -> int:
    count = 0
    while budget.spend(now):
        count += 1
    return count


def test_a_quiet_replica_has_its_floor() -> None:
    assert _spent(RetryBudget(SETTINGS), now=100) == 10


def test_a_fifth_of_the_requests_comes_on_top() -> None:
    budget = RetryBudget(SETTINGS)
    for _ in range(100):
        budget.request(100)
    assert _spent(budget, 100) == 10 + 20


def test_what_was_spent_comes_back_after_the_window() -> None:
    budget = RetryBudget(SETTINGS)
    assert _spent(budget, 100) == 10
    assert _spent(budget, 109) == 0
    assert _spent(budget, 110) == 10


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 2), st.booleans()), max_size=300))
def test_in_no_window_are_there_more_retries_than_share_and_floor(
    steps: list[tuple[float, bool]],
) -> None:
    budget, now = RetryBudget(SETTINGS), 100.0
    requests: list[int] = []
    retries: list[int] = []
    for gap, is_request in steps:
        now += gap
        if is_request:
            budget.request(now)
            requests.append(int(now))
        elif budget.spend(now):
            retries.append(int(now))
    for end in range(100, int(now) + 1):
        of_window = range(end - 9, end + 1)
        filled = 10 + 0.2 * sum(second in of_window for second in requests)
        assert sum(second in of_window for second in retries) <= filled
