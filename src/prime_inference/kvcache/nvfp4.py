"""Quantize MLA latents to 352-byte rows and back: the numpy reference of every kernel.

The row's bytes are in row.py. For each block of 16 latent dimensions, in float32:

    amax  = max |x|                       (NaN counts as absent)
    scale = e4m3 of max(amax / 6, 2**-9)  rounded up to the next e4m3 number, at most 448
    code  = e2m1(x * (1 / scale))         the reciprocal is rounded first, then the product

Multiplying by the rounded reciprocal is what upstream's kernel does; dividing instead gives
another code for some inputs that lie on a midpoint. `writer="round_up"` is upstream's rule
byte for byte. `writer="four_over_six"` tries three scales for each block and keeps the one
whose squared error is smallest, so its error is at most the other's in every block:

    0. round_up's scale
    1. e4m3 nearest to max(amax / 6, 2**-9)
    2. e4m3 nearest to max(amax / 4, 2**-9): the largest element lands on 4, where the next
       code down is 25 % away rather than 33 % (Four Over Six, arXiv 2512.02010)

A later candidate wins only if strictly better. The squared error is summed in float32 over
a fixed tree of neighbours, so that every implementation picks the same one.

What is not finite: infinity saturates (a latent to 6 * 448, rope to 448, with its sign); a
NaN latent becomes +6 times its block's scale, as `cvt.rn.satfinite.e2m1x2` has it, and does
not count towards amax; a NaN rope stays NaN. Nothing raises for such values, since a kernel
cannot.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prime_inference.kvcache.errors import DtypeMismatch, ShapeMismatch
from prime_inference.kvcache.minifloat import (
    E4M3_LARGEST,
    Bytes,
    Floats,
    e2m1_table,
    e4m3_table,
    encode_e2m1,
    encode_e4m3,
)
from prime_inference.kvcache.row import (
    BLOCK_DIMS,
    BLOCKS,
    LATENT_DIMS,
    MAX_CODE,
    MIN_SCALE,
    ROPE_DIMS,
    ROPE_OFFSET,
    ROW_BYTES,
    SCALE_BYTES,
    SCALE_OFFSET,
    WRITERS,
    Writer,
)


def quantize(
    latent: npt.NDArray[np.floating],
    rope: npt.NDArray[np.floating],
    *,
    writer: Writer = "round_up",
) -> Bytes:
    """Rows, uint8 [T, 352], of `latent` [T, 512] and `rope` [T, 64].

    Both float16 or float32 (bfloat16 values are float32 values). Raises `ShapeMismatch`,
    `DtypeMismatch` (float64 would be rounded twice), and ValueError for an unknown writer.
    """
    if writer not in WRITERS:
        raise ValueError(f"writer must be one of {', '.join(WRITERS)}, not {writer!r}")
    latent32 = _float32("latent", latent, LATENT_DIMS)
    rope32 = _float32("rope", rope, ROPE_DIMS)
    if len(latent32) != len(rope32):
        raise ShapeMismatch("rope", f"[{len(latent32)}, {ROPE_DIMS}]", rope32.shape)
    blocks = latent32.reshape(-1, BLOCKS, BLOCK_DIMS)
    with np.errstate(over="ignore", invalid="ignore"):  # the rule for what is not finite
        scales = round_up_scales(blocks) if writer == "round_up" else best_scales(blocks)
        codes = block_codes(blocks, scales).reshape(-1, LATENT_DIMS)
    rows = np.empty((len(latent32), ROW_BYTES), np.uint8)
    rows[:, :ROPE_OFFSET] = codes[:, 0::2] | codes[:, 1::2] << 4
    rows[:, ROPE_OFFSET:SCALE_OFFSET] = encode_e4m3(rope32)
    rows[:, [SCALE_OFFSET + at for at in SCALE_BYTES]] = scales
    return rows


def dequantize(rows: Bytes) -> tuple[Floats, Floats]:
    """`latent` float32 [T, 512] and `rope` float32 [T, 64] of uint8 `rows` [T, 352].

    Every product of a code and a scale is exact in float32 (and in float16 and bfloat16).
    A scale byte of 0x7F, which no writer here makes, gives NaN.
    """
    if rows.ndim != 2 or rows.shape[1] != ROW_BYTES:
        raise ShapeMismatch("rows", f"[T, {ROW_BYTES}]", rows.shape)
    if rows.dtype != np.uint8:
        raise DtypeMismatch("rows", "uint8", rows.dtype)
    packed = rows[:, :ROPE_OFFSET]
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1, BLOCKS, BLOCK_DIMS)
    scales = e4m3_table()[rows[:, [SCALE_OFFSET + at for at in SCALE_BYTES]]]
    latent = e2m1_table()[codes] * scales[:, :, None]
    return latent.reshape(-1, LATENT_DIMS), e4m3_table()[rows[:, ROPE_OFFSET:SCALE_OFFSET]]


def round_up_scales(blocks: Floats) -> Bytes:
    """Scale bytes [..., 32] of `blocks` [..., 32, 16] by upstream's rule."""
    wanted = _wanted_scale(blocks, np.float32(MAX_CODE))
    nearest = encode_e4m3(wanted)
    short = (e4m3_table()[nearest] < wanted) & (nearest < E4M3_LARGEST)
    return nearest + short.astype(np.uint8)


def best_scales(blocks: Floats) -> Bytes:
    """Scale bytes [..., 32] that lose least among the three candidates of each block."""
    best = round_up_scales(blocks)
    best_loss = _squared_error(blocks, best)
    for largest_code in (MAX_CODE, 4.0):
        scales = encode_e4m3(_wanted_scale(blocks, np.float32(largest_code)))
        loss = _squared_error(blocks, scales)
        better = loss < best_loss
        best = np.where(better, scales, best)
        best_loss = np.where(better, loss, best_loss)
    return best


def block_codes(blocks: Floats, scales: Bytes) -> Bytes:
    """e2m1 codes [..., 32, 16] of `blocks` under the scale bytes [..., 32]."""
    reciprocal = np.float32(1) / e4m3_table()[scales]
    return encode_e2m1(blocks * reciprocal[..., None])


def _wanted_scale(blocks: Floats, largest_code: np.float32) -> Floats:
    amax = np.fmax.reduce(np.abs(blocks), axis=-1, initial=np.float32(0))
    wanted: Floats = np.maximum(amax / largest_code, np.float32(MIN_SCALE))
    return wanted


def _squared_error(blocks: Floats, scales: Bytes) -> Floats:
    decoded = e2m1_table()[block_codes(blocks, scales)] * e4m3_table()[scales][..., None]
    error = blocks - decoded
    total: Floats = error * error
    while total.shape[-1] > 1:
        total = total[..., 0::2] + total[..., 1::2]
    return total[..., 0]


def _float32(name: str, values: npt.NDArray[np.floating], dims: int) -> Floats:
    if values.ndim != 2 or values.shape[1] != dims:
        raise ShapeMismatch(name, f"[T, {dims}]", values.shape)
    if values.dtype not in (np.float16, np.float32):
        raise DtypeMismatch(name, "float16 or float32", values.dtype)
    return np.ascontiguousarray(values, np.float32)
