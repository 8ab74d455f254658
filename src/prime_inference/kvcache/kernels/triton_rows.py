"""Write and read NVFP4 rows with Triton: bit for bit what nvfp4.py does, on any GPU.

Divisions use `div_rn` and the launches forbid contraction to FMA: Triton's plain `/` and a
fused a*a + b*b round otherwise, and then another scale could win.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from prime_inference.kvcache.errors import DtypeMismatch, LayoutMismatch, ShapeMismatch
from prime_inference.kvcache.row import LATENT_DIMS, ROPE_DIMS, ROW_BYTES, WRITERS, Writer


def write_rows(
    latent: Tensor,
    rope: Tensor,
    cache: Tensor,
    slots: Tensor,
    *,
    writer: Writer = "round_up",
) -> None:
    """Write token t's row to slot `slots[t]` of `cache` uint8 [blocks, block tokens, 352].

    `latent` [T, 512] and `rope` [T, 64] in bf16, f16 or f32, `slots` int32 or int64; a negative
    slot is skipped, as vLLM pads, and so is one past the cache. The cache may be strided
    between blocks and rows, not inside a row.
    """
    if writer not in WRITERS:
        raise ValueError(f"writer must be one of {', '.join(WRITERS)}, not {writer!r}")
    _check_cache(cache)
    _check_slots(slots)
    for name, tensor, dims in (("latent", latent, LATENT_DIMS), ("rope", rope, ROPE_DIMS)):
        if tensor.shape != (len(slots), dims) or tensor.stride(-1) != 1:
            raise ShapeMismatch(name, f"[{len(slots)}, {dims}]", tuple(tensor.shape))
        _check_float(name, tensor.dtype)
    if not len(slots):
        return
    _write_rows[(len(slots),)](
        latent,
        rope,
        cache,
        slots,
        latent.stride(0),
        rope.stride(0),
        cache.stride(0),
        cache.stride(1),
        cache.shape[1],
        cache.shape[0] * cache.shape[1],
        four_over_six=writer == "four_over_six",
        num_warps=1,  # a row is 512 numbers: 16 for each thread of one warp
        enable_fp_fusion=False,
    )


def gather_rows(cache: Tensor, slots: Tensor, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The decoded rows [T, 576], latent then rope, of `slots` [T]; zero for a slot outside
    of the cache.

    Exact in bf16, f16 and f32.
    """
    _check_cache(cache)
    _check_slots(slots)
    _check_float("dtype", dtype)
    out = torch.empty((len(slots), LATENT_DIMS + ROPE_DIMS), dtype=dtype, device=cache.device)
    if len(slots):
        _gather_rows[(len(slots),)](
            cache,
            slots,
            out,
            cache.stride(0),
            cache.stride(1),
            cache.shape[1],
            cache.shape[0] * cache.shape[1],
            num_warps=1,
            enable_fp_fusion=True,
        )
    return out


def _check_cache(cache: Tensor) -> None:
    if cache.ndim != 3 or cache.shape[2] != ROW_BYTES:
        raise ShapeMismatch("cache", f"[blocks, tokens, {ROW_BYTES}]", tuple(cache.shape))
    if cache.dtype != torch.uint8:
        raise DtypeMismatch("cache", "uint8", cache.dtype)
    if cache.stride(2) != 1:
        raise LayoutMismatch("the bytes of a row must be contiguous")


def _check_slots(slots: Tensor) -> None:
    if slots.ndim != 1 or slots.stride(0) != 1:
        raise ShapeMismatch("slots", "[T], contiguous", tuple(slots.shape))
    if slots.dtype not in (torch.int32, torch.int64):
        raise DtypeMismatch("slots", "int32 or int64", slots.dtype)


def _check_float(name: str, dtype: torch.dtype) -> None:
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise DtypeMismatch(name, "bfloat16, float16 or float32", dtype)


@triton.jit
def e4m3_magnitude(size):
    """Codes 0..0x7E of non-negative float32: nearest, ties to even, saturating."""
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Adding 2**23 leaves no fraction bits, so it rounds to a multiple of 2**-9, ties to even.
    subnormal = (size * 512.0 + 8388608.0).to(tl.int32, bitcast=True) - 0x4B000000
    code = tl.where(size < 0.015625, subnormal, normal)  # 2**-6, the smallest normal
    return tl.minimum(code, 0x7E)


