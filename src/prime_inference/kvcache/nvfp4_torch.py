"""The row codec with torch, on any device: equal to nvfp4.py bit for bit.

For writers and readers that have no kernel, and the middle term between the numpy reference
and the GPU kernels in tests. See nvfp4.py for the rules.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prime_inference.kvcache.errors import DtypeMismatch, ShapeMismatch
from prime_inference.kvcache.minifloat import E4M3_LARGEST, E4M3_NAN, e2m1_table, e4m3_table
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

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def quantize(latent: Tensor, rope: Tensor, *, writer: Writer = "round_up") -> Tensor:
    """Rows, uint8 [T, 352], of `latent` [T, 512] and `rope` [T, 64]: bf16, f16 or f32."""
    if writer not in WRITERS:
        raise ValueError(f"writer must be one of {', '.join(WRITERS)}, not {writer!r}")
    latent32 = _float32("latent", latent, LATENT_DIMS)
    rope32 = _float32("rope", rope, ROPE_DIMS)
    if len(latent32) != len(rope32):
        raise ShapeMismatch("rope", f"[{len(latent32)}, {ROPE_DIMS}]", tuple(rope32.shape))
    blocks = latent32.reshape(-1, BLOCKS, BLOCK_DIMS)
    scales = _round_up_scales(blocks) if writer == "round_up" else _best_scales(blocks)
    codes = _block_codes(blocks, scales).reshape(-1, LATENT_DIMS)
    rows = torch.empty((len(latent32), ROW_BYTES), dtype=torch.uint8, device=latent.device)
    rows[:, :ROPE_OFFSET] = codes[:, 0::2] | codes[:, 1::2] << 4
    rows[:, ROPE_OFFSET:SCALE_OFFSET] = _encode_e4m3(rope32)
    rows[:, [SCALE_OFFSET + at for at in SCALE_BYTES]] = scales
    return rows


def dequantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`latent` float32 [T, 512] and `rope` float32 [T, 64] of uint8 `rows` [T, 352]."""
    if rows.ndim != 2 or rows.shape[1] != ROW_BYTES:
        raise ShapeMismatch("rows", f"[T, {ROW_BYTES}]", tuple(rows.shape))
    if rows.dtype != torch.uint8:
        raise DtypeMismatch("rows", "uint8", rows.dtype)
    e2m1, e4m3 = _tables(rows.device)
    packed = rows[:, :ROPE_OFFSET]
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).reshape(-1, BLOCKS, BLOCK_DIMS)
    scales = e4m3[rows[:, [SCALE_OFFSET + at for at in SCALE_BYTES]].int()]
    latent = e2m1[codes.int()] * scales[:, :, None]
    return latent.reshape(-1, LATENT_DIMS), e4m3[rows[:, ROPE_OFFSET:SCALE_OFFSET].int()]


def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    return (
        torch.from_numpy(e2m1_table()).to(device),
        torch.from_numpy(e4m3_table()).to(device),
    )


def _encode_e2m1(values: Tensor) -> Tensor:
    size = values.abs()
    code = (size > 0.25).to(torch.uint8)
    code += size >= 0.75
    code += size > 1.25
    code += size >= 1.75
    code += size > 2.5
    code += size >= 3.5
    code += size > 5.0
    code |= torch.signbit(values).to(torch.uint8) << 3
    return torch.where(torch.isnan(values), 7, code).to(torch.uint8)


def _encode_e4m3(values: Tensor) -> Tensor:
    magnitudes = _tables(values.device)[1][:E4M3_NAN]
    midpoints = (magnitudes[:-1] + magnitudes[1:]) / 2
    size = values.abs()
    code = torch.bucketize(size, midpoints)
    at = code.clamp(max=len(midpoints) - 1)
    code += (size == midpoints[at]) & (code % 2 == 1)
    code = code.clamp(max=E4M3_LARGEST).to(torch.uint8)
    code |= torch.signbit(values).to(torch.uint8) << 7
    return torch.where(torch.isnan(values), E4M3_NAN, code).to(torch.uint8)


def _wanted_scale(blocks: Tensor, largest_code: float) -> Tensor:
    amax = torch.where(torch.isnan(blocks), 0, blocks.abs()).amax(dim=-1)
    return torch.clamp(amax / largest_code, min=MIN_SCALE)


def _round_up_scales(blocks: Tensor) -> Tensor:
    wanted = _wanted_scale(blocks, MAX_CODE)
    nearest = _encode_e4m3(wanted)
    value = _tables(blocks.device)[1][nearest.int()]
    return nearest + ((value < wanted) & (nearest < E4M3_LARGEST)).to(torch.uint8)


def _best_scales(blocks: Tensor) -> Tensor:
    best = _round_up_scales(blocks)
    best_loss = _squared_error(blocks, best)
    for largest_code in (MAX_CODE, 4.0):
        scales = _encode_e4m3(_wanted_scale(blocks, largest_code))
        loss = _squared_error(blocks, scales)
        better = loss < best_loss
        best = torch.where(better, scales, best)
        best_loss = torch.where(better, loss, best_loss)
    return best


def _block_codes(blocks: Tensor, scales: Tensor) -> Tensor:
    reciprocal = 1 / _tables(blocks.device)[1][scales.int()]
    return _encode_e2m1(blocks * reciprocal[..., None])


def _squared_error(blocks: Tensor, scales: Tensor) -> Tensor:
    e2m1, e4m3 = _tables(blocks.device)
    codes = _block_codes(blocks, scales)
    error = blocks - e2m1[codes.int()] * e4m3[scales.int()][..., None]
    total = error * error
    while total.shape[-1] > 1:
        total = total[..., 0::2] + total[..., 1::2]
    return total[..., 0]


def _float32(name: str, values: Tensor, dims: int) -> Tensor:
    if values.ndim != 2 or values.shape[1] != dims:
        raise ShapeMismatch(name, f"[T, {dims}]", tuple(values.shape))
    if values.dtype not in FLOATS:
        raise DtypeMismatch(name, "bfloat16, float16 or float32", values.dtype)
    return values.float()
