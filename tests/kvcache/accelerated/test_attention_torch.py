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