@triton.jit
def e4m3_value(code):
    """float32 of the magnitude codes 0..0x7E."""
    normal = ((code << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    return tl.where(code < 8, code.to(tl.float32) * 0.001953125, normal)


@triton.jit
def e2m1_magnitude(size):
    """Codes 0..7 of non-negative float32: nearest, ties to even, saturating."""
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32)
    code += (size > 1.25).to(tl.int32) + (size >= 1.75).to(tl.int32)
    code += (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    return code + (size > 5.0).to(tl.int32)


@triton.jit
def e2m1_value(code):
    """float32 of the magnitude codes 0..7."""
    normal = ((code << 22) + (126 << 23)).to(tl.float32, bitcast=True)
    return tl.where(code < 2, code.to(tl.float32) * 0.5, normal)


@triton.jit
def block_codes(x, scale):
    """Codes 0..15 of blocks [32, 16] under the scale codes [32]."""
    y = x * tl.div_rn(tl.full([32], 1.0, tl.float32), e4m3_value(scale))[:, None]
    sign = ((x.to(tl.int32, bitcast=True) >> 31) & 1) << 3
    return tl.where(x != x, 7, e2m1_magnitude(tl.abs(y)) | sign)


@triton.jit
def pair_sums(x, n: tl.constexpr):
    """[32, n] -> [32, n / 2], neighbours added."""
    left, right = tl.split(tl.reshape(x, (32, n // 2, 2)))
    return left + right


@triton.jit
def squared_error(x, scale):
    """The loss of each block, summed as nvfp4.py sums it."""
    code = block_codes(x, scale)
    decoded = e2m1_value(code & 7) * e4m3_value(scale)[:, None]
    error = x - tl.where(code >= 8, -decoded, decoded)
    total = pair_sums(pair_sums(pair_sums(error * error, 16), 8), 4)
    left, right = tl.split(total)
    return left + right


@triton.jit
def _write_rows(
    latent,
    rope,
    cache,
    slots,
    latent_stride,
    rope_stride,
    block_stride,
    row_stride,
    block_tokens,
    cache_slots,
    four_over_six: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if (slot >= 0) & (slot < cache_slots):
        row = cache + (slot // block_tokens) * block_stride + (slot % block_tokens) * row_stride
        block = tl.arange(0, 32)
        dims = block[:, None] * 16 + tl.arange(0, 16)[None, :]
        x = tl.load(latent + token * latent_stride + dims).to(tl.float32)
        amax = tl.max(tl.where(x != x, 0.0, tl.abs(x)), axis=1)
        six = tl.maximum(tl.div_rn(amax, tl.full([32], 6.0, tl.float32)), 0.001953125)
        nearest = e4m3_magnitude(six)
        short = (e4m3_value(nearest) < six) & (nearest < 0x7E)
        scale = nearest + short.to(tl.int32)
        if four_over_six:
            loss = squared_error(x, scale)
            nearest_loss = squared_error(x, nearest)
            scale = tl.where(nearest_loss < loss, nearest, scale)
            loss = tl.where(nearest_loss < loss, nearest_loss, loss)
            four = e4m3_magnitude(tl.maximum(amax * 0.25, 0.001953125))
            scale = tl.where(squared_error(x, four) < loss, four, scale)
        low, high = tl.split(tl.reshape(block_codes(x, scale), (32, 8, 2)))
        packed = block[:, None] * 8 + tl.arange(0, 8)[None, :]
        tl.store(row + packed, (low | (high << 4)).to(tl.uint8))
        tl.store(row + 320 + (block & 3) * 8 + (block >> 2), scale.to(tl.uint8))
        at = tl.arange(0, 64)
        r = tl.load(rope + token * rope_stride + at).to(tl.float32)
        sign = ((r.to(tl.int32, bitcast=True) >> 31) & 1) << 7
        code = tl.where(r != r, 0x7F, e4m3_magnitude(tl.where(r != r, 0.0, tl.abs(r))) | sign)
        tl.store(row + 256 + at, code.to(tl.uint8))


@triton.jit
def _gather_rows(cache, slots, out, block_stride, row_stride, block_tokens, cache_slots):
    token = tl.program_id(0).to(tl.int64)
    given = tl.load(slots + token).to(tl.int64)
    inside = (given >= 0) & (given < cache_slots)
    slot = tl.where(inside, given, 0)
    row = cache + (slot // block_tokens) * block_stride + (slot % block_tokens) * row_stride
    target = out + token * 576
    dims = tl.arange(0, 512)
    there = tl.full([512], 0, tl.int1) | inside
    packed = tl.load(row + dims // 2, mask=there, other=0).to(tl.int32)
    code = (packed >> ((dims & 1) * 4)) & 15
    block = dims // 16
    at_scale = 320 + (block & 3) * 8 + (block >> 2)
    scale = tl.load(row + at_scale, mask=there, other=0).to(tl.int32)
    value = e2m1_value(code & 7) * e4m3_any(scale)
    tl.store(target + dims, tl.where(code >= 8, -value, value).to(out.dtype.element_ty))
    at = tl.arange(0, 64)
    rope = e4m3_any(
        tl.load(row + 256 + at, mask=tl.full([64], 0, tl.int1) | inside, other=0).to(tl.int32)
    )
    tl.store(target + 512 + at, rope.to(out.dtype.element_ty))


@triton.jit
def e4m3_any(code):
    """float32 of any e4m3 byte, NaN and sign included."""
    size = e4m3_value(code & 0x7F)
    size = tl.where((code & 0x7F) == 0x7F, float("nan"), size)
    return tl.where(code >= 0x80, -size, size)
