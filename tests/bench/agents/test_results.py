"""Results files that survive a kill, comparisons, and the search."""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prime_inference.bench.agents.compare import NotComparable, NothingToCompare, compare
from prime_inference.bench.agents.plan import Options, Plan, Point
from prime_inference.bench.agents.point import PointRun
from prime_inference.bench.agents.provenance import MOCK_NOTICE, provenance
from prime_inference.bench.agents.records import Record
from prime_inference.bench.agents.results import (
    Results,
    ResultsFile,
    ResultsInvalid,
    read_results,
    resumed,
)
from prime_inference.bench.agents.search import find_concurrency

from .test_metrics import record

POINTS = (Point(4, 0.0, 1), Point(8, 0.0, 1))
PROVENANCE = provenance(base_url="http://127.0.0.1/v1", model="m", served_by=None,
                        workload_notes=(), simulated=(), notes=())  # fmt: skip


def plan(points: tuple[Point, ...] = POINTS, **more: Any) -> Plan:
    fields: dict[str, Any] = {"workload": "w", "workload_sha256": "0", "model": "m",
                              "points": points, "options": Options()}  # fmt: skip
    return Plan(**(fields | more))


def finished(number: int, point: Point) -> PointRun:
    return PointRun(point=point, number=number, start=0.0, end=10.0, lag_p99=0.0,
                    send_lag_p99=0.0, load=(0.0, 0.0))  # fmt: skip


