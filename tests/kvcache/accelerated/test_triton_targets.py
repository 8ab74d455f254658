from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Shared memory of a block: 227 KiB on sm_90, 163 KiB on sm_80 (CUDA C++ programming guide).
LIMITS = {90: 232_448, 80: 166_912}


@pytest.mark.parametrize("capability", LIMITS)
def test_every_triton_kernel_compiles_for_the_gpu_and_fits_its_shared_memory(
    capability: int, tmp_path: Path
) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "prime_inference.kvcache.kernels.triton_targets", str(capability)],
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    report = json.loads(run.stdout)
    assert set(report) == {
        "write_rows.round_up",
        "write_rows.four_over_six",
        "gather_rows",
        "decode_part",
        "combine_parts",
    }
    for kernel in report.values():
        assert kernel["cubin_bytes"] > 0
        assert kernel["shared_bytes"] <= LIMITS[capability]
