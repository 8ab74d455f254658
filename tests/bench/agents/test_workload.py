"""Blocks, scale and the generator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.bench.agents.blocks import SeenBlocks, ids, to_runs
from prime_inference.bench.agents.generate import generate
from prime_inference.bench.agents.scale import CannotScale, Scale, scaled
from prime_inference.bench.agents.traces.write import weka_objects
from prime_inference.bench.agents.workload import (
    Session,
    Turn,
    Workload,
    hits_in_order,
    statistics,
)

block_ids = st.lists(st.integers(0, 30), max_size=12)


@settings(deadline=None)
@given(block_ids)
def test_runs_are_the_same_ids(numbers: list[int]) -> None:
    assert list(ids(to_runs(numbers))) == numbers


@settings(deadline=None)
@given(st.lists(block_ids, max_size=8), block_ids)
def test_the_hit_is_the_leading_ids_that_were_sent_before(
    sent: list[list[int]], asked: list[int]
) -> None:
    seen = SeenBlocks()
    for numbers in sent:
        seen.add(to_runs(numbers))
    known = {number for numbers in sent for number in numbers}
    expected = next((n for n, number in enumerate(asked) if number not in known), len(asked))
    assert seen.hit(to_runs(asked)) == expected


def workload(*turns: Turn, block_tokens: int = 64) -> Workload:
    session = Session(id="s", turns=turns, block_tokens=block_tokens, system_tokens=32)
    return Workload(name="w", form="weka", sessions=(session,), sha256="")


def turn(tokens: int, blocks: list[int], start: float = 0.0) -> Turn:
    return Turn(
        start=start, delay=start, input_tokens=tokens, output_tokens=64, blocks=to_runs(blocks)
    )


def test_the_last_token_of_a_prompt_is_never_a_hit() -> None:
    (session,) = workload(turn(128, [0, 1]), turn(128, [0, 1], 1)).sessions
    assert [hit for _, hit in hits_in_order(session)] == [0, 127]


def test_a_scale_is_rounded_to_whole_tokens_a_block_and_says_so() -> None:
    small = scaled(workload(turn(6400, list(range(100)))), Scale(input=0.03, time=0.5))
    (session,) = small.sessions
    assert session.block_tokens == 2
    assert small.scale == 2 / 64
    assert session.turns[0].input_tokens == 200
    assert session.turns[0].output_tokens == 2
    assert session.system_tokens == 1
    assert "input tokens times 0.03125" in small.notes


@pytest.mark.parametrize("factor", [1 / 64, 1 / 16, 0.5])
def test_a_miniature_shares_as_much_as_the_original(factor: float) -> None:
    original = generate(12, 3)
    small = scaled(original, Scale(input=factor))
    assert statistics(small).reusable == pytest.approx(statistics(original).reusable, abs=0.003)


def test_a_session_ends_before_the_first_turn_that_does_not_fit() -> None:
    small = scaled(
        workload(turn(100, [0]), turn(300, [0], 1), turn(50, [])), Scale(max_context=200)
    )
    assert [t.input_tokens for t in small.sessions[0].turns] == [100]
    assert "contexts up to 200 tokens: 1 of 3 turns" in small.notes


def test_texts_cannot_be_scaled() -> None:
    text = Turn(start=0, delay=0, input_tokens=0, output_tokens=1,
                messages=({"role": "user", "content": "x"},))  # fmt: skip
    with pytest.raises(CannotScale):
        scaled(workload(text), Scale(input=0.5))


@pytest.mark.parametrize("value", [0.0, -1.0, 1.5])
def test_a_scale_outside_its_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="a scale of input"):
        Scale(input=value)


def test_the_generator_meets_the_published_statistics() -> None:
    measured = statistics(generate(393, 1))  # as many sessions as the corpus
    assert measured.median_input == pytest.approx(142_016, rel=0.05)
    assert measured.median_output == pytest.approx(444, rel=0.03)
    assert measured.reusable == pytest.approx(0.983, abs=0.005)
    assert measured.sessions_with_subagents == pytest.approx(0.44, abs=0.05)


def test_the_same_seed_gives_the_same_workload_and_another_seed_another() -> None:
    assert generate(5, 7) == generate(5, 7)
    assert generate(5, 7).sha256 != generate(5, 8).sha256


def test_more_sessions_leave_the_first_ones_as_they_were() -> None:
    assert generate(6, 7).sessions[:3] == generate(3, 7).sessions


def test_a_generated_turn_never_starts_before_what_it_waits_for() -> None:
    for session in generate(20, 2).sessions:
        starts = [t.start for t in session.turns]
        assert starts == sorted(starts)
        for waiting in session.turns:
            for n in waiting.waits_for:
                assert session.subagents[n].session.turns[-1].start <= waiting.start


def test_a_scale_that_leaves_less_than_a_token_of_a_block_is_refused() -> None:
    work = workload(turn(6400, list(range(100))))
    assert scaled(work, Scale(input=1 / 64)).scale == 1 / 64
    with pytest.raises(CannotScale, match="the smallest is 1/64"):
        scaled(work, Scale(input=1 / 128))


def test_a_written_workload_tells_its_real_scale() -> None:
    (written,) = weka_objects(scaled(workload(turn(6400, list(range(100)))), Scale(input=0.03)))
    assert written["totals"] == {"input_scale": 2 / 64}
