"""The ways to keep a latent and a rope key that are compared: each encodes and decodes.

BF16 and FP8 are always there. FP8 is vLLM's `fp8_ds_mla`: e4m3 with a float32 scale for each
128 latent dimensions, the rope key in BF16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from prime_inference.kvcache.minifloat import Floats, e4m3_table, encode_e4m3
from prime_inference.kvcache.nvfp4 import dequantize, quantize
from prime_inference.kvcache.outer_scale import exponent_from_latents
from prime_inference.kvcache.row import LATENT_DIMS, MAX_SCALE, Writer

FP8_GROUP: Final = 128  # latent dimensions per scale in fp8_ds_mla
TINY: Final = np.float32(1e-10)  # keeps the scale of an all-zero group finite

Keep = Callable[[Floats, Floats], tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True)
class Arm:
    """A cache format: `keep` gives what a reader gets back for (latent, rope)."""

    name: str
    bytes_per_token: int
    keep: Keep


def bf16(values: Floats) -> Floats:
    """Rounded to the nearest bfloat16, ties to even; finite values only."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def _keep_bf16(latent: Floats, rope: Floats) -> tuple[Floats, Floats]:
    return bf16(latent), bf16(rope)


def _keep_fp8(latent: Floats, rope: Floats) -> tuple[Floats, Floats]:
    groups = latent.reshape(-1, LATENT_DIMS // FP8_GROUP, FP8_GROUP)
    amax = np.abs(groups).max(axis=2, keepdims=True)
    scale = np.maximum(amax / np.float32(MAX_SCALE), TINY)
    decoded = e4m3_table()[encode_e4m3(groups / scale)] * scale
    return decoded.reshape(-1, LATENT_DIMS), bf16(rope)


def _keep_nvfp4(
    latent: Floats, rope: Floats, *, writer: Writer, folded: bool
) -> tuple[Floats, Floats]:
    exponent = exponent_from_latents(latent) if folded else 0
    decoded, kept_rope = dequantize(quantize(np.ldexp(latent, exponent), rope, writer=writer))
    return np.ldexp(decoded, -exponent), kept_rope


ARMS: Final[tuple[Arm, ...]] = (
    Arm("bf16", 1152, _keep_bf16),
    Arm("fp8", 656, _keep_fp8),
    Arm("nvfp4", 352, partial(_keep_nvfp4, writer="round_up", folded=False)),
    Arm("nvfp4+4/6", 352, partial(_keep_nvfp4, writer="four_over_six", folded=False)),
    Arm("nvfp4+fold", 352, partial(_keep_nvfp4, writer="round_up", folded=True)),
    Arm("nvfp4+fold+4/6", 352, partial(_keep_nvfp4, writer="four_over_six", folded=True)),
)
