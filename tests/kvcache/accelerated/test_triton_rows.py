from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.kvcache import nvfp4
from prime_inference.kvcache.errors import DtypeMismatch, LayoutMismatch, ShapeMismatch
from prime_inference.kvcache.kernels.triton_rows import gather_rows, write_rows
from prime_inference.kvcache.minifloat import e4m3_table
from prime_inference.kvcache.row import WRITERS, Writer

torch.set_num_threads(1)
# Interpreted arithmetic is numpy's, and the format's rule for infinities makes it warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


def written(latent: np.ndarray, rope: np.ndarray, writer: Writer) -> np.ndarray:
    cache = torch.full((1, len(latent), 352), 0xAA, dtype=torch.uint8)
    slots = torch.arange(len(latent))
    write_rows(torch.from_numpy(latent), torch.from_numpy(rope), cache, slots, writer=writer)
    return np.asarray(cache[0].numpy())


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-16, 16))
def test_the_kernel_writes_the_reference_rows(writer: Writer, seed: int, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((8, 576)) * np.exp2(rng.integers(-5, 1, (8, 576)) + exponent)
    values = values.astype(np.float32)
    latent, rope = np.ascontiguousarray(values[:, :512]), np.ascontiguousarray(values[:, 512:])
    want = nvfp4.quantize(latent, rope, writer=writer)
    np.testing.assert_array_equal(written(latent, rope, writer), want)


@pytest.mark.parametrize("writer", WRITERS)
def test_the_kernel_agrees_on_every_bfloat16_and_every_midpoint(writer: Writer) -> None:
    latent = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32).reshape(128, 512)
    ties = np.zeros((126, 512), np.float32)
    ties[:, :8] = np.outer(e4m3_table()[1:127], [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    latent = np.concatenate([latent, ties])
    e4m3 = e4m3_table()[:127]
    rope = np.zeros((len(latent), 64), np.float32)
    rope[:128] = latent[:128, ::8]
    rope[128:130, :63] = ((e4m3[1:] + e4m3[:-1]) / 2).reshape(2, 63)
    rope[130, :63] = -rope[128, :63]
    want = nvfp4.quantize(latent, rope, writer=writer)
    np.testing.assert_array_equal(written(latent, rope, writer), want)


def test_padding_slots_are_skipped_and_rows_land_in_a_strided_block_major_cache() -> None:
    memory = torch.full((3, 2 * 4 * 352 + 96), 0xAA, dtype=torch.uint8)
    cache = memory[:, 352 * 4 : 2 * 352 * 4].view(3, 4, 352)  # the second layer of each block
    latent = torch.randn(4, 512, dtype=torch.bfloat16)
    rope = torch.randn(4, 64, dtype=torch.bfloat16)
    write_rows(latent, rope, cache, torch.tensor([9, -1, 0, 7]))
    want = nvfp4.quantize(latent.float().numpy(), rope.float().numpy())
    for token, slot in ((0, 9), (2, 0), (3, 7)):
        np.testing.assert_array_equal(cache[slot // 4, slot % 4].numpy(), want[token])
    assert int((memory != 0xAA).any(dim=1).sum()) == 3
    untouched = memory.clone()
    for slot in (9, 0, 7):
        untouched[:, 1408:2816].view(3, 4, 352)[slot // 4, slot % 4] = 0xAA
    assert (untouched == 0xAA).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gathered_rows_are_the_exact_values_and_padding_is_zero(dtype: torch.dtype) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (256, 352)).astype(np.uint8)
    rows[:, 320:] = np.arange(256)[:, None]
    latent, rope = nvfp4.dequantize(rows)
    want = np.concatenate([latent, rope], axis=1)
    cache = torch.from_numpy(rows).view(4, 64, 352)
    order = np.random.default_rng(1).permutation(256)
    got = gather_rows(cache, torch.from_numpy(order), dtype=dtype).float().numpy()
    np.testing.assert_array_equal(got, want[order])
    assert (gather_rows(cache, torch.tensor([-1]), dtype=dtype) == 0).all()


def test_no_tokens_are_no_launch() -> None:
    cache = torch.zeros(1, 4, 352, dtype=torch.uint8)
    none = torch.zeros(0, dtype=torch.int64)
    write_rows(torch.zeros(0, 512), torch.zeros(0, 64), cache, none)
    assert gather_rows(cache, none).shape == (0, 576)


def test_caches_and_tensors_of_other_shapes_are_refused() -> None:
    one = torch.zeros(1, dtype=torch.int64)
    latent, rope = torch.zeros(1, 512), torch.zeros(1, 64)
    with pytest.raises(ShapeMismatch, match="cache"):
        write_rows(latent, rope, torch.zeros(1, 4, 656, dtype=torch.uint8), one)
    with pytest.raises(DtypeMismatch, match="cache"):
        write_rows(latent, rope, torch.zeros(1, 4, 352), one)
    with pytest.raises(LayoutMismatch):
        write_rows(latent, rope, torch.zeros(352, 4, 1, dtype=torch.uint8).permute(2, 1, 0), one)
    with pytest.raises(ShapeMismatch, match="latent"):
        write_rows(latent[:, :500], rope, torch.zeros(1, 4, 352, dtype=torch.uint8), one)


def test_slots_past_the_cache_read_and_write_nothing() -> None:
    memory = torch.full((4, 4, 352), 0x11, dtype=torch.uint8)
    cache, past = memory[:2], torch.tensor([8, 15, -1])
    assert (gather_rows(cache, past) == 0).all()
    write_rows(torch.ones(3, 512), torch.ones(3, 64), cache, past)
    assert (memory == 0x11).all()


def test_numbers_that_would_be_rounded_twice_are_refused() -> None:
    cache, one = torch.zeros(1, 4, 352, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    for dtype in (torch.float64, torch.int64):
        with pytest.raises(DtypeMismatch, match="latent"):
            write_rows(torch.zeros(1, 512, dtype=dtype), torch.zeros(1, 64), cache, one)
        with pytest.raises(DtypeMismatch, match="dtype"):
            gather_rows(cache, one, dtype=dtype)
    with pytest.raises(DtypeMismatch, match="slots"):
        gather_rows(cache, one.float())
