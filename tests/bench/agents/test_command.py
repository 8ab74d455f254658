"""`prime inference bench` from the command line against a mock engine of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PRIME = [sys.executable, "-m", "prime_inference.cli", "inference"]
Bench = Callable[..., subprocess.CompletedProcess[str]]

SMALL = ["--sessions", "4", "--scale", "0.015625", "--time-scale", "0.002", "--warmup-requests",
         "1", "--lag-bound", "10", "--grace", "5", "--plain"]  # fmt: skip
"""A miniature that a point plays in a second; a shared machine may be late."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {n: os.environ[n] for n in ("PATH", "LANG", "PYTHONPATH") if n in os.environ}
    return {**kept, "HOME": str(tmp_path), "MPLCONFIGDIR": str(tmp_path / "mpl")}


@pytest.fixture
def engine(environment: dict[str, str]) -> Iterator[str]:
    """A mock engine in a process of its own; its base URL."""
    command = [*PRIME, "mock-engine", "-o", "json", "--first-token-ms", "5", "--pace-ms", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as child:
        assert child.stdout is not None
        yield json.loads(child.stdout.readline())["base_url"]
        child.terminate()


@pytest.fixture
def bench(environment: dict[str, str]) -> Bench:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PRIME, "bench", *arguments], capture_output=True, text=True, env=environment,
            timeout=50, check=False,
        )  # fmt: skip

    return run


def measuring(url: str, out: Path, *more: str) -> list[str]:
    return ["run", "--url", url, "--model", "mock/plain", "--out", str(out), *SMALL, *more]


