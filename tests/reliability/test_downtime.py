"""Who waits in vain on a deployment that was found down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_inference.reliability.downtime import SILENT_S, Downtime

NAMES = ("a", "b")
Looks = list[tuple[set[str], float]]


def test_who_has_brought_nothing_waits_in_vain_from_the_first_look_on() -> None:
    downtime = Downtime()
    assert not downtime.in_vain("a", None, 10)
    downtime.look(["a"], 10)
    assert downtime.in_vain("a", None, 10)
    assert not downtime.in_vain("b", None, 10)


def test_an_answer_is_in_vain_only_when_silent_since_the_verdict() -> None:
    downtime = Downtime()
    downtime.look(["a"], 10)
    assert not downtime.in_vain("a", 60, 10)  # it may have been slow before
    assert not downtime.in_vain("a", 60, 10 + SILENT_S - 0.1)
    assert downtime.in_vain("a", 60, 10 + SILENT_S)
    assert not downtime.in_vain("a", 0.5, 100)  # its tokens come


def test_a_verdict_that_was_reversed_begins_anew() -> None:
    downtime = Downtime()
    downtime.look(["a"], 10)
    downtime.look([], 12)
    assert not downtime
    assert not downtime.in_vain("a", None, 12)
    downtime.look(["a"], 14)
    assert not downtime.in_vain("a", 60, 10 + SILENT_S)
    assert downtime.in_vain("a", 60, 14 + SILENT_S)


@given(
    st.lists(st.tuples(st.sets(st.sampled_from(NAMES)), st.floats(0, 4)), min_size=1),
    st.floats(0, 100),
)
def test_it_is_in_vain_only_while_down_and_only_after_so_long_a_silence(
    looks: Looks, silence: float
) -> None:
    downtime, now = Downtime(), 0.0
    since: dict[str, float] = {}
    for down, pause in looks:
        now += pause
        downtime.look(down, now)
        since = {name: since.get(name, now) for name in down}
        for name in NAMES:
            assert (name in downtime) is (name in down)
            assert downtime.in_vain(name, None, now) is (name in down)
            long = name in down and silence >= SILENT_S and now - since[name] >= SILENT_S
            assert downtime.in_vain(name, silence, now) is long
