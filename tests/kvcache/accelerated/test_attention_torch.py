from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.kvcache.attention import relative_l2
from prime_inference.kvcache.attention_torch import sparse_decode
from prime_inference.kvcache.errors import ShapeMismatch
from tests.kvcache.decode_cases import decode_case

torch.set_num_threads(1)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    batch=st.integers(1, 4),
    heads=st.sampled_from([1, 16, 64]),
    top_k=st.integers(1, 130),
)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_torch_decode_equals_float64(
    dtype: torch.dtype, bound: float, seed: int, batch: int, heads: int, top_k: int
) -> None:
    case = decode_case(seed, batch=batch, heads=heads, slots=100, top_k=top_k)
    out, lse = sparse_decode(
        torch.from_numpy(case.query),
        torch.from_numpy(case.rows),
        torch.from_numpy(case.indices),
        scale=case.scale,
        lengths=torch.from_numpy(case.lengths),
        dtype=dtype,
    )
    assert relative_l2(out.numpy(), case.out) < bound
    np.testing.assert_allclose(lse.numpy(), case.lse, rtol=bound, atol=bound)


def test_an_empty_cache_selects_nothing() -> None:
    out, lse = sparse_decode(
        torch.ones(1, 2, 576),
        torch.zeros(0, 352, dtype=torch.uint8),
        torch.zeros(1, 3).int(),
        scale=1,
    )
    assert (out == 0).all()
    assert torch.isposinf(lse).all()


def test_tensors_of_other_shapes_are_refused() -> None:
    rows = torch.zeros(1, 352, dtype=torch.uint8)
    with pytest.raises(ShapeMismatch, match="query"):
        sparse_decode(torch.ones(1, 2, 575), rows, torch.zeros(1, 3).int(), scale=1)
    with pytest.raises(ShapeMismatch, match="indices"):
        sparse_decode(torch.ones(1, 2, 576), rows, torch.zeros(2, 3).int(), scale=1)


@pytest.mark.parametrize("source", ["rope keys", "query"])
def test_nan_scores_alone_are_told_from_no_row(source: str) -> None:
    case = decode_case(8, batch=1, heads=2, slots=40, top_k=7)
    query = torch.from_numpy(case.query)
    if source == "query":
        query[:] = float("nan")
    index = torch.full((1, 7), 0 if source == "rope keys" else 1)
    out, lse = sparse_decode(query, torch.from_numpy(case.rows), index, scale=1)
    assert torch.isnan(out).all()
    assert torch.isnan(lse).all()


@pytest.mark.parametrize(("batch", "top_k"), [(0, 3), (2, 0), (0, 0)])
def test_no_token_and_no_index_select_nothing(batch: int, top_k: int) -> None:
    rows = torch.zeros(4, 352, dtype=torch.uint8)
    index = torch.zeros(batch, top_k).int()
    out, lse = sparse_decode(torch.ones(batch, 2, 576), rows, index, scale=1)
    assert out.shape == (batch, 2, 512)
    assert (out == 0).all()
    assert torch.isposinf(lse).all()
    with pytest.raises(ShapeMismatch, match="lengths"):
        sparse_decode(torch.ones(batch, 2, 576), rows, index, scale=1, lengths=torch.ones(3))
