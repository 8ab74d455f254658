from __future__ import annotations

import numpy as np
import pytest

from prime_inference.kvcache.accuracy.arms import ARMS, bf16
from prime_inference.kvcache.accuracy.rows import (
    MAGNITUDES,
    TAILS,
    RowQuality,
    evaluate_rows,
    sqnr_db,
    synthetic_latents,
)

Results = dict[tuple[str, float, str], RowQuality]


@pytest.fixture(scope="module")
def results() -> Results:
    return {(one.tail, one.max_abs, one.arm): one for one in evaluate_rows(tokens=512)}


def test_every_arm_is_measured_at_every_magnitude_bf16_and_fp8_among_them(
    results: Results,
) -> None:
    assert len(results) == len(ARMS) * len(MAGNITUDES) * len(TAILS)
    assert {arm.name for arm in ARMS} >= {"bf16", "fp8"}


def test_folded_scales_and_the_better_writer_keep_20_db_at_every_magnitude(
    results: Results,
) -> None:
    for (_, _, arm), one in results.items():
        if arm == "nvfp4+fold+4/6":
            assert one.sqnr_db >= 20


def test_the_plain_row_falls_to_10_db_and_less_at_the_smallest_magnitude(results: Results) -> None:
    for tail in TAILS:
        plain = results[tail, 0.02, "nvfp4"]
        folded = results[tail, 0.02, "nvfp4+fold+4/6"]
        assert plain.sqnr_db <= 10
        assert plain.output_error > 2 * folded.output_error


def test_fp8_lies_between_bf16_and_nvfp4_and_bf16_latents_are_kept_exactly(
    results: Results,
) -> None:
    for tail in TAILS:
        for max_abs in MAGNITUDES:
            fp8 = results[tail, max_abs, "fp8"]
            assert results[tail, max_abs, "nvfp4+fold+4/6"].sqnr_db < fp8.sqnr_db < 45
            assert results[tail, max_abs, "bf16"].as_json()["sqnr_db"] is None
            assert results[tail, max_abs, "bf16"].output_error < 1e-12


def test_synthetic_latents_have_the_maximum_asked_for_and_are_bfloat16() -> None:
    latent, rope = synthetic_latents(np.random.default_rng(0), 64, 0.5, "t4")
    assert float(np.abs(latent).max()) == 0.5
    np.testing.assert_array_equal(bf16(latent), latent)
    np.testing.assert_array_equal(bf16(rope), rope)


def test_bfloat16_rounds_ties_to_even() -> None:
    ulp = np.float32(2.0**-7)
    got = bf16(np.array([1 + ulp / 2, 1 + 1.5 * ulp, 1 + 0.75 * ulp], np.float32))
    np.testing.assert_array_equal(got, np.array([1, 1 + 2 * ulp, 1 + ulp], np.float32))


def test_sqnr_of_a_tenth_of_the_amplitude_is_20_db() -> None:
    exact = np.ones(10, np.float32)
    assert sqnr_db(exact, exact * np.float32(0.9)) == pytest.approx(20, abs=1e-4)
