from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from prime_inference.kvcache.attention import relative_l2
from prime_inference.kvcache.errors import DtypeMismatch, ShapeMismatch
from prime_inference.kvcache.kernels.triton_decode import sparse_decode
from tests.kvcache.decode_cases import DecodeCase, decode_case

torch.set_num_threads(1)
# Interpreted maxima are numpy's, which warns where every score is NaN.
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")


def decoded(case: DecodeCase, splits: int, dtype: torch.dtype = torch.float16):
    return sparse_decode(
        torch.from_numpy(case.query).to(dtype),
        torch.from_numpy(case.rows).view(-1, 20, 352),
        torch.from_numpy(case.indices),
        scale=case.scale,
        lengths=torch.from_numpy(case.lengths),
        splits=splits,
    )


@pytest.mark.parametrize(
    ("heads", "splits", "top_k", "seed"),
    [
        (16, 1, 64, 0),
        (16, 3, 130, 1),
        (5, 2, 33, 2),
        (64, 4, 96, 3),
        (128, 1, 48, 4),
        (16, 8, 1, 5),
    ],
)
def test_the_kernel_is_within_the_bound_of_float64(
    heads: int, splits: int, top_k: int, seed: int
) -> None:
    case = decode_case(seed, batch=4, heads=heads, slots=100, top_k=top_k)
    out, lse = decoded(case, splits)
    assert relative_l2(out.numpy(), case.out) < 2e-3
    for b in range(4):
        assert relative_l2(out[b].numpy(), case.out[b]) < 2e-3
    np.testing.assert_allclose(lse.numpy(), case.lse, rtol=2e-3, atol=2e-3)


def test_the_same_input_gives_the_same_bits_and_unused_memory_has_no_say() -> None:
    case = decode_case(7, batch=3, heads=16, slots=60, top_k=70)
    first, first_lse = decoded(case, 3)
    poisoned = replace(case, rows=case.rows.copy())
    used = case.indices[(case.indices >= 0) & (case.indices < 60)]
    poisoned.rows[np.setdiff1d(np.arange(60), used)] = 0xFF
    second, second_lse = decoded(poisoned, 3)
    assert torch.equal(first, second)
    assert torch.equal(first_lse, second_lse)


def test_a_nan_rope_key_of_a_selected_row_shows() -> None:
    case = decode_case(8, batch=1, heads=16, slots=40, top_k=8)
    case.indices[:] = [[0, 1, 2, 3, 4, 5, 6, 7]]
    case.lengths[:] = 8
    assert torch.isnan(decoded(case, 1)[0]).all()


def test_tensors_of_other_shapes_are_refused() -> None:
    cache = torch.zeros(1, 4, 352, dtype=torch.uint8)
    query = torch.zeros(1, 16, 576, dtype=torch.float16)
    index = torch.zeros(1, 4, dtype=torch.int32)
    with pytest.raises(ShapeMismatch, match="query"):
        sparse_decode(query[:, :, :512], cache, index, scale=1)
    with pytest.raises(DtypeMismatch, match="query"):
        sparse_decode(query.float(), cache, index, scale=1)
    with pytest.raises(ShapeMismatch, match="indices"):
        sparse_decode(query, cache, index.repeat(2, 1), scale=1)
    with pytest.raises(ValueError, match="splits"):
        sparse_decode(query, cache, index, scale=1, splits=0)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("source", ["rope keys", "query"])
def test_nan_scores_alone_are_told_from_no_row(source: str, splits: int) -> None:
    case = decode_case(8, batch=1, heads=16, slots=40, top_k=70)
    case.indices[:], case.lengths[:] = (0 if source == "rope keys" else 1), 70
    if source == "query":
        case.query[:] = np.nan
    out, lse = decoded(case, splits)
    assert torch.isnan(out).all()
    assert torch.isnan(lse).all()


@pytest.mark.parametrize("given", [-3, 1000])
def test_lengths_are_held_to_the_indices_there_are(given: int) -> None:
    case = decode_case(9, batch=2, heads=16, slots=40, top_k=40)
    case.indices[case.indices == 0] = 1
    case.lengths[:] = given
    out, lse = decoded(case, 2)
    held = replace(case, lengths=np.full_like(case.lengths, 0 if given < 0 else 40))
    want, want_lse = decoded(held, 2)
    assert torch.equal(out, want)
    assert torch.equal(lse, want_lse)


def test_indices_and_lengths_of_other_kinds_are_refused() -> None:
    cache = torch.zeros(1, 4, 352, dtype=torch.uint8)
    query = torch.zeros(1, 16, 576, dtype=torch.float16)
    index = torch.zeros(1, 4, dtype=torch.int32)
    with pytest.raises(DtypeMismatch, match="indices"):
        sparse_decode(query, cache, index.long(), scale=1)
    with pytest.raises(ShapeMismatch, match="lengths"):
        sparse_decode(query, cache, index, scale=1, lengths=torch.zeros(2, dtype=torch.int32))
    with pytest.raises(DtypeMismatch, match="lengths"):
        sparse_decode(query, cache, index, scale=1, lengths=torch.zeros(1))
