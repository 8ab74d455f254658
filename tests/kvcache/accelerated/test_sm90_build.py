from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from prime_inference.kvcache.errors import DtypeMismatch, LayoutMismatch, ShapeMismatch
from prime_inference.kvcache.kernels.sm90 import build
from prime_inference.kvcache.kernels.sm90.decode import check_arguments
from prime_inference.kvcache.kernels.sm90.params import RowFormat

SHARED_PER_BLOCK = 232_448  # 227 KiB, sm_90
REGISTERS_PER_SM = 65_536
THREADS = {"heads16": 128, "heads64": 256}


def test_the_kernels_compile_for_hopper_and_take_what_the_checked_report_says(
    tmp_path: Path,
) -> None:
    try:
        build.find_nvcc()
    except build.CompilerMissing:
        pytest.skip("nvcc is not on this machine")
    kernels = build.compile_library(tmp_path / "decode.so")
    for name, one in kernels.items():
        assert (one.spill_stores, one.spill_loads, one.stack) == (0, 0, 0), name
        assert one.shared_bytes <= SHARED_PER_BLOCK
        threads = THREADS.get(name.split(".")[-1], 32)
        assert one.registers * threads <= REGISTERS_PER_SM
    checked = json.loads(build.RESOURCES.read_text())
    if build.compiler_release() != checked["nvcc"]:
        return  # another compiler may use other registers; the bounds above still hold
    assert {name: asdict(one) for name, one in kernels.items()} == checked["kernels"]


def test_arguments_that_the_kernel_would_misread_are_refused() -> None:
    query = torch.zeros(2, 16, 576, dtype=torch.bfloat16)
    cache = torch.zeros(1, 4, 352, dtype=torch.uint8)
    index = torch.zeros(2, 8, dtype=torch.int32)

    def check(query=query, cache=cache, index=index, lengths=None, kind=RowFormat.NVFP4):
        check_arguments(query, cache, index, lengths, kind)

    check()
    with pytest.raises(ShapeMismatch, match="query"):
        check(query=query.transpose(0, 1))
    with pytest.raises(DtypeMismatch, match="query"):
        check(query=query.float())
    with pytest.raises(ShapeMismatch, match="656"):
        check(kind=RowFormat.FP8)
    with pytest.raises(LayoutMismatch):
        check(cache=torch.zeros(4 * 352 + 8, dtype=torch.uint8)[8:].view(1, 4, 352))
    with pytest.raises(LayoutMismatch):
        check(cache=torch.zeros(2, 4 * 352 + 8, dtype=torch.uint8)[:, :1408].view(2, 4, 352))
    with pytest.raises(ShapeMismatch, match="indices"):
        check(index=index[:1])
    with pytest.raises(DtypeMismatch, match="indices"):
        check(index=index.long())
    with pytest.raises(ShapeMismatch, match="lengths"):
        check(lengths=torch.zeros(3, dtype=torch.int32))
