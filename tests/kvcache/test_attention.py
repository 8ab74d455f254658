from __future__ import annotations

import numpy as np
import pytest

from prime_inference.kvcache.attention import relative_l2, sparse_decode
from prime_inference.kvcache.errors import ShapeMismatch
from tests.kvcache.decode_cases import decode_case


def test_a_decode_is_the_softmax_average_written_out_in_loops() -> None:
    rng = np.random.default_rng(0)
    query = rng.standard_normal((1, 2, 576))
    latent, rope = rng.standard_normal((5, 512)), rng.standard_normal((5, 64))
    indices = np.array([[4, -1, 2, 2, 9]])
    out, lse = sparse_decode(query, latent, rope, indices, scale=0.05)
    for h in range(2):
        weights = []
        for i in (4, 2, 2):
            dot = sum(query[0, h, d] * latent[i, d] for d in range(512))
            dot += sum(query[0, h, 512 + d] * rope[i, d] for d in range(64))
            weights.append(np.exp(0.05 * dot))
        want = sum(w * latent[i] for w, i in zip(weights, (4, 2, 2), strict=True)) / sum(weights)
        np.testing.assert_allclose(out[0, h], want, rtol=1e-12)
        assert lse[0, h] == pytest.approx(np.log(sum(weights)), rel=1e-12)


def test_no_row_gives_zero_and_an_infinite_lse_and_nan_rows_stay_unread() -> None:
    case = decode_case(1, batch=4, heads=3, slots=40, top_k=32)
    assert (case.out[1:3] == 0).all()
    assert np.isposinf(case.lse[1:3]).all()
    assert np.isfinite(case.out).all()


def test_scores_of_any_size_do_not_overflow() -> None:
    query = np.full((1, 1, 576), 1e4)
    out, lse = sparse_decode(
        query, np.eye(2, 512) * 1e4, np.zeros((2, 64)), np.array([[0, 1]]), scale=1.0
    )
    np.testing.assert_array_equal(out[0, 0, :2], [5e3, 5e3])
    assert lse[0, 0] == pytest.approx(1e8)


def test_relative_l2_of_equal_zeros_is_zero() -> None:
    assert relative_l2(np.zeros(3), np.zeros(3)) == 0.0
    assert relative_l2(np.array([1.1]), np.array([1.0])) == pytest.approx(0.1)


def test_arrays_of_other_shapes_are_refused() -> None:
    with pytest.raises(ShapeMismatch):
        sparse_decode(
            np.zeros((1, 1, 575)),
            np.zeros((1, 512)),
            np.zeros((1, 64)),
            np.zeros((1, 1), int),
            scale=1,
        )
    with pytest.raises(ShapeMismatch):
        sparse_decode(
            np.zeros((1, 1, 576)),
            np.zeros((1, 512)),
            np.zeros((1, 64)),
            np.zeros((2, 1), int),
            scale=1,
        )


def test_nan_scores_alone_are_told_from_no_row_and_negative_lengths_count_nothing() -> None:
    rng = np.random.default_rng(0)
    latent, rope = rng.standard_normal((3, 512)), np.full((3, 64), np.nan)
    query, index = rng.standard_normal((1, 2, 576)), np.array([[0, 1, 2]])
    out, lse = sparse_decode(query, latent, rope, index, scale=0.05)
    assert np.isnan(out).all()
    assert np.isnan(lse).all()
    out, lse = sparse_decode(query, latent, rope, index, scale=0.05, lengths=np.array([-1]))
    assert (out == 0).all()
    assert np.isposinf(lse).all()
    with pytest.raises(ShapeMismatch, match="lengths"):
        sparse_decode(query, latent, rope, index, scale=0.05, lengths=np.array([1, 1]))
