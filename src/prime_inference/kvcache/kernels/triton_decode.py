"""Sparse MLA decode over NVFP4 rows with Triton: two launches, any GPU.

The first launch takes a query token, 16 heads and a part of the selected rows and keeps a
running softmax; the second combines the parts. Even and odd latent dimensions, which lie in
the low and the high nibbles, stay apart from the load to the store, so nothing is shuffled.
Keys are decoded to FP16 as value * 2**-8 (exact); the factor goes into the softmax scale and
the output. The order of all sums is fixed: the same input gives the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from prime_inference.kvcache.errors import DtypeMismatch, ShapeMismatch
from prime_inference.kvcache.kernels.triton_rows import _check_cache
from prime_inference.kvcache.row import LATENT_DIMS

HEADS = 16  # of a program: the smallest M of a tensor-core product
TILE = 32  # rows of a step: K as FP16, 32 x 576 x 2 bytes, fits beside the accumulators


def sparse_decode(
    query: Tensor,
    cache: Tensor,
    indices: Tensor,
    *,
    scale: float,
    lengths: Tensor | None = None,
    splits: int = 1,
) -> tuple[Tensor, Tensor]:
    """`out` f32 [B, H, 512] and `lse` f32 [B, H] of `query` [B, H, 576] (f16 or bf16).

    `indices` int32 [B, K] are slots of `cache` uint8 [blocks, block tokens, 352]; those outside
    of it and those from `lengths[b]` on (int32 [B], held to 0..K) do not count. Where none
    counts, out is 0 and lse inf; a NaN key that counts, or a NaN query, makes both NaN.
    `splits` parts of K run in parallel.
    """
    _check_cache(cache)
    if query.ndim != 3 or query.shape[2] != 576 or not query.is_contiguous():
        raise ShapeMismatch("query", "[B, H, 576]", tuple(query.shape))
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise DtypeMismatch("query", "float16 or bfloat16", query.dtype)
    if indices.ndim != 2 or len(indices) != len(query) or indices.stride(1) != 1:
        raise ShapeMismatch("indices", f"[{len(query)}, K]", tuple(indices.shape))
    if indices.dtype != torch.int32:
        raise DtypeMismatch("indices", "int32", indices.dtype)
    if lengths is not None and lengths.shape != (len(query),):
        raise ShapeMismatch("lengths", f"[{len(query)}]", tuple(lengths.shape))
    if lengths is not None and lengths.dtype != torch.int32:
        raise DtypeMismatch("lengths", "int32", lengths.dtype)
    if not 1 <= splits <= 64:
        raise ValueError(f"splits must lie in 1..64, not {splits}")
    batch, heads, _ = query.shape
    top_k = indices.shape[1]
    if lengths is None:
        lengths = torch.full((batch,), top_k, dtype=torch.int32, device=query.device)
    parts = query.new_empty((batch, splits, heads, LATENT_DIMS), dtype=torch.float32)
    largest = query.new_empty((batch, splits, heads), dtype=torch.float32)
    totals = torch.empty_like(largest)
    out = query.new_empty((batch, heads, LATENT_DIMS), dtype=torch.float32)
    lse = query.new_empty((batch, heads), dtype=torch.float32)
    if not batch or not heads:
        return out, lse
    _decode_part[(batch, triton.cdiv(heads, HEADS), splits)](
        query,
        cache,
        indices,
        lengths.contiguous(),
        parts,
        largest,
        totals,
        scale * 256 / 0.6931471805599453,  # keys carry 2**-8; exp2 instead of exp
        heads,
        top_k,
        cache.shape[0] * cache.shape[1],
        indices.stride(0),
        cache.stride(0),
        cache.stride(1),
        cache.shape[1],
        head_tile=HEADS,
        row_tile=TILE,
        num_warps=8,
        enable_fp_fusion=True,
    )
    _combine_parts[(batch, heads)](
        parts, largest, totals, out, lse, heads, splits, num_warps=4, enable_fp_fusion=True
    )
    return out, lse


@triton.jit
def e2m1_to_f16(code):
    """value * 2**-14 of codes 0..15: the three low bits are f16's exponent and mantissa."""
    return (((code & 8) << 12) | ((code & 7) << 9)).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def e4m3_to_f16(code):
    """value * 2**-8 of e4m3 bytes; NaN stays NaN."""
    bits = ((code & 0x7F) << 7) | ((code & 0x80) << 8)
    bits = tl.where((code & 0x7F) == 0x7F, 0x7E00, bits)
    return bits.to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _decode_part(
    query,
    cache,
    indices,
    lengths,
    parts,
    largest,
    totals,
    scale_log2,
    heads,
    top_k,
    slots,
    index_stride,
    block_stride,
    row_stride,
    block_tokens,
    head_tile: tl.constexpr,
    row_tile: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * head_tile + tl.arange(0, head_tile)
    part = tl.program_id(2)
    splits = tl.num_programs(2)
    length = tl.minimum(tl.maximum(tl.load(lengths + token), 0), top_k)
    tiles = tl.cdiv(length, row_tile)
    first = (tiles * part) // splits
    last = (tiles * (part + 1)) // splits

    mask = (head < heads)[:, None]
    q = query + (token * heads + head)[:, None] * 576
    half = tl.arange(0, 256)
    q_even = tl.load(q + half[None, :] * 2, mask=mask, other=0.0).to(tl.float16)
    q_odd = tl.load(q + half[None, :] * 2 + 1, mask=mask, other=0.0).to(tl.float16)
    at = tl.arange(0, 64)
    q_rope = tl.load(q + 512 + at[None, :], mask=mask, other=0.0).to(tl.float16)

    m = tl.full([head_tile], float("-inf"), tl.float32)
    total = tl.zeros([head_tile], tl.float32)
    even = tl.zeros([head_tile, 256], tl.float32)
    odd = tl.zeros([head_tile, 256], tl.float32)
    block = tl.arange(0, 32)
    for tile in range(first, last):
        position = tile * row_tile + tl.arange(0, row_tile)
        inside = position < length
        slot = tl.load(indices + token * index_stride + position, mask=inside, other=-1)
        valid = (slot >= 0) & (slot < slots)
        slot = tl.where(valid, slot, 0).to(tl.int64)
        row = cache + (slot // block_tokens) * block_stride + (slot % block_tokens) * row_stride
        there = valid[:, None]
        packed = tl.load(row[:, None] + half[None, :], mask=there, other=0).to(tl.int32)
        rope = tl.load(row[:, None] + 256 + at[None, :], mask=there, other=0).to(tl.int32)
        where_scale = 320 + (block & 3) * 8 + (block >> 2)
        scale = tl.load(row[:, None] + where_scale[None, :], mask=there, other=0).to(tl.int32)
        # (value * 2**-14) * (scale * 2**6): both factors and the product are exact in f16.
        scale_f16 = e4m3_to_f16(scale) * 16384.0
        scale_f16 = tl.broadcast_to(scale_f16.to(tl.float16)[:, :, None], (row_tile, 32, 8))
        scale_f16 = tl.reshape(scale_f16, (row_tile, 256))
        k_even = e2m1_to_f16(packed & 15) * scale_f16
        k_odd = e2m1_to_f16(packed >> 4) * scale_f16
        k_rope = e4m3_to_f16(rope)
        scores = tl.dot(q_even, tl.trans(k_even))
        scores = tl.dot(q_odd, tl.trans(k_odd), scores)
        scores = tl.dot(q_rope, tl.trans(k_rope), scores) * scale_log2
        scores = tl.where(valid[None, :], scores, float("-inf"))
        new_m = tl.maximum(m, tl.max(scores, axis=1))
        base = tl.where(new_m == float("-inf"), 0.0, new_m)
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(m - base)
        total = total * decay + tl.sum(weights, axis=1)
        weights_f16 = weights.to(tl.float16)
        even = tl.dot(weights_f16, k_even, even * decay[:, None])
        odd = tl.dot(weights_f16, k_odd, odd * decay[:, None])
        m = new_m

    where_part = (token * splits + part) * heads + head
    target = parts + where_part[:, None] * 512 + half[None, :] * 2
    tl.store(target, even * 256.0, mask=mask)
    tl.store(target + 1, odd * 256.0, mask=mask)
    tl.store(largest + where_part, m, mask=head < heads)
    tl.store(totals + where_part, total, mask=head < heads)


@triton.jit
def _combine_parts(parts, largest, totals, out, lse, heads, splits):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, 512)
    m = float("-inf")
    for part in range(splits):
        m = tl.maximum(m, tl.load(largest + (token * splits + part) * heads + head))
    base = tl.where(m == float("-inf"), 0.0, m)
    total = 0.0
    value = tl.zeros([512], tl.float32)
    for part in range(splits):
        where_part = (token * splits + part) * heads + head
        decay = tl.exp2(tl.load(largest + where_part) - base)
        total += tl.load(totals + where_part) * decay
        value += tl.load(parts + where_part * 512 + dims) * decay
    # A maximum skips NaN scores; the sum does not, so it tells them from no row at all.
    empty = (m == float("-inf")) & (total == 0.0)
    safe = tl.where(empty, 1.0, total)
    tl.store(out + (token * heads + head) * 512 + dims, tl.where(empty, 0.0, value / safe))
    natural = (tl.log2(safe) + base) * 0.6931471805599453
    tl.store(lse + token * heads + head, tl.where(empty, float("inf"), natural))
