"""Which deployments are ranked behind the others for requests with tools."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.domain.tool_verdict import ToolError, ToolVerdict
from prime_inference.routing.tool_calls import (
    LEAST_ANSWERS,
    MOST_ANSWERS,
    WINDOW_S,
    AnswerRecord,
    RankChange,
    Tally,
    ToolCallRanking,
)

WRONG: tuple[ToolError, ...] = ("SchemaMismatch",)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Ranked:
    """A ranking, its clock and what it said."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ranking = ToolCallRanking(self.clock)
        self.changes: list[RankChange] = []
        self.ranking.on_change = self.changes.append

    def answer(self, deployment: str, *, wrong: bool = False, caller: int = 0) -> None:
        errors = WRONG if wrong else ()
        self.ranking.judged(
            ToolVerdict("m", deployment, finished_with_calls=True, errors=errors, caller=caller)
        )

    def answers(self, deployment: str, count: int, *, wrong: int = 0, callers: int = 5) -> None:
        """So many answers, the wrong ones spread among them, from callers in turn."""
        for number in range(count):
            is_wrong = (number + 1) * wrong // count > number * wrong // count
            self.answer(deployment, wrong=is_wrong, caller=number % callers)


def test_a_deployment_that_gets_calls_wrong_is_ranked_last_and_the_order_stays_otherwise():
    seen = Ranked()
    seen.answers("a", 60, wrong=40)
    seen.answers("b", 60)
    seen.answers("c", 60, wrong=1)
    seen.ranking.look()
    assert seen.ranking.ranked(["a", "c", "b"]) == ["c", "b", "a"]
    assert seen.ranking.best(["a", "c", "b"]) == ["c", "b"]
    assert [(change.deployment, change.behind) for change in seen.changes] == [("a", True)]
    assert seen.changes[0].rate == pytest.approx(40 / 60)
    assert seen.changes[0].best == 0.0


def test_where_all_that_are_offered_are_behind_nothing_changes():
    seen = Ranked()
    seen.answers("a", 60, wrong=60)
    seen.answers("b", 60, wrong=60)
    seen.answers("c", 60)
    seen.ranking.look()
    assert seen.ranking.ranked(["b", "a"]) == ["b", "a"]  # c is ejected
    assert seen.ranking.best(["b", "a"]) == ["b", "a"]


def test_a_model_whose_deployments_are_all_bad_has_none_behind():
    seen = Ranked()
    for name in "abc":
        seen.answers(name, 100, wrong=50)
    seen.ranking.look()
    assert not seen.changes


def test_a_deployment_alone_is_compared_with_nobody():
    seen = Ranked()
    seen.answers("a", 100, wrong=100)
    seen.ranking.look()
    assert not seen.changes


def test_few_answers_say_nothing():
    seen = Ranked()
    seen.answers("a", LEAST_ANSWERS - 1, wrong=LEAST_ANSWERS - 1)
    seen.answers("b", 200)
    seen.ranking.look()
    assert not seen.ranking.is_behind("a")
    seen.answer("a", wrong=True)
    assert seen.ranking.is_behind("a")


def test_a_small_difference_is_worth_no_cache():
    seen = Ranked()
    for _ in range(3):  # 0 % and 1.5 % of 1,000
        seen.answers("a", 333, wrong=5)
        seen.answers("b", 333)
    seen.ranking.look()
    assert not seen.ranking.is_behind("a")


def test_half_better_is_not_well_again():
    seen = Ranked()
    seen.answers("a", 200, wrong=60)
    seen.answers("b", 200)
    seen.ranking.look()
    assert seen.ranking.is_behind("a")
    seen.answers("a", 800, wrong=40)  # 10 % in all, where entering takes about 4
    seen.ranking.look()
    assert seen.ranking.is_behind("a")
    seen.answers("a", 1000)
    seen.ranking.look()
    assert not seen.ranking.is_behind("a")
    assert [change.behind for change in seen.changes] == [True, False]


def test_what_was_wrong_is_forgotten_after_the_window():
    seen = Ranked()
    seen.answers("a", 60, wrong=60)
    seen.answers("b", 60)
    seen.ranking.look()
    assert seen.ranking.is_behind("a")
    seen.clock.now += WINDOW_S + 1
    seen.answers("b", 60)
    seen.ranking.look()
    assert not seen.ranking.is_behind("a")
    assert seen.changes[-1].rate is None  # nothing is known of it


def test_one_callers_impossible_tools_are_no_fault_of_a_deployment():
    seen = Ranked()
    seen.answers("b", 200)
    for number in range(200):
        seen.answer("a", wrong=True, caller=99)
        seen.answer("a", caller=number % 7)
    seen.ranking.look()
    assert not seen.ranking.is_behind("a")


def test_a_caller_that_is_alone_is_all_there_is_to_judge_by():
    seen = Ranked()
    seen.answers("b", 60, callers=1)
    seen.answers("a", 60, wrong=60, callers=1)
    assert seen.ranking.is_behind("a")


def test_answers_that_could_not_be_judged_count_for_nothing_and_missing_calls_as_wrong():
    seen = Ranked()
    seen.answers("b", 60)
    for _ in range(60):
        seen.ranking.judged(ToolVerdict("m", "a", finished_with_calls=True, judged=False))
    assert not seen.changes
    for _ in range(60):
        seen.ranking.judged(ToolVerdict("m", "a", finished_with_calls=False, missing=True))
    assert seen.ranking.is_behind("a")


def test_models_are_judged_apart():
    seen = Ranked()
    for _ in range(60):
        seen.ranking.judged(ToolVerdict("other", "a", finished_with_calls=True, errors=WRONG))
    seen.answers("b", 60)
    seen.ranking.look()
    assert not seen.changes


def test_equal_deployments_are_seldom_taken_for_different():
    seen = Ranked()
    random = Random(7)
    for number in range(8000):
        for name in "abcd":
            seen.answer(name, wrong=random.random() < 0.1, caller=number % 11)
    assert len(seen.changes) <= 1


@settings(deadline=None)  # for busy machines
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.booleans(),
            st.integers(0, 3),
            st.floats(0, 200) | st.just(0.0),
        ),
        max_size=300,
    )
)
def test_the_best_that_is_known_is_never_behind_and_nobody_is_lost(steps):
    seen = Ranked()
    for name, wrong, caller, pause in steps:
        seen.clock.now += pause
        for _ in range(10):
            seen.answer(name, wrong=wrong, caller=caller)
    seen.ranking.look()
    names = sorted({name for name, *_ in steps})
    assert sorted(seen.ranking.ranked(names)) == names
    assert not names or any(not seen.ranking.is_behind(name) for name in names)
    assert bool(seen.ranking.best(names)) == bool(names)


@settings(deadline=None)  # for busy machines
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.booleans(), st.floats(0, WINDOW_S / 20)),
        max_size=MOST_ANSWERS + 200,
    )
)
def test_a_record_counts_what_the_window_holds(steps):
    record, now = AnswerRecord(), 0.0
    kept: list[tuple[float, int, bool]] = []
    for caller, wrong, pause in steps:
        now += pause
        record.add(now, caller, wrong=wrong)
        kept = [*kept, (now, caller, wrong)][-MOST_ANSWERS:]
    record.forget(now - WINDOW_S)
    kept = [each for each in kept if each[0] >= now - WINDOW_S]
    assert record.total == Tally(len(kept), sum(wrong for *_, wrong in kept))
    by_caller = [sum(wrong for _, caller, wrong in kept if caller == one) for one in range(5)]
    assert record.without_worst_caller.wrong == sum(by_caller) - max(by_caller)
