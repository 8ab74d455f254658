"""What is remembered of an endpoint: right within its precision, and bounded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.gateway.statistics import DAY_MINUTES, PERCENTILES, EndpointStatistics

HOUR = 3600.0


def test_nothing_is_claimed_of_an_endpoint_that_was_never_used():
    statistics = EndpointStatistics()
    assert statistics.uptime(0, 5) is None
    assert statistics.first_token(0) is None
    assert statistics.throughput(0) is None


@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=50))
def test_uptime_is_the_share_of_successes(outcomes: list[bool]):
    statistics = EndpointStatistics()
    for success in outcomes:
        statistics.success(10, 0.1, 10) if success else statistics.failure(10)
    assert statistics.uptime(10, 5) == pytest.approx(100 * sum(outcomes) / len(outcomes))


@pytest.mark.parametrize(("minutes", "uptime"), [(5, 100.0), (30, 50.0), (DAY_MINUTES, 25.0)])
def test_uptime_looks_back_as_far_as_it_is_asked_to(minutes: int, uptime: float):
    statistics = EndpointStatistics()
    now = 100 * HOUR
    for _ in range(2):
        statistics.failure(now - 2 * HOUR)
    statistics.failure(now - 600)
    statistics.success(now, 0.1, 10)
    assert statistics.uptime(now, minutes) == uptime


def test_what_is_older_than_a_day_is_forgotten():
    statistics = EndpointStatistics()
    statistics.failure(0)
    statistics.success(25 * HOUR, 0.1, 10)
    assert statistics.uptime(25 * HOUR, DAY_MINUTES) == 100.0


@given(values=st.lists(st.floats(0.001, 1000), min_size=1, max_size=100))
def test_percentiles_are_right_within_their_precision(values: list[float]):
    statistics = EndpointStatistics()
    for value in values:
        statistics.success(10, value, 1 / value)
    told = statistics.first_token(10)
    assert told is not None
    ordered = sorted(values)
    for percent in PERCENTILES:
        exact = ordered[math.ceil(len(ordered) * percent / 100) - 1]
        assert told[f"p{percent}"] == pytest.approx(exact, rel=0.026, abs=1e-4)


def test_percentiles_are_of_the_last_half_hour():
    statistics = EndpointStatistics()
    statistics.success(0, 100.0, 1.0)
    statistics.success(2 * HOUR, 0.1, 50.0)
    told = statistics.first_token(2 * HOUR)
    assert told is not None
    assert told["p99"] == pytest.approx(0.1, rel=0.03)


def test_a_month_of_use_takes_no_more_than_a_day():
    statistics = EndpointStatistics()
    for minute in range(3 * DAY_MINUTES):
        statistics.success(minute * 60.0, 0.1 + minute % 7, 10 + minute % 5)
    kept = statistics._minutes
    assert len(kept) == DAY_MINUTES
    assert sum(bool(minute.first_token) for minute in kept) <= 32
