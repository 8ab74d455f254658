"""Metrics on records computed by hand, and the pitfalls of other harnesses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prime_inference.bench.agents.metrics import (
    Hardware,
    PointMetrics,
    Slo,
    point_metrics,
    recovery,
)
from prime_inference.bench.agents.percentiles import percentile
from prime_inference.bench.agents.plan import Point
from prime_inference.bench.agents.point import FaultRun, PointRun
from prime_inference.bench.agents.records import Record
from prime_inference.bench.agents.sender import judge


def record(sent: float, ttft: float, latency: float, osl: int, **more: Any) -> Record:
    """A request of 1,000 tokens whose content came from `ttft` to `latency`."""
    fields: dict[str, Any] = {
        "point": 0, "phase": "profiling", "kind": "warm", "session": "s", "play": 0, "turn": 0,
        "intended": sent, "due": sent, "sent": sent, "first": sent + ttft, "last": sent + latency,
        "end": sent + latency, "outcome": "ok", "input_tokens": 1000, "asked_tokens": osl,
        "prompt_tokens": 1000, "completion_tokens": osl, "events": osl, "finish": "length",
    }  # fmt: skip
    return Record(**(fields | more))


def failed(sent: float, latency: float = 0.001, outcome: str = "http_500", **more: Any) -> Record:
    return record(sent, 0, latency, 0, outcome=outcome, first=None, last=None,
                  completion_tokens=None, events=0, asked_tokens=10, **more)  # fmt: skip


def point(*records: Record, slo: Slo = Slo(), hardware: Hardware = Hardware(),
          end: float = 10.0, **run: Any) -> PointMetrics:  # fmt: skip
    fields: dict[str, Any] = {"lag_p99": 0.0, "send_lag_p99": 0.0, "load": (0.0, 0.0)}
    made = PointRun(point=Point(1, 0.0, 0), number=0, start=0.0, end=end, **(fields | run))
    return point_metrics(
        made, records, slo=slo, hardware=hardware, lag_bound=0.01, failed_limit=0.1
    )


def test_percentiles_interpolate_at_n_minus_one() -> None:
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile([1, 2, 3, 4], 90) == pytest.approx(3.7)
    assert percentile([7], 90) == 7
    assert math.isnan(percentile([], 50))


FOUR = [
    record(0.0, 0.5, 2.5, 5),     # 0.5 s a token, 2 tok/s
    record(1.0, 0.5, 1.5, 5),     # 0.3
    record(2.0, 1.0, 2.0, 10),    # 0.2
    record(3.0, 0.1, 1.0, 10),    # 0.1
]  # fmt: skip


def test_interactivity_is_the_inverse_of_the_percentile_and_not_the_reverse() -> None:
    found = point(*FOUR).classes["all"].e2e_norm_intvty
    assert found.p50 == pytest.approx(1 / 0.25)
    assert found.p75 == pytest.approx(1 / 0.35)
    assert found.p90 == pytest.approx(1 / 0.44)
    inverted_first = percentile([2.0, 1 / 0.3, 5.0, 10.0], 90)
    assert found.p90 < 3 < inverted_first  # the slow tail, not the fast one


def test_decode_interactivity_leaves_the_first_token_out() -> None:
    found = point(*FOUR).classes["all"]
    itls = [2.0 / 4, 1.0 / 4, 1.0 / 9, 0.9 / 9]
    assert found.itl.p50 == pytest.approx((itls[1] + itls[2]) / 2)
    assert found.intvty.p50 == pytest.approx(2 / (itls[1] + itls[2]))
    assert found.ttft.p50 == 0.5
    assert found.itl.count == 4


def test_a_single_token_has_no_inter_token_latency() -> None:
    found = point(record(0, 0.5, 0.5, 1), *FOUR).classes["all"]
    assert found.itl.count == 4
    assert found.e2e_norm_intvty.count == 5


def test_throughput_is_over_the_span_of_the_requests_and_says_which_tokens() -> None:
    found = point(*FOUR, hardware=Hardware(gpus=4)).classes["all"].throughput
    assert found.output_tput_tps == pytest.approx(30 / 4.0)
    assert found.total_tput_tps == pytest.approx(4030 / 4.0)
    assert found.per_gpu_output_tput_tps == pytest.approx(30 / 16)
    assert found.per_gpu_total_tput_tps == pytest.approx(4030 / 16)


def test_warm_up_is_never_counted() -> None:
    with_warm_up = point(*FOUR, record(0, 9, 90, 1, phase="warmup"), record(0, 9, 9, 1, point=1))
    assert with_warm_up.classes == point(*FOUR).classes


def test_failures_make_no_latency_better_and_are_misses_of_goodput() -> None:
    found = point(*FOUR, failed(0.0), failed(0.0, outcome="cut"), slo=Slo(e2e=1.0)).classes["all"]
    assert found.ttft == point(*FOUR).classes["all"].ttft
    assert (found.ok, found.failed, found.outcomes["cut"]) == (4, 2, 1)
    assert found.goodput_share == pytest.approx(4 / 6)
    assert found.goodput_per_second == pytest.approx(0.4)


def test_what_was_cancelled_or_unfinished_is_neither() -> None:
    found = point(*FOUR, failed(0, outcome="cancelled"), failed(0, outcome="unfinished"))
    assert found.classes["all"].failed == 0
    assert found.classes["all"].goodput_share == 1.0
    assert found.classes["all"].requests == 6


def test_goodput_needs_every_slo_a_whole_answer_and_valid_calls() -> None:
    slo = Slo(ttft=0.5, e2e=3.0)
    held = record(0, 0.4, 1.0, 10)
    misses = [
        record(0, 0.6, 1.0, 10),
        record(0, 0.4, 5.0, 10),
        record(0, 0.4, 1.0, 10, truncated=True),
        record(0, 0.4, 1.0, 10, invalid_calls=1),
    ]
    assert slo.held(held)
    assert [slo.held(miss) for miss in misses] == [False] * 4


@pytest.mark.parametrize("text", ["e2e", "e2e=0", "speed=3", "e2e=x"])
def test_an_slo_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"SLO|float"):
        Slo.parse([text])


def test_the_servers_count_of_output_tokens_is_the_one_that_counts() -> None:
    packed = record(0.0, 0.5, 2.5, 5, completion_tokens=20)  # four tokens an event
    untold = record(0.0, 0.5, 2.5, 5, completion_tokens=None)
    assert (packed.osl, untold.osl) == (20, 5)
    assert packed.itl == pytest.approx(2 / 19)


@pytest.mark.parametrize(
    ("told", "doubtful"),
    [
        ({"completion_tokens": 10, "events": 10}, False),
        ({"completion_tokens": 10, "events": 3}, False),  # several tokens an event
        ({"completion_tokens": 3, "events": 10}, True),  # fewer tokens than events
        ({"completion_tokens": 50, "events": 10}, True),  # more than was asked for
        ({"completion_tokens": 10, "events": 0}, True),  # tokens without content
    ],
)
def test_usage_that_cannot_be_is_noticed(told: dict[str, int], doubtful: bool) -> None:
    seen = record(0, 0.1, 1, 10, **told)
    judge(seen, 64)
    assert seen.usage_doubtful is doubtful


def test_a_length_finish_before_the_tokens_asked_for_is_a_truncation() -> None:
    whole, cut, stopped = (
        record(0, 0.1, 1, osl, asked_tokens=10, finish=finish)
        for osl, finish in [(10, "length"), (7, "length"), (7, "stop")]
    )
    for seen in (whole, cut, stopped):
        judge(seen, 64)
    assert [seen.truncated for seen in (whole, cut, stopped)] == [False, True, False]


def test_cached_tokens_above_the_possible_are_flagged_and_a_prompt_that_differs_too() -> None:
    fine = record(0, 0.1, 1, 1, hit_tokens=500, cached_tokens=560)
    too_many = record(0, 0.1, 1, 1, hit_tokens=500, cached_tokens=565, prompt_tokens=1003)
    for seen in (fine, too_many):
        judge(seen, 64)
    assert (fine.impossible_hit, too_many.impossible_hit) == (False, True)
    assert (fine.prompt_mismatch, too_many.prompt_mismatch) == (False, True)
    found = point(fine, too_many).classes["all"]
    assert (found.impossible_hits, found.prompt_mismatches) == (1, 1)
    assert found.theoretical_hit_rate == pytest.approx(1000 / 2003)
    assert found.cached_share == pytest.approx(1125 / 2003)


def test_classes_are_apart_and_together() -> None:
    found = point(*FOUR, record(4, 3, 9, 10, kind="cold"), record(5, 1, 2, 10, kind="subagent"))
    assert {name: c.requests for name, c in found.classes.items()} == {
        "all": 6, "warm": 4, "subagent": 1, "cold": 1,
    }  # fmt: skip
    assert found.classes["warm"].e2el == point(*FOUR).classes["all"].e2el


def test_latency_from_the_intended_start_shows_what_the_send_hides() -> None:
    late = record(5.0, 0.5, 1.0, 5, intended=2.0)
    found = point(late).classes["all"]
    assert (found.ttft.p50, found.ttft_intended.p50) == (0.5, 3.5)


def test_a_session_takes_its_time_without_the_tools() -> None:
    play = [
        record(0.0, 0.5, 1.0, 5),
        record(4.0, 0.5, 2.0, 5, turn=1, wait=3.0),
        record(9.0, 0.5, 1.0, 5, turn=2, wait=2.5, last_turn=True),
    ]
    whole = point(*play)
    assert whole.sessions_completed == 1
    assert whole.session_seconds.p50 == pytest.approx(10.0 - 5.5)
    assert point(*play[:2]).sessions_completed == 0
    begun_late = point(*play[1:])
    assert (begun_late.sessions_completed, begun_late.session_seconds.count) == (1, 0)


def test_cost_is_the_price_of_the_time_over_what_came_out() -> None:
    found = point(*FOUR, record(9, 0.1, 1, 10, last_turn=True, turn=3, play=1),
                  hardware=Hardware(gpus=2, price=3.6), end=10.0)  # fmt: skip
    assert found.cost_per_million_output == pytest.approx(0.02 / 40 * 1e6)
    assert found.cost_per_session == pytest.approx(0.02)
    assert point(*FOUR).cost_per_million_output is None


def test_recovery_is_when_success_and_speed_are_back_for_good() -> None:
    before = [record(t, 0.1, 1.0, 10) for t in range(10)]
    broken = [failed(10.0 + t) for t in range(4)]
    slow = [record(15.0 + t, 0.1, 2.0, 10) for t in range(5)]
    fine_again = [record(20.0 + t, 0.1, 1.1, 10) for t in range(20)]
    run = PointRun(point=Point(1, 0, 0), number=0, start=0, end=40, lag_p99=0, send_lag_p99=0,
                   load=(0, 0), faults=(FaultRun(10.0, "kill", 0),))  # fmt: skip
    assert recovery([*before, *broken, *slow, *fine_again], run, 10.0) == 10.0
    assert recovery([*before, *broken, *slow], run, 10.0) is None
    relapse = [*before, *fine_again, failed(38.0)]
    assert recovery(relapse, run, 10.0) is None


def test_a_late_generator_a_failing_server_and_silence_make_a_point_invalid() -> None:
    assert point(*FOUR).valid
    assert "late" in point(*FOUR, lag_p99=0.02).invalid_because[0]
    assert "late" in point(*FOUR, send_lag_p99=0.02).invalid_because[0]
    assert "failed" in point(*FOUR, failed(0.0)).invalid_because[0]
    assert "no request" in point(failed(0.0)).invalid_because[0]
    overflow = point(*FOUR * 20, failed(0.0, outcome="overflow"))
    assert "too long" in overflow.invalid_because[0]


def test_speed_is_told_by_the_depth_of_the_context() -> None:
    found = point(
        record(0, 0.1, 1, 10, prompt_tokens=500),
        record(0, 0.1, 2, 10, prompt_tokens=5000),
        record(0, 0.1, 9, 10, kind="cold"),
    ).by_depth
    assert {name: d.p50 for name, d in found.items()} == {"0-1000": 0.1, "4000-16000": 0.2}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"completion_tokens": 100}, "output tokens that do not fit"),
        ({"prompt_tokens": 2000}, "prompt tokens other than"),
        ({"cached_tokens": 3000}, "more cached tokens than is possible"),
        ({"cached_tokens": 3000, "input_tokens": 0}, "more cached tokens than is possible"),
    ],
)
def test_a_server_that_tells_impossible_counts_is_not_measured(
    told: dict[str, Any], reason: str
) -> None:
    lies = [record(n, 0.1, 1.0, 10, **told) for n in range(2)]
    for lie in lies:
        judge(lie, 64)
    honest = [record(n, 0.1, 1.0, 10) for n in range(98)]
    found = point(*honest, *lies, slo=Slo(e2e=1))
    assert not found.valid
    assert reason in found.invalid_because[0]
    assert found.classes["all"].goodput_share == pytest.approx(0.98)
    assert point(*honest, *honest, lies[0]).valid


def test_a_bin_in_which_nothing_was_sent_does_not_undo_a_recovery() -> None:
    before = [record(n, 0.1, 1.0, 10) for n in range(5)]
    after = [record(n, 0.1, 1.0, 10) for n in (6, 17)]
    run = PointRun(point=Point(1, 0.0, 0), number=0, start=0.0, end=20.0, lag_p99=0.0,
                   send_lag_p99=0.0, load=(0.0, 0.0))  # fmt: skip
    assert recovery([*before, *after], run, 5.0) == 0.0
