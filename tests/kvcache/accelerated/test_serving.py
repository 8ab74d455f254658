from __future__ import annotations

import numpy as np
import pytest
import torch

from prime_inference.kvcache.attention import relative_l2, sparse_decode
from prime_inference.kvcache.errors import ShapeMismatch
from prime_inference.kvcache.kernels.triton_rows import write_rows
from prime_inference.kvcache.nvfp4 import dequantize
from prime_inference.kvcache.serving import attend, global_slots

torch.set_num_threads(1)


def test_positions_of_a_request_become_slots_of_its_blocks() -> None:
    table = torch.tensor([[5, 2, 7], [1, 0, 3]], dtype=torch.int32)
    positions = torch.tensor([[0, 3, 4, 11, -1], [0, 5, 8, 12, -1]], dtype=torch.int32)
    slots = global_slots(positions, torch.tensor([0, 1]), table, 4)
    assert slots.dtype == torch.int32
    assert slots.tolist() == [[20, 23, 8, 31, -1], [4, 1, 12, -1, -1]]


def test_requests_must_fit_the_positions() -> None:
    with pytest.raises(ShapeMismatch):
        global_slots(torch.zeros(2, 3), torch.zeros(3), torch.zeros(1, 1), 4)


def test_a_step_writes_its_tokens_and_attends_over_a_packed_cache_of_several_layers() -> None:
    """Two requests whose blocks are scattered through one layer of a block-major cache."""
    rng = torch.Generator().manual_seed(0)
    memory = torch.full((6, 2 * 4 * 352), 0xFF, dtype=torch.uint8)
    cache = memory[:, 4 * 352 :].view(6, 4, 352)
    table = torch.tensor([[4, 1], [2, 5]], dtype=torch.int32)
    latent = torch.randn(12, 512, generator=rng).bfloat16()
    rope = torch.randn(12, 64, generator=rng).bfloat16()
    requests = torch.tensor([0] * 7 + [1] * 5)
    positions = torch.tensor([*range(7), *range(5)], dtype=torch.int32)
    slots = global_slots(positions[:, None], requests, table, 4)[:, 0]
    write_rows(latent, rope, cache, slots.long(), writer="four_over_six")
    query = torch.randn(2, 16, 576, generator=rng).bfloat16()
    chosen = torch.tensor([[0, 6, 3, -1, 5], [4, 4, -1, 0, 2]], dtype=torch.int32)
    selected = global_slots(chosen, torch.tensor([0, 1]), table, 4)
    out, lse = attend(query, cache, selected, 576**-0.5)
    kept = dequantize(np.ascontiguousarray(cache.reshape(-1, 352).numpy()))
    want, want_lse = sparse_decode(query.float().numpy(), *kept, selected.numpy(), scale=576**-0.5)
    assert out.dtype == torch.bfloat16
    assert relative_l2(out.float().numpy(), want) < 2e-3
    np.testing.assert_allclose(lse.numpy(), want_lse, rtol=1e-3)
    assert (memory[:, : 4 * 352] == 0xFF).all()
