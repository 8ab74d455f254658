"""Tokens and speed, from a clock that the test turns."""

from __future__ import annotations

import pytest

from prime_inference.cli.replies import CompletionDetails, PromptDetails, Usage
from prime_inference.cli.statistics import Stopwatch, streamed, whole


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_pace_of_a_stream_is_that_after_the_first_token():
    clock = Clock()
    watch = Stopwatch(clock)
    for moment in (100.5, 101.0, 102.5):
        clock.now = moment
        watch.piece()
    clock.now = 103.0
    found = streamed(watch, Usage(10, 21), "stop")
    assert (found.first_token, found.total) == (0.5, 3.0)
    assert found.tokens_per_second == pytest.approx(20 / 2.0)


@pytest.mark.parametrize("usage", [None, Usage(10, 0), Usage(10, 1)])
def test_there_is_no_pace_where_nothing_can_be_known(usage: Usage | None):
    watch = Stopwatch(Clock())
    watch.piece()
    assert streamed(watch, usage, "stop").tokens_per_second is None
    assert streamed(Stopwatch(Clock()), usage, "stop").first_token is None


def test_a_whole_answer_has_the_pace_of_the_request_and_no_first_token():
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now = 102.0
    found = whole(watch, Usage(10, 20), "length")
    assert (found.first_token, found.tokens_per_second) == (None, 10.0)
    assert found.as_text() == (
        "10 prompt tokens · 20 completion tokens · total 2.00 s · 10.0 tokens/s"
        " · finish reason: length"
    )


def test_cached_and_reasoning_tokens_are_told_apart():
    usage = Usage(10, 20, PromptDetails(8), CompletionDetails(5))
    text = whole(Stopwatch(Clock()), usage, "stop").as_text()
    assert text.startswith("10 prompt tokens (8 cached) · 20 completion tokens (5 reasoning)")


def test_without_usage_it_says_so():
    found = whole(Stopwatch(Clock()), None, "stop")
    assert found.as_text().startswith("the server reported no usage")
    stats = found.as_json()["stats"]
    assert isinstance(stats, dict)
    assert stats["completion_tokens"] is None