def loaded(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_one_command_measures_a_sweep_and_says_that_it_was_a_mock(
    bench: Bench, engine: str, tmp_path: Path
) -> None:
    out = tmp_path / "r"
    done = bench(*measuring(
        engine, out, "--concurrency", "1,2", "--cold-rate", "0,5", "--seeds", "1", "--seconds",
        "0.7", "--cold-input", "100", "--cold-output", "5", "--slo", "e2e=10", "-o", "json",
    ))  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [(s["sessions"], s["cold_rate"]) for s in summary["settings"]] == [
        (1, 0.0), (1, 5.0), (2, 0.0), (2, 5.0),
    ]  # fmt: skip
    assert summary["provenance"]["simulated"] == ["mock engine: no model behind these numbers"]
    assert summary["state"] == "complete"
    assert sum(p["classes"]["all"]["prompt_mismatches"] for p in summary["points"]) == 0
    assert loaded(out / "summary.json") == summary
    assert "point 4/4" in done.stderr


def test_a_report_holds_its_plots_and_its_notice(bench: Bench, engine: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "r"
    done = bench(*measuring(engine, out, "--concurrency", "2", "--seeds", "1", "--seconds", "0.5",
                            "--simulated", r"a price of $\frac$ and $x_1"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (out / "report.html").read_text()
    pictures = sorted(path.name for path in out.glob("*.png"))
    assert pictures == ["depth.png", "frontier.png", "timeline.png"]
    assert page.count("data:image/png;base64,") == len(pictures)
    assert page.count("(simulated: mock engine: no model behind these numbers; ") >= len(pictures)
    assert 'src="http' not in page


def test_ctrl_c_leaves_a_partial_result_that_resumes(
    bench: Bench, engine: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    out = tmp_path / "r"
    arguments = measuring(engine, out, "--concurrency", "1,2", "--seeds", "1", "--seconds", "1.5")
    with subprocess.Popen(
        [*PRIME, "bench", *arguments], env=environment, stderr=subprocess.PIPE, text=True,
        stdout=subprocess.DEVNULL,
    ) as child:  # fmt: skip
        assert child.stderr is not None
        for line in child.stderr:
            if "point 2/2" in line:
                break
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        child.stderr.read()
    assert child.returncode == 130
    partial = loaded(out / "results.json")
    assert partial["state"] == "interrupted"
    assert [p["point"]["sessions"] for p in partial["points"]] == [1]
    resumed = bench(*arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    whole = loaded(out / "results.json")
    assert whole["state"] == "complete"
    assert [p["point"]["sessions"] for p in whole["points"]] == [1, 2]
    assert [r for r in whole["records"] if r["point"] == 0] == [
        r for r in partial["records"] if r["point"] == 0
    ]
    assert "point 1/2" not in resumed.stderr


def test_a_generator_that_was_late_is_no_success(bench: Bench, engine: str, tmp_path: Path) -> None:
    arguments = measuring(engine, tmp_path / "r", "--concurrency", "1", "--seconds", "0.3")
    done = bench(*arguments, "--lag-bound", "0")
    assert done.returncode == 1
    assert "the generator was late" in done.stderr


def test_the_search_finds_a_number_of_sessions(bench: Bench, engine: str, tmp_path: Path) -> None:
    done = bench(*measuring(
        engine, tmp_path / "r", "--concurrency", "1", "--highest", "2", "--seconds", "0.4",
        "--find-concurrency", "--slo", "e2e=1",
    ))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 sessions hold 1 tok/s/user, the most that was allowed" in done.stderr


def test_a_generated_workload_reads_back_with_its_delays(bench: Bench, tmp_path: Path) -> None:
    from prime_inference.bench.agents.generate import generate
    from prime_inference.bench.agents.traces import read_trace

    path = tmp_path / "s.jsonl"
    assert bench("generate", "--sessions", "6", "--seed", "3", "--out", str(path)).returncode == 0
    original, read = generate(6, 3).sessions, read_trace(path).sessions
    for one, other in zip(original, read, strict=True):
        assert [t.blocks for t in one.turns] == [t.blocks for t in other.turns]
        waited: set[int] = set()
        for n, (ours, theirs) in enumerate(zip(one.turns, other.turns, strict=True)):
            waited.update(theirs.waits_for)
            # a file tells by its times who waited, so one that ran beside may count as waited for
            assert waited.issuperset(ours.waits_for)
            if n and not ours.waits_for and not theirs.waits_for:
                assert theirs.delay == pytest.approx(ours.delay, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--trace", "{folder}/broken.jsonl"], "broken.jsonl, line 2: field requests"),
        (["--concurrency", "x"], "invalid literal"),
        (["--slo", "fast"], "an SLO is"),
        (["--scale", "2"], "a scale of input"),
        (["--fault", "kill"], "a fault is"),
        (["--find-concurrency"], "needs a target"),
        (["--session-rate", "1", "--concurrency", "2"], "does not go with it"),
        (["--model", "mock/status-503"], "did not answer"),
    ],
)
def test_what_cannot_be_measured_is_said_before_any_load(
    bench: Bench, engine: str, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    good = {"id": "a", "models": [], "block_size": 64, "hash_id_scope": "local", "requests": [
        {"t": 0, "type": "n", "model": "m", "in": 90, "out": 1}]}  # fmt: skip
    lines = [good, {**good, "requests": 7}]
    (tmp_path / "broken.jsonl").write_text("\n".join(map(json.dumps, lines)))
    filled = [argument.replace("{folder}", str(tmp_path)) for argument in arguments]
    done = bench(*measuring(engine, tmp_path / "r", *filled))
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_two_runs_are_compared(bench: Bench, engine: str, tmp_path: Path) -> None:
    for name in "ab":
        bench(*measuring(engine, tmp_path / name, "--concurrency", "2", "--seconds", "0.5",
                         "--seeds", "1"))  # fmt: skip
    done = bench("compare", str(tmp_path / "a"), str(tmp_path / "b"), "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {c["metric"] for c in found} >= {"e2e_norm_intvty_p90", "ttft_p50"}
    assert [notice[:12] for notice in found[0]["notices"]] == ["SIMULATED, A", "SIMULATED, B"]


def test_a_run_of_texts_has_cold_arrivals_too_and_is_not_overwritten(
    bench: Bench, engine: str, tmp_path: Path
) -> None:
    trace, out = tmp_path / "texts.jsonl", tmp_path / "r"
    trace.write_text('{"turns": [{"text": "one"}, {"text": "two", "delay": 50}]}')
    arguments = ["run", "--url", engine, "--model", "mock/plain", "--out", str(out), "--trace",
                 str(trace), "--concurrency", "1", "--cold-rate", "20", "--cold-input", "100",
                 "--cold-output", "5", "--seconds", "0.5", "--lag-bound", "10",
                 "--plain"]  # fmt: skip
    done = bench(*arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert point["classes"]["cold"]["ok"] > 0
    assert point["classes"]["warm"]["ok"] > 0
    before = (out / "results.json").read_bytes()
    again = bench(*arguments)
    assert again.returncode == 1
    assert "holds a run already" in again.stderr
    assert (out / "results.json").read_bytes() == before


def test_the_generator_measures_itself(bench: Bench) -> None:
    done = bench("limit", "--streams", "20", "--seconds", "1", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["complete"] == 20
    assert found["tokens_per_second"] == pytest.approx(1000, rel=0.3)
    assert 0 < found["receive_p50"] <= found["receive_p99"] <= found["receive_max"]
