from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kvcache.errors import ScaleInexact, ShapeMismatch
from prime_inference.kvcache.nvfp4 import dequantize, quantize
from prime_inference.kvcache.outer_scale import (
    decode_weight,
    exponent_for,
    exponent_from_latents,
    exponent_from_norm,
    norm_bound,
    scale_weight,
)


def bf16_bytes(values: npt.NDArray[np.float32]) -> bytes:
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()


@given(st.floats(1e-6, 1e6), st.sampled_from([1.0, 2.0, 3.0, 8.0]))
def test_the_exponent_is_the_largest_that_does_not_saturate(largest: float, margin: float) -> None:
    k = exponent_for(largest, margin=margin)
    assert largest * margin * 2.0**k <= 2688 < largest * margin * 2.0 ** (k + 1)


@given(st.integers(0, 2**32 - 1), st.floats(0.001, 30))
def test_no_latent_of_a_norm_breaks_its_bound(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    weight = (rng.standard_normal(512) * size).astype(np.float32)
    spike = np.zeros(512)
    spike[np.argmax(np.abs(weight))] = rng.standard_normal()
    for x in (rng.standard_normal(512), spike):
        latent = x / np.sqrt(np.mean(x**2)) * weight
        assert np.max(np.abs(latent)) <= norm_bound(weight) * (1 + 1e-12)


@pytest.mark.parametrize("size", [0.02, 0.1, 1.0, 5.2])
def test_a_folded_scale_gives_every_layer_the_accuracy_of_the_largest(size: float) -> None:
    rng = np.random.default_rng(1)
    latent = rng.standard_normal((256, 512)).astype(np.float32)
    latent *= np.float32(size) / np.abs(latent).max()
    k = exponent_from_latents(latent)
    rope = np.zeros((256, 64), np.float32)
    stored, _ = dequantize(quantize(np.ldexp(latent, k), rope, writer="four_over_six"))
    error = np.ldexp(stored, -k).astype(np.float64) - latent
    assert 10 * np.log10(np.mean(latent.astype(np.float64) ** 2) / np.mean(error**2)) >= 20


@given(st.integers(-20, 20), st.integers(0, 2**32 - 1))
def test_scaling_bfloat16_by_a_power_of_two_is_exact_and_undone_by_its_inverse(
    exponent: int, seed: int
) -> None:
    raw = bf16_bytes(np.random.default_rng(seed).standard_normal(64).astype(np.float32))
    scaled = scale_weight(raw, "BF16", exponent)
    want = decode_weight(raw, "BF16").astype(np.float64) * 2.0**exponent
    np.testing.assert_array_equal(decode_weight(scaled, "BF16").astype(np.float64), want)
    assert scale_weight(scaled, "BF16", -exponent) == raw


@pytest.mark.parametrize(
    ("dtype", "value", "exponent"),
    [("BF16", 3.0e38, 1), ("BF16", 1.5 * 2.0**-126, -8), ("F16", 40000.0, 1), ("F16", 1.001, -20)],
)
def test_a_weight_that_would_leave_its_format_is_refused(dtype, value, exponent) -> None:
    values = np.full(4, value, np.float32)
    raw = bf16_bytes(values) if dtype == "BF16" else values.astype("<f2").tobytes()
    with pytest.raises(ScaleInexact) as caught:
        scale_weight(raw, dtype, exponent, name="w")
    assert (caught.value.name, caught.value.elements) == ("w", 4)


def test_the_exponent_of_a_norm_follows_from_its_largest_weight() -> None:
    weight = np.full(512, 0.01, np.float32)
    weight[7] = -0.5
    assert exponent_from_norm(weight) == exponent_for(0.5 * 512**0.5) == 7


@pytest.mark.parametrize("largest", [0.0, -1.0, float("inf"), float("nan")])
def test_a_layer_without_a_finite_positive_latent_is_refused(largest: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        exponent_for(largest)


def test_arrays_of_another_width_are_refused() -> None:
    with pytest.raises(ShapeMismatch):
        norm_bound(np.zeros(511, np.float32))
    with pytest.raises(ShapeMismatch):
        exponent_from_latents(np.zeros((0, 512), np.float32))
