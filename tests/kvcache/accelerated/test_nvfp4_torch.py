from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.kvcache import nvfp4, nvfp4_torch
from prime_inference.kvcache.errors import DtypeMismatch, ShapeMismatch
from prime_inference.kvcache.minifloat import e2m1_table, e4m3_table
from prime_inference.kvcache.row import WRITERS, Writer

torch.set_num_threads(1)


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-16, 16))
def test_torch_rows_equal_numpy_rows(writer: Writer, seed: int, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((16, 576)) * np.exp2(rng.integers(-5, 1, (16, 576)) + exponent)
    values = values.astype(np.float32)
    rows = nvfp4_torch.quantize(
        torch.from_numpy(values[:, :512]), torch.from_numpy(values[:, 512:]), writer=writer
    )
    want = nvfp4.quantize(values[:, :512], values[:, 512:], writer=writer)
    np.testing.assert_array_equal(rows.numpy(), want)
    latent, rope = nvfp4_torch.dequantize(rows)
    want_latent, want_rope = nvfp4.dequantize(want)
    np.testing.assert_array_equal(latent.numpy(), want_latent)
    np.testing.assert_array_equal(rope.numpy(), want_rope)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_bfloat16_makes_the_same_row_in_torch_and_numpy(writer: Writer) -> None:
    """NaN, infinities, subnormals and both zeros included, and every midpoint of both formats."""
    values = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32).reshape(128, 512)
    points = np.outer(e4m3_table()[1:127], [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    ties = np.zeros((126, 512), np.float32)
    ties[:, :8] = points
    latent = np.concatenate([values, ties])
    e4m3 = e4m3_table()[:127]
    rope = np.zeros((len(latent), 64), np.float32)
    rope[:128] = np.arange(65536, dtype=np.uint32).reshape(128, 512)[:, :64].view(np.float32)
    rope[128:130, :63] = ((e4m3[1:] + e4m3[:-1]) / 2).reshape(2, 63)
    rows = nvfp4_torch.quantize(torch.from_numpy(latent), torch.from_numpy(rope), writer=writer)
    np.testing.assert_array_equal(rows.numpy(), nvfp4.quantize(latent, rope, writer=writer))


def test_every_code_under_every_scale_decodes_alike() -> None:
    rows = np.zeros((256, 352), np.uint8)
    rows[:, :256] = np.arange(256)
    rows[:, 256:320] = np.arange(256).reshape(4, 64)[np.arange(256) % 4]
    rows[:, 320:] = np.arange(256)[:, None]
    got, want = nvfp4_torch.dequantize(torch.from_numpy(rows)), nvfp4.dequantize(rows)
    np.testing.assert_array_equal(got[0].numpy(), want[0])
    np.testing.assert_array_equal(got[1].numpy(), want[1])
    assert set(np.unique(want[0][8])) == {float(v) * 2.0**-6 for v in e2m1_table()}


def test_bfloat16_is_taken_as_it_is() -> None:
    latent = torch.randn(4, 512, dtype=torch.bfloat16)
    rope = torch.randn(4, 64, dtype=torch.bfloat16)
    want = nvfp4.quantize(latent.float().numpy(), rope.float().numpy())
    np.testing.assert_array_equal(nvfp4_torch.quantize(latent, rope).numpy(), want)


def test_tensors_that_are_no_latents_are_refused() -> None:
    rope = torch.zeros(2, 64)
    with pytest.raises(ShapeMismatch, match="latent"):
        nvfp4_torch.quantize(torch.zeros(2, 511), rope)
    with pytest.raises(ShapeMismatch, match="rope"):
        nvfp4_torch.quantize(torch.zeros(3, 512), rope)
    with pytest.raises(DtypeMismatch, match="latent"):
        nvfp4_torch.quantize(torch.zeros(2, 512, dtype=torch.float64), rope)
    with pytest.raises(DtypeMismatch, match="rows"):
        nvfp4_torch.dequantize(torch.zeros(2, 352))
    with pytest.raises(ValueError, match="writer"):
        nvfp4_torch.quantize(torch.zeros(2, 512), rope, writer="x")  # type: ignore[arg-type]
