"""The CUDA kernel's own source on a CPU: each GPU thread a fiber, each PTX instruction emulated.

What this leaves open is what only a GPU can show: the PTX spellings in primitives.cuh, memory
ordering between asynchronous copies, barriers and clusters, and speed.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from prime_inference.kvcache.attention import relative_l2, sparse_decode
from prime_inference.kvcache.kernels.sm90.params import (
    ROW_FORMAT_BYTES,
    DecodeParams,
    RowFormat,
    cluster_size,
)
from prime_inference.kvcache.minifloat import e4m3_table, encode_e4m3
from prime_inference.kvcache.nvfp4 import dequantize
from tests.kvcache.decode_cases import DecodeCase, decode_case

EMULATOR = Path(__file__).parent / "emulator"
KERNEL = Path(__file__).parents[3] / "src" / "prime_inference" / "kvcache" / "kernels" / "sm90"
Array = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("g++ is not on this machine")
    library = tmp_path_factory.mktemp("emulator") / "decode.so"
    subprocess.run(
        [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror",
         "-Wno-unknown-pragmas", "-Wno-clobbered", f"-I{EMULATOR}", f"-I{KERNEL}",
         EMULATOR / "emulated_decode.cpp", "-o", library],
        check=True,
    )  # fmt: skip
    return ctypes.CDLL(str(library))


def address(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data


def aligned(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A copy that starts at a multiple of 16 bytes, as cp.async wants."""
    room = np.empty(array.size + 16, np.uint8)
    start = -room.ctypes.data % 16
    room[start : start + array.size] = array.reshape(-1)
    return room[start : start + array.size].reshape(array.shape)


