"""Who waits in vain on a deployment that was found down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_inference.reliability.downtime import SILENT_S, in_vain

times = st.floats(0, 30)


def test_who_has_brought_nothing_by_the_verdict_waits_in_vain_from_then_on() -> None:
    assert in_vain(10, 3, None, 10)
    assert in_vain(10, 3, None, 60)


def test_who_came_after_the_verdict_is_given_as_long_as_a_silent_answer() -> None:
    assert not in_vain(10, 10.1, None, 12)
    assert in_vain(10, 10.1, None, 10.1 + SILENT_S)


def test_an_answer_is_in_vain_only_when_silent_since_the_verdict() -> None:
    assert not in_vain(10, 3, 60, 10)  # it may have been slow before
    assert not in_vain(10, 3, 60, 10 + SILENT_S - 0.1)
    assert in_vain(10, 3, 60, 10 + SILENT_S)
    assert not in_vain(10, 3, 0.5, 100)  # its tokens come


@given(times, times, st.none() | times, times, times)
def test_what_is_in_vain_stays_so_until_something_comes(
    since: float, began: float, silence: float | None, now: float, later: float
) -> None:
    if in_vain(since, began, silence, now):
        assert in_vain(since, began, None if silence is None else silence + later, now + later)
