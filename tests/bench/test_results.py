from pathlib import Path

import msgspec
import pytest

from prime_inference.bench.gateway import nginx, plot, report
from prime_inference.bench.gateway.campaign import carried, turns
from prime_inference.bench.gateway.load import Load, Target
from prime_inference.bench.gateway.machine import Cores, describe
from prime_inference.bench.gateway.results import (
    CpuTime,
    Footprint,
    Results,
    Settings,
    Spread,
    Streams,
    WholeAnswers,
    added_by_streams,
    added_latency,
    errors,
    speed_ratio,
)
from prime_inference.bench.gateway.soak import slope
from prime_inference.bench.gateway.streams import StreamLoad
from prime_inference.bench.gateway.subjects import Running

OURS = "prime-inference"


def whole(subject: str, order: int, requests: int, p50_ms: float, bad: int = 0) -> WholeAnswers:
    load = Load(requests, 1.0, p50_ms, 2 * p50_ms, 3 * p50_ms, bad)
    return WholeAnswers(subject, 0, order, 1, load, CpuTime(requests * 50e-6, 0.02, 1.0))


def streams(subject: str, ttft: float, **changes: object) -> Streams:
    load = StreamLoad(32, 100, 0, 0, 6700, ttft, 2 * ttft, 20.0, 25.0, 30.0)
    load = msgspec.structs.replace(load, **changes)
    return Streams(subject, 0, load, carried(load, 20.0), CpuTime(6700 * 30e-6, 0.04, 1.0))


@pytest.fixture
def results() -> Results:
    return Results(
        made_at="2026-11-29T00:00:00+00:00",
        machine=describe(),
        cores=Cores(0, 1),
        settings=Settings(1, 1, 1, 1, connections=(1,)),
        ours=OURS,
        generator="wrk",
        whole_upstream="nginx, fixed answer",
        versions={"peer": "1.2"},
        left_out={"absent": "not installed"},
        whole=[
            whole("direct", 0, 9000, 0.10),
            whole(OURS, 1, 1000, 0.30),
            whole("peer", 2, 500, 0.60, bad=2),
            whole(OURS, 3, 2000, 0.20),
            whole("peer", 4, 500, 0.50),
        ],
        latency=[streams("direct", 1.0), streams(OURS, 3.0), streams("peer", 9.0)],
        most={"direct": [900], OURS: [500, 640], "peer": [64, 64]},
        memory={OURS: Footprint(42.0, 46.0, 64.0), "peer": Footprint(300.0)},
    )


def test_a_ratio_is_taken_between_neighbours_in_time(results: Results):
    assert speed_ratio(results, OURS, "peer", 1) == Spread(3.0, 2.0, 4.0)


def test_added_latency_is_taken_from_the_nearest_direct_measurement(results: Results):
    added = added_latency(results, OURS)
    assert added is not None
    assert added.least == pytest.approx(0.1)
    assert added.greatest == pytest.approx(0.2)


def test_added_times_of_streams_are_taken_round_by_round(results: Results):
    assert added_by_streams(results, "peer", lambda s: s.ttft_p50_ms) == Spread(8.0, 8.0, 8.0)


def test_errors_are_added_up(results: Results):
    assert [errors(results, name) for name in ("peer", OURS)] == [2, 0]


def test_what_was_not_measured_is_nothing(results: Results):
    assert speed_ratio(results, OURS, "other", 1) is None
    assert speed_ratio(results, "other", OURS, 1) is None
    assert Spread.of([]) is None


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, True),
        ({"lost": 1}, False),
        ({"errors": 1}, False),
        ({"errors": 1, "finished": 1000}, True),
        ({"gap_max_ms": 201.0}, False),
        ({"late": "gap"}, False),
    ],
)
def test_streams_are_carried_when_none_is_lost_or_late(changes: dict[str, object], verdict: bool):
    assert streams("any", 1.0, **changes).carried is verdict


def test_ours_takes_a_turn_beside_every_peer():
    running = {n: Running(n, Target(""), None) for n in ("direct", OURS, "a", "b")}
    assert [r.name for r in turns(running, OURS)] == ["direct", OURS, "a", OURS, "b", OURS]


def test_the_report_has_every_number_and_what_was_left_out(results: Results):
    text = report.markdown(results)
    for said in (
        "| peer | 3.00 (2.00-4.00) |",
        "500-640",
        "absent: not installed",
        "nginx, fixed answer",
        "| peer | 300 | - | - | 50 | 30 |",
    ):
        assert said in text


def test_a_machine_that_was_not_quiet_is_told(results: Results):
    assert "not quiet" not in report.markdown(results)
    busy = msgspec.structs.replace(results.whole[1], cpu=CpuTime(0.5, 0.4, 1.0))
    results.whole[1] = busy
    assert "40% in the worst" in report.markdown(results)


def test_numbers_of_a_machine_that_others_use_are_called_useless(results: Results):
    results.whole = [
        msgspec.structs.replace(m, cpu=CpuTime(0.1, 0.7, 1.0)) for m in results.whole * 3
    ]
    assert "of no use" in report.markdown(results)


def test_a_subject_that_answers_nothing_has_no_latency_and_no_cost(results: Results):
    results.whole.append(whole("stuck", 5, 0, 0.0))
    assert "| stuck | - | - | - | - | 0 |" in report.markdown(results)
    assert added_latency(results, "stuck") is None


def test_results_survive_their_file(results: Results):
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results


def test_the_picture_is_drawn(results: Results, tmp_path: Path):
    pytest.importorskip("matplotlib")
    plot.draw(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_growth_is_the_slope_of_a_line():
    assert slope([1.0, 2.0, 3.0]) == pytest.approx(1.0)
    assert slope([5.0]) == 0.0


def test_an_answer_that_nginx_would_misread_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="quote"):
        nginx.fixed_answer(tmp_path, 1, "it's", "{}")