def run(
    emulator: ctypes.CDLL,
    case: DecodeCase,
    parts: int,
    *,
    row_format: RowFormat = RowFormat.NVFP4,
    rows: npt.NDArray[np.uint8] | None = None,
    two_launches: bool = False,
    reverse: bool = False,
    bf16_out: bool = False,
    bf16_query: npt.NDArray[np.uint16] | None = None,
    all_indices: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    batch, heads, _ = case.query.shape
    cache = aligned(case.rows if rows is None else rows)
    row_bytes = ROW_FORMAT_BYTES[row_format]
    out = np.full((batch, heads, 512), 0xFFFF if bf16_out else np.nan, "u2" if bf16_out else "f4")
    lse = np.full((batch, heads), np.nan, np.float32)
    partial = np.full((batch, parts, heads, 512), np.nan, np.float32) if two_launches else None
    stats = np.full((batch, parts, heads, 2), np.nan, np.float32) if two_launches else None
    params = DecodeParams(
        query=address(case.query if bf16_query is None else bf16_query),
        cache=address(cache),
        indices=address(case.indices),
        lengths=None if all_indices else address(case.lengths),
        out=address(out),
        lse=address(lse),
        parts=address(partial),
        part_stats=address(stats),
        index_stride=case.indices.shape[1],
        block_stride=4 * row_bytes,
        row_stride=row_bytes,
        scale_log2=case.scale / math.log(2),
        heads=heads,
        top_k=case.indices.shape[1],
        slots=len(cache),
        block_tokens=4,
        query_bf16=bf16_query is not None,
        out_bf16=bf16_out,
    )
    code = emulator.emulate_sparse_decode(
        ctypes.byref(params), batch, parts, int(row_format), int(reverse)
    )
    assert code == 0
    if partial is not None and stats is not None:
        return combined(partial, stats)
    if bf16_out:
        out = (out.astype(np.uint32) << 16).view(np.float32)
    return out, lse


def combined(partial: np.ndarray, stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the second launch computes, in float64."""
    largest, total = stats[..., 0].astype(np.float64), stats[..., 1].astype(np.float64)
    top = largest.max(axis=1, keepdims=True)
    base = np.where(np.isinf(top), 0, top)
    weight = np.exp2(largest - base)
    whole = (total * weight).sum(axis=1)
    out = (partial * weight[..., None]).sum(axis=1)
    empty = whole == 0
    whole[empty] = 1
    lse = np.where(empty, np.inf, (np.log2(whole) + base[:, 0]) * math.log(2))
    return out / whole[..., None], lse


@pytest.mark.parametrize(
    ("heads", "parts", "top_k", "seed"),
    [
        (16, 1, 130, 0),
        (16, 8, 200, 1),
        (8, 3, 1, 2),
        (5, 2, 64, 3),
        (64, 1, 65, 4),
        (64, 4, 190, 5),
        (128, 2, 100, 6),
        (40, 3, 129, 7),
    ],
)
def test_the_kernel_is_within_the_bound_of_float64(emulator, heads, parts, top_k, seed) -> None:
    case = decode_case(seed, batch=4, heads=heads, slots=100, top_k=top_k)
    out, lse = run(emulator, case, parts)
    assert relative_l2(out, case.out) < 2e-3
    for b in range(4):
        assert relative_l2(out[b], case.out[b]) < 2e-3
    np.testing.assert_allclose(lse, case.lse, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("heads", [16, 64])
def test_the_order_in_which_threads_run_changes_no_bit(emulator, heads) -> None:
    case = decode_case(11, batch=2, heads=heads, slots=80, top_k=140)
    first, first_lse = run(emulator, case, 3)
    second, second_lse = run(emulator, case, 3, reverse=True)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first_lse, second_lse)


def test_rows_that_are_not_selected_have_no_say(emulator) -> None:
    case = decode_case(12, batch=2, heads=16, slots=80, top_k=70)
    used = case.indices[(case.indices >= 0) & (case.indices < 80)]
    poisoned = case.rows.copy()
    poisoned[np.setdiff1d(np.arange(80), used)] = 0xFF
    first, _ = run(emulator, case, 2)
    second, _ = run(emulator, case, 2, rows=poisoned)
    np.testing.assert_array_equal(first, second)


def test_a_nan_rope_key_of_a_selected_row_shows(emulator) -> None:
    case = decode_case(13, batch=1, heads=16, slots=40, top_k=8)
    case.indices[:] = np.arange(8)
    case.lengths[:] = 8
    out, lse = run(emulator, case, 1)
    assert np.isnan(out).all()
    assert np.isnan(lse).all()


def test_a_bfloat16_output_is_the_float32_output_rounded(emulator) -> None:
    case = decode_case(14, batch=2, heads=16, slots=40, top_k=50)
    exact, _ = run(emulator, case, 2)
    bits = exact.view(np.uint32)
    want = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    np.testing.assert_array_equal(run(emulator, case, 2, bf16_out=True)[0], want)


def test_a_bfloat16_query_is_taken_as_it_is(emulator) -> None:
    case = decode_case(17, batch=2, heads=16, slots=40, top_k=50)
    bits = (case.query.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    exact = (bits.astype(np.uint32) << 16).view(np.float32)
    want, _ = sparse_decode(
        exact, *dequantize(case.rows), case.indices, scale=case.scale, lengths=case.lengths
    )
    out, _ = run(emulator, case, 2, bf16_query=bits)
    assert relative_l2(out, want) < 2e-3


def test_without_lengths_every_index_counts(emulator) -> None:
    case = decode_case(18, batch=2, heads=16, slots=40, top_k=50)
    case.indices[case.indices == 0] = 7  # row 0 is NaN
    want, _ = sparse_decode(case.query, *dequantize(case.rows), case.indices, scale=case.scale)
    out, _ = run(emulator, case, 2, all_indices=True)
    assert relative_l2(out, want) < 2e-3


@pytest.mark.parametrize(("heads", "parts"), [(16, 4), (64, 2)])
def test_the_two_launch_version_agrees(emulator, heads, parts) -> None:
    case = decode_case(15, batch=4, heads=heads, slots=90, top_k=150)
    out, lse = run(emulator, case, parts, two_launches=True)
    assert relative_l2(out, case.out) < 2e-3
    np.testing.assert_allclose(lse, case.lse, rtol=1e-3, atol=1e-3)


def bf16_rows(latent: Array, rope: Array) -> npt.NDArray[np.uint8]:
    values = np.concatenate([latent, rope], axis=1)
    return np.ascontiguousarray((values.view(np.uint32) >> 16).astype("<u2")).view(np.uint8)


def fp8_rows(latent: Array, rope: Array) -> tuple[npt.NDArray[np.uint8], Array]:
    """vLLM's 656-byte rows and the latents they stand for."""
    groups = latent.reshape(-1, 4, 128)
    scale = np.abs(groups).max(axis=2) / np.float32(448)
    scale = np.maximum(scale, np.float32(1e-10))
    codes = encode_e4m3(groups / scale[:, :, None])
    rows = np.zeros((len(latent), 656), np.uint8)
    rows[:, :512] = codes.reshape(-1, 512)
    rows[:, 512:528] = scale.astype("<f4").view(np.uint8)
    rows[:, 528:] = bf16_rows(latent, rope)[:, 1024:]
    return rows, (e4m3_table()[codes] * scale[:, :, None]).reshape(-1, 512)


@pytest.mark.parametrize("row_format", [RowFormat.FP8, RowFormat.BF16])
def test_the_variants_for_comparison_are_right_as_well(emulator, row_format) -> None:
    case = decode_case(16, batch=2, heads=64, slots=70, top_k=90)
    rng = np.random.default_rng(0)
    values = rng.standard_normal((70, 576)).astype(np.float32)
    values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    latent, rope = np.ascontiguousarray(values[:, :512]), np.ascontiguousarray(values[:, 512:])
    rows = bf16_rows(latent, rope)
    if row_format is RowFormat.FP8:
        rows, latent = fp8_rows(latent, rope)
    out, _ = run(emulator, case, 2, row_format=row_format, rows=rows)
    want, _ = sparse_decode(
        case.query, latent, rope, case.indices, scale=case.scale, lengths=case.lengths
    )
    assert relative_l2(out, want) < 2e-3


def test_the_cluster_shrinks_as_the_batch_fills_the_gpu() -> None:
    sizes = {tokens: cluster_size(tokens, 64) for tokens in (1, 16, 17, 22, 26, 33, 44, 66, 128)}
    assert sizes == {1: 8, 16: 8, 17: 7, 22: 6, 26: 5, 33: 4, 44: 3, 66: 2, 128: 1}
    assert cluster_size(16, 128) == 4
    assert cluster_size(10_000, 128) == 1


@pytest.mark.parametrize("two_launches", [False, True])
@pytest.mark.parametrize("source", ["rope keys", "query"])
def test_nan_scores_alone_are_told_from_no_row(emulator, source, two_launches) -> None:
    case = decode_case(13, batch=1, heads=16, slots=40, top_k=70)
    case.indices[:], case.lengths[:] = (0 if source == "rope keys" else 1), 70
    if source == "query":
        case.query[:] = np.nan
    out, lse = run(emulator, case, 2, two_launches=two_launches)
    assert np.isnan(out).all()
    assert np.isnan(lse).all()
