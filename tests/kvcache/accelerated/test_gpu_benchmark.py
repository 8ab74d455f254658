from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import kv_decode
from benchmarks.gpu.kv_decode import Timing, compact, goals, outcome, timings_in, unmeasured
from torch import Tensor

from prime_inference.kvcache.attention_torch import sparse_decode
from prime_inference.kvcache.kernels.sm90.params import RowFormat

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
    assert "needs a Hopper GPU, and torch" in run.stdout
    report = json.loads(out.read_text())
    timings = report["timings"]
    assert report["gpu"] is None
    assert len(timings) == 5 * 4
    assert all(one["measured_us"] is None for one in timings)
    assert run.stdout.count("not measured") == 2 * len(timings) + len(report["goals"])
    assert all("not measured (torch" in goal for goal in report["goals"])
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
    assert [line.split(": ")[1].split(" (")[0] for line in goals(timings, {})] == [
        "missed",  # the roofline at batch 128 is 36.9 us
        "met",
        "met",
        "not measured",
    ]


def test_a_goal_that_was_not_measured_says_why() -> None:
    lacking = "one launch beats two at batch 1: not measured (nvfp4 two launches: exit status 1)"
    took = [
        replace(one, measured_us=1.0) if one.variant == "nvfp4 cluster" else one
        for one in unmeasured()
    ]
    assert lacking in goals(took, {"nvfp4 two launches": "exit status 1"})
    assert all("(nvfp4 cluster: no time was left)" in one for one in goals(
        unmeasured(), {"nvfp4 cluster": "no time was left"}
    ))  # fmt: skip


def python(code: str, seconds: float = 30) -> tuple[str, str | None]:
    return outcome([sys.executable, "-c", code], seconds)


def test_a_kernel_that_hangs_or_crashes_is_ended_and_said_to_have_failed() -> None:
    assert python("import time; time.sleep(60)", 0.3)[1] == "no end within 0 s"
    assert python("import os; os.kill(os.getpid(), 11)")[1] == "exit status -11: "
    assert python("raise SystemExit('wrong')")[1] == "exit status 1: wrong"
    assert python("print(7)") == ("7\n", None)


def test_a_process_that_a_killed_one_started_ends_with_it(tmp_path: Path) -> None:
    child = f"import time; time.sleep(2); open({str(tmp_path / 'late')!r}, 'w')"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert python(code, 1)[1] == "no end within 1 s"
    time.sleep(2)
    assert not (tmp_path / "late").exists()


def test_what_a_kernel_measured_before_it_failed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    line = kv_decode.REPORTED + json.dumps(asdict(Timing("fp8 cluster", 1, 0.3, 5.0))) + "\n"

    def ended(command: list[str], seconds: float) -> tuple[str, str | None]:
        name = command[3] if "--variant" in command else "build"
        if name == "fp8 cluster":
            return f"a warning\n{line}{line[:20]}", "no end within 120 s"
        return "", None

    monkeypatch.setattr(kv_decode, "outcome", ended)
    timings, failures = kv_decode.measure()
    took = {(one.variant, one.batch): one.measured_us for one in timings}
    assert len(took) == 5 * 4
    assert [key for key, us in took.items() if us is not None] == [("fp8 cluster", 1)]
    assert failures.pop("fp8 cluster") == "no end within 120 s"
    assert set(failures.values()) == {"ended without all of its times"}
    assert timings_in(line) == [Timing("fp8 cluster", 1, 0.3, 5.0)]


def test_without_a_library_only_triton_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def ended(command: list[str], seconds: float) -> tuple[str, str | None]:
        ran.append(command[3])
        return "", "exit status 1: no nvcc"

    monkeypatch.setattr(kv_decode, "outcome", ended)
    _, failures = kv_decode.measure()
    assert ran[1:] == ["nvfp4 triton"]
    assert failures["build"] == "exit status 1: no nvcc"
    assert failures["bf16 cluster"] == "the library was not built"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark's own cases, on this processor."""
    for name, value in (("DEVICE", "cpu"), ("BLOCKS", 8), ("TOP_K", 64), ("POISON", (9,))):
        monkeypatch.setattr(kv_decode, name, value)


def test_every_row_is_selected_once_in_all_steps(small: None) -> None:
    for batch in (1, 8):
        steps = kv_decode.make_steps(batch)
        assert all(q.shape == (batch, 64, 576) and i.shape == (batch, 64) for q, i in steps)
        every = torch.cat([indices.flatten() for _, indices in steps])
        assert torch.equal(every.sort().values, torch.arange(8 * 64).int())


def test_the_check_takes_what_is_right_and_finds_what_is_not(small: None) -> None:
    cache, keys = kv_decode.make_cache(RowFormat.NVFP4)
    assert cache.shape == (8, 64, 352)

    def right(query: Tensor, cache: Tensor, indices: Tensor, lengths: Tensor) -> Any:
        rows = cache.flatten(0, 1)
        return sparse_decode(query, rows, indices, scale=576**-0.5, lengths=lengths)

    def error(change: Callable[[Tensor, Tensor], Any]) -> float:
        return kv_decode.check(lambda *given: change(*right(*given)), cache, keys, 7, 16)

    assert error(lambda out, lse: (out, lse)) < 1e-5
    assert error(lambda out, lse: (out * 1.01, lse)) > 2e-3
    assert error(lambda out, lse: (out, lse + 0.1)) == math.inf
    assert error(lambda out, lse: (out, torch.where(lse.isinf(), 0, lse))) == math.inf
    assert error(lambda out, lse: (out + 1e-6 * torch.rand(1), lse)) == math.inf
    assert not error(lambda out, lse: (out.masked_fill(out == 0, math.nan), lse)) < 2e-3


def test_the_triton_kernel_stands_its_check(small: None) -> None:
    cache, keys = kv_decode.make_cache(RowFormat.NVFP4)
    run = kv_decode.kernel("nvfp4 triton", Path("no library"))
    assert kv_decode.check(run, cache, keys, 3, 16) < kv_decode.BOUND


@pytest.mark.parametrize("row_format", [RowFormat.FP8, RowFormat.BF16])
def test_the_other_formats_hold_the_keys_that_the_reference_is_given(
    small: None, row_format: RowFormat
) -> None:
    cache, keys = kv_decode.make_cache(row_format)
    rows = cache.flatten(0, 1)
    if row_format is RowFormat.BF16:
        assert torch.equal(rows.view(torch.bfloat16).float(), keys)
        return
    codes = rows[:, :512].view(torch.float8_e4m3fn).float().view(-1, 4, 128)
    latent = codes * rows[:, 512:528].view(torch.float32)[:, :, None]
    assert torch.equal(latent.flatten(1), keys[:, :512])
    assert torch.equal(rows[:, 528:].view(torch.bfloat16).float(), keys[:, 512:])


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
