"""Sparse MLA decode over NVFP4 rows with torch: the reference a GPU host can run.

Same contract as attention.py, over rows instead of decoded latents, vectorised over the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prime_inference.kvcache.errors import ShapeMismatch
from prime_inference.kvcache.nvfp4_torch import dequantize
from prime_inference.kvcache.row import LATENT_DIMS, ROPE_DIMS, ROW_BYTES


def sparse_decode(
    query: Tensor,
    rows: Tensor,
    indices: Tensor,
    *,
    scale: float,
    lengths: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """`out` [B, H, 512] and `lse` [B, H], in `dtype`, of `query` [B, H, 576] over the slots
    `indices` [B, K] of `rows` uint8 [S, 352]; see attention.py for what does not count."""
    if query.ndim != 3 or query.shape[2] != LATENT_DIMS + ROPE_DIMS:
        raise ShapeMismatch("query", "[B, H, 576]", tuple(query.shape))
    if indices.ndim != 2 or len(indices) != len(query):
        raise ShapeMismatch("indices", f"[{len(query)}, K]", tuple(indices.shape))
    if lengths is not None and lengths.shape != (len(query),):
        raise ShapeMismatch("lengths", f"[{len(query)}]", tuple(lengths.shape))
    if not indices.numel():  # no token, or no index for any: nothing is selected
        out = query.new_zeros((*query.shape[:2], LATENT_DIMS), dtype=dtype)
        return out, query.new_full(query.shape[:2], float("inf"), dtype=dtype)
    valid = (indices >= 0) & (indices < len(rows))
    if lengths is not None:
        position = torch.arange(indices.shape[1], device=indices.device)
        valid &= position < lengths[:, None]
    chosen = torch.where(valid, indices, 0).long()
    picked = rows[chosen] if len(rows) else rows.new_zeros((*chosen.shape, ROW_BYTES))
    latent, rope = dequantize(picked.reshape(-1, ROW_BYTES))
    key = torch.cat([latent, rope], dim=1).reshape(*chosen.shape, -1).to(dtype)
    key = torch.where(valid[:, :, None], key, 0)  # a row that does not count may hold NaN
    scores = torch.einsum("bhd,bkd->bhk", query.to(dtype), key) * scale
    scores = scores.masked_fill(~valid[:, None, :], float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    empty = ~valid.any(dim=1)
    weights = torch.where(empty[:, None, None], 0, torch.exp(scores - lse[:, :, None]))
    out = torch.einsum("bhk,bkd->bhd", weights, key[:, :, :LATENT_DIMS])
    return out, torch.where(empty[:, None], float("inf"), lse)
