from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
    timings = json.loads(out.read_text())
    assert len(timings) == 5 * 4
    assert all(one["measured_us"] is None for one in timings)
    assert run.stdout.count("not measured") == 2 * len(timings)
    # H200, 64 heads: tensor cores bound NVFP4 at 0.288 us a token, HBM bounds BF16 at 0.549.
    at = {(one["variant"], one["batch"]): one["roofline_us"] for one in timings}
    assert at["nvfp4 cluster", 1] == pytest.approx(0.288, abs=1e-3)
    assert at["bf16 cluster", 128] == pytest.approx(128 * 0.549, rel=1e-3)
