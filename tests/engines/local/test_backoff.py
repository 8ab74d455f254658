"""Pauses before a restart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.backoff import HEALTHY_SECONDS, PAUSES_SECONDS, Backoff

SHORT = st.floats(0, HEALTHY_SECONDS, exclude_max=True)


@given(st.lists(SHORT, min_size=2))
def test_pauses_grow_to_the_longest_while_runs_are_short(runs: list[float]):
    backoff = Backoff()
    pauses = [backoff.pause(ran) for ran in runs]
    assert pauses == sorted(pauses)
    assert pauses[0] == PAUSES_SECONDS[0]
    assert max(pauses) <= PAUSES_SECONDS[-1]


@given(st.lists(SHORT), st.floats(HEALTHY_SECONDS))
def test_a_healthy_run_starts_over(runs: list[float], healthy: float):
    backoff = Backoff()
    for ran in runs:
        backoff.pause(ran)
    assert backoff.pause(healthy) == PAUSES_SECONDS[0]
    assert backoff.pause(0) == PAUSES_SECONDS[1]


def test_a_crash_loop_ends_in_the_longest_pause():
    backoff = Backoff()
    assert [backoff.pause(1) for _ in range(9)][-2:] == [PAUSES_SECONDS[-1]] * 2
