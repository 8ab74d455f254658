from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.gpu.kv_decode import Timing, compact, goals, output_of, unmeasured

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu" / "kv_decode.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU to measure on")
def test_without_a_gpu_every_time_is_said_not_to_be_measured(tmp_path: Path) -> None:
    out = tmp_path / "timings.json"
    run = subprocess.run(
        [sys.executable, SCRIPT, "--out", out],
        env={**os.environ, "PYTHONPATH": "src"},
        cwd=SCRIPT.parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "needs a Hopper GPU, and torch sees no CUDA device" in run.stdout
    report = json.loads(out.read_text())
    timings = report["timings"]
    assert report["gpu"] is None
    assert len(timings) == 5 * 4
    assert all(one["measured_us"] is None for one in timings)
    assert run.stdout.count("not measured") == 2 * len(timings) + len(report["goals"])
    # H200, 64 heads: tensor cores bound NVFP4 at 0.288 us a token, HBM bounds BF16 at 0.549.
    at = {(one["variant"], one["batch"]): one["roofline_us"] for one in timings}
    assert at["nvfp4 cluster", 1] == pytest.approx(0.288, abs=1e-3)
    assert at["bf16 cluster", 128] == pytest.approx(128 * 0.549, rel=1e-3)


def test_each_goal_is_judged_by_the_times_it_names_and_by_no_guess() -> None:
    took = {("nvfp4 cluster", 128): 80.0, ("nvfp4 cluster", 8): 11.0}
    took |= {("nvfp4 cluster", 1): 9.0, ("nvfp4 two launches", 1): 12.0}
    timings = [
        Timing(one.variant, one.batch, one.roofline_us, took.get((one.variant, one.batch)))
        for one in unmeasured()
    ]
    assert [line.split(": ")[1].split(" (")[0] for line in goals(timings)] == [
        "missed",  # the roofline at batch 128 is 36.9 us
        "met",
        "met",
        "not measured",
    ]


def test_a_kernel_that_hangs_or_crashes_is_ended_and_said_to_have_failed() -> None:
    with pytest.raises(SystemExit, match="no end within 0 s"):
        output_of([sys.executable, "-c", "import time; time.sleep(60)"], 0.3)
    with pytest.raises(SystemExit, match="exit status -11"):
        output_of([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], 30)
    assert output_of([sys.executable, "-c", "print(7)"], 30) == "7\n"


def test_the_reference_is_given_the_named_rows_only() -> None:
    indices = torch.tensor([[70, -1, 5], [5, 70, 900]], dtype=torch.int32)
    named, at = compact(indices)
    assert named.tolist() == [0, 5, 70, 900]
    assert (at[indices < 0] == -1).all()
    assert torch.equal(named[at[indices >= 0]].int(), indices[indices >= 0])


def test_without_torch_it_says_so() -> None:
    code = f"import sys, runpy; sys.modules['torch'] = None; runpy.run_path({str(SCRIPT)!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith("kv_decode needs torch")