def test_a_results_file_is_whole_after_every_write(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with ResultsFile(path, PROVENANCE, plan()) as results:
        assert read_results(path).records == []
        for n in range(3):
            results.add(record(n, 0.1, 1.0, 5))
            assert [r.sent for r in read_results(path).records] == [float(k) for k in range(n + 1)]
        results.finish_point(finished(0, POINTS[0]))
        assert json.loads(path.read_bytes())["state"] == "running"
        results.complete()
    again = read_results(tmp_path)
    assert again.state == "complete"
    assert again.points == [finished(0, POINTS[0])]
    assert again.provenance == PROVENANCE


def test_a_run_that_was_broken_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "results.json"

    def broken_off() -> None:
        with ResultsFile(path, PROVENANCE, plan()) as results:
            results.add(record(0, 0.1, 1.0, 5))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert read_results(path).state == "interrupted"
    assert len(read_results(path).records) == 1


def test_resuming_keeps_finished_points_under_their_new_numbers(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with ResultsFile(path, PROVENANCE, plan()) as results:
        results.add(record(0, 0.1, 1.0, 5, point=0))
        results.add(record(1, 0.1, 1.0, 5, point=1))
        results.finish_point(finished(1, POINTS[1]))
    records, points, _ = resumed(path, plan((POINTS[1], Point(16, 0.0, 1))), PROVENANCE)
    assert [(r.sent, r.point) for r in records] == [(1.0, 0)]
    assert [(p.point, p.number) for p in points] == [(POINTS[1], 0)]


def test_a_run_of_something_else_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with ResultsFile(path, PROVENANCE, plan()):
        pass
    with pytest.raises(ResultsInvalid, match=r"workload_sha256, options\.seconds differ"):
        resumed(path, plan(workload_sha256="1", options=Options(seconds=5)), PROVENANCE)
    for name in ("base_url", "tools_sha256", "form"):
        with pytest.raises(ResultsInvalid, match=f"{name} differ"):
            resumed(path, plan(POINTS, **{name: "other"}), PROVENANCE)


def test_another_server_at_the_same_address_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    mock = msgspec.structs.replace(PROVENANCE, simulated=(MOCK_NOTICE,))
    with ResultsFile(path, mock, plan()):
        pass
    with pytest.raises(ResultsInvalid, match="the mock engine and the other is not"):
        resumed(path, plan(), PROVENANCE)
    with pytest.raises(ResultsInvalid, match="calls itself other"):
        resumed(path, plan(), msgspec.structs.replace(mock, served_by="other"))


def test_resuming_keeps_what_was_said_of_earlier_points(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    first = msgspec.structs.replace(PROVENANCE, nonce="1", simulated=("links",), notes=("a",))
    with ResultsFile(path, first, plan()):
        pass
    now = msgspec.structs.replace(PROVENANCE, nonce="2", notes=("b",))
    _, _, told = resumed(path, plan(), now)
    assert (told.nonce, told.simulated, told.notes) == ("2", ("links",), ("a", "b"))
    assert told.earlier == (first,)
    with ResultsFile(path, told, plan()):
        pass
    _, _, third = resumed(path, plan(), msgspec.structs.replace(now, nonce="3"))
    assert [earlier.nonce for earlier in third.earlier] == ["1", "2"]


def test_a_full_disk_leaves_a_whole_file_that_resumes(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    results = ResultsFile(path, PROVENANCE, plan())
    results.add(record(0, 0.1, 1.0, 5))
    results.finish_point(finished(0, POINTS[0]))
    whole = path.stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 20, kept[1]))
        for write in (lambda: results.add(record(1, 0.1, 1.0, 5)),
                      lambda: results.finish_point(finished(1, POINTS[1]))):  # fmt: skip
            with pytest.raises(OSError, match="File too large") as full:
                write()
            assert full.value.filename == str(path)
            assert path.stat().st_size == whole
        results.__exit__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    assert read_results(path).state == "interrupted"
    records, points, _ = resumed(path, plan(), PROVENANCE)
    assert [r.sent for r in records] == [0.0]
    assert points == [finished(0, POINTS[0])]


def test_a_file_that_is_no_results_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"format": 1}')
    with pytest.raises(ResultsInvalid, match="no results file"):
        read_results(path)


def results(speed: float, noise: int, trees: int = 30, seed: int = 1) -> Results:
    """Trees of five turns whose own pace differs much more than two runs do."""
    rng = random.Random(noise)
    records: list[Record] = []
    for tree in range(trees):
        own = 1 + tree / 5
        for turn in range(5):
            seconds = own * speed * rng.uniform(0.99, 1.01)
            records.append(record(turn, seconds / 4, seconds, 10, session=f"t{tree}", turn=turn))
    point = Point(4, 0.0, seed)
    return Results(format=1, provenance=PROVENANCE, plan=plan((point,)), records=records,
                   points=[finished(0, point)], state="complete")  # fmt: skip


def test_a_comparison_pairs_what_both_played_and_sees_a_small_difference() -> None:
    found = {c.metric: c for c in compare(results(1.0, 1), results(0.95, 2))}
    interactivity = found["e2e_norm_intvty_p90"]
    assert interactivity.pairs == 30
    assert interactivity.ratio == pytest.approx(1 / 0.95, rel=0.01)
    assert interactivity.low < interactivity.ratio < interactivity.high
    assert interactivity.differs
    assert found["ttft_p50"].ratio == pytest.approx(0.95, rel=0.01)
    assert found["ttft_p50"].differs


def test_no_difference_is_called_one() -> None:
    assert not any(c.differs for c in compare(results(1.0, 1), results(1.0, 2)))
    assert not any(c.differs for c in compare(results(1.0, 1, trees=3), results(0.5, 2, trees=3)))


def test_the_same_files_give_the_same_interval() -> None:
    a, b = results(1.0, 1), results(0.97, 2)
    assert compare(a, b) == compare(a, b)


def test_runs_that_differ_in_more_than_the_server_are_not_compared() -> None:
    a, b = results(1.0, 1), results(1.0, 2)
    b.plan = plan(a.plan.points, workload_sha256="1", options=Options(seconds=5))
    with pytest.raises(NotComparable, match=r"workload_sha256, options\.seconds differ"):
        compare(a, b)
    b.plan = plan(a.plan.points, base_url="http://127.0.0.1/v2", model="other")
    b.provenance = msgspec.structs.replace(PROVENANCE, simulated=("links",))
    assert {c.notices for c in compare(a, b)} == {("SIMULATED, B: links",)}
    b.points = [msgspec.structs.replace(b.points[0], lag_p99=1.0)]
    with pytest.raises(NotComparable, match="B, point 0: the generator was late"):
        compare(a, b)
    assert all("NOT COMPARABLE" in c.notices[-1] for c in compare(a, b, anyway=True))


def test_runs_without_a_common_session_cannot_be_compared() -> None:
    with pytest.raises(NothingToCompare):
        compare(results(1.0, 1, seed=1), results(1.0, 1, seed=2))


@pytest.mark.parametrize("capacity", [0, 1, 7, 8, 9, 100])
async def test_the_search_finds_the_largest_number_that_holds(capacity: int) -> None:
    async def holds(sessions: int) -> bool:
        return sessions <= capacity

    found = await find_concurrency(holds, start=4, highest=64)
    assert found.best == min(capacity, 64)
    assert found.bounded is (capacity < 64)
    assert len(found.tried) <= 8


def test_records_without_news_are_short() -> None:
    assert len(msgspec.json.encode(record(0, 0.1, 1.0, 5))) < 350
