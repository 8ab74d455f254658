"""Quantiles within a bucket's width, in fixed memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.reliability.hedge import hedge_after
from prime_inference.reliability.settings import RetrySettings
from prime_inference.reliability.statistics import GROWTH, HoldingTime, LatencyHistogram

DURATIONS = st.lists(st.floats(0.001, 500), min_size=1, max_size=300)


@settings(deadline=None)
@given(DURATIONS, st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_the_upper_edge_of_its_bucket(durations: list[float], q: float) -> None:
    histogram = LatencyHistogram()
    for duration in durations:
        histogram.add(duration, now=50)
    exact = sorted(durations)[math.ceil(q * len(durations)) - 1]
    told = histogram.quantile(q, now=50)
    assert told is not None
    assert exact / (1 + 1e-9) <= told <= exact * GROWTH * (1 + 1e-9)


def test_durations_are_forgotten_after_a_minute() -> None:
    histogram = LatencyHistogram()
    histogram.add(1.0, now=5)
    assert histogram.quantile(0.5, now=55) is not None
    assert histogram.quantile(0.5, now=61) is None


def test_too_few_samples_have_no_quantile() -> None:
    histogram = LatencyHistogram()
    for _ in range(99):
        histogram.add(0.2, now=5)
    assert histogram.quantile(0.99, now=10, least_samples=100) is None
    histogram.add(0.2, now=15)
    assert histogram.quantile(0.99, now=16, least_samples=100) is not None


def test_a_quantile_that_another_has_asked_for_still_needs_its_samples() -> None:
    histogram = LatencyHistogram()
    for _ in range(99):
        histogram.add(0.2, now=5)
    assert histogram.quantile(0.99, now=10) is not None
    assert histogram.quantile(0.99, now=10, least_samples=100) is None


def test_extremes_fall_into_the_outer_buckets() -> None:
    histogram = LatencyHistogram()
    histogram.add(0.0, now=5)
    histogram.add(1e9, now=5)
    assert histogram.quantile(0.5, now=5) == pytest.approx(0.001)
    assert histogram.quantile(1.0, now=5) is not None


def test_a_hedge_starts_when_the_deployments_own_p99_has_passed() -> None:
    histogram, settings = LatencyHistogram(), RetrySettings()
    for _ in range(98):
        histogram.add(0.3, now=5)
    histogram.add(4.0, now=5)
    assert hedge_after(histogram, 5, settings) is None
    histogram.add(4.0, now=6)
    delay = hedge_after(histogram, 7, settings)
    assert delay is not None
    assert delay == pytest.approx(4.0, rel=GROWTH - 1)
    assert delay >= 4.0


def test_a_hedge_never_starts_within_the_noise_of_a_network() -> None:
    histogram, settings = LatencyHistogram(), RetrySettings()
    for _ in range(100):
        histogram.add(0.002, now=5)
    assert hedge_after(histogram, 5, settings) == settings.hedge_least_s


def test_the_holding_time_follows_what_it_sees() -> None:
    holding = HoldingTime()
    assert holding.mean_s is None
    holding.add(10)
    assert holding.mean_s == 10
    for _ in range(100):
        holding.add(2)
    assert holding.mean_s == pytest.approx(2, abs=0.01)
