"""Counting within a sliding window."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.reliability.window import OutcomeWindow

STEPS = st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=200)


@settings(deadline=None)
@given(STEPS, st.integers(1, 12))
def test_counts_are_those_of_the_last_whole_seconds(
    steps: list[tuple[float, bool]], seconds: int
) -> None:
    window, events, now = OutcomeWindow(seconds), [], 1000.0
    for gap, good in steps:
        now += gap
        events.append((int(now), good))
        window.answered(now) if good else window.failed(now)
    recent = [good for second, good in events if second > int(now) - seconds]
    assert window.totals(now) == (sum(recent), len(recent) - sum(recent))


def test_a_cleared_window_is_empty() -> None:
    window = OutcomeWindow(10)
    window.failed(5)
    window.clear()
    assert window.totals(5) == (0, 0)
