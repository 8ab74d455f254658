"""One attention step over a paged NVFP4 cache, in the terms of a serving engine.

What the vLLM backend does besides vLLM: from positions in a request to slots in the cache,
and from there to a kernel.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from prime_inference.kvcache.errors import ShapeMismatch

LIBRARY: Final = "PRIME_NVFP4_LIBRARY"  # a library that kernels/sm90/build.py compiled


def global_slots(positions: Tensor, requests: Tensor, block_table: Tensor, tokens: int) -> Tensor:
    """Slots, int32 [T, K], of `positions` [T, K] within requests.

    `requests` [T] is each token's row in `block_table` [R, M], `tokens` the tokens of a block.
    -1 stays -1, and so does a position past the block table.
    """
    if positions.ndim != 2 or requests.shape != (len(positions),):
        raise ShapeMismatch("requests", f"[{len(positions)}]", tuple(requests.shape))
    block = torch.div(positions, tokens, rounding_mode="floor")
    valid = (positions >= 0) & (block < block_table.shape[1])
    at = torch.where(valid, block, 0).long()
    physical = block_table[requests.long()[:, None], at]
    slots = physical.long() * tokens + positions % tokens
    return torch.where(valid, slots, -1).int()


def attend(query: Tensor, cache: Tensor, slots: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """`out` [T, H, 512] in the query's dtype and `lse` [T, H] of `query` [T, H, 576].

    The CUDA kernel where PRIME_NVFP4_LIBRARY names its library, else Triton's.
    """
    library = os.environ.get(LIBRARY)
    if library:
        from prime_inference.kvcache.kernels.sm90 import decode

        out, lse = decode.sparse_decode(
            decode.load_library(Path(library)), query.contiguous(), cache, slots, scale=scale
        )
    else:
        from prime_inference.kvcache.kernels.sm90.params import cluster_size
        from prime_inference.kvcache.kernels.triton_decode import sparse_decode

        splits = cluster_size(max(1, len(query)), query.shape[1])
        out, lse = sparse_decode(query.contiguous(), cache, slots, scale=scale, splits=splits)
    return out.to(query.dtype), lse
