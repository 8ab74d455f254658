"""Random decode steps for tests of attention: queries, a cache of rows, and awkward indices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prime_inference.kvcache.attention import sparse_decode
from prime_inference.kvcache.nvfp4 import dequantize, quantize


@dataclass(frozen=True)
class DecodeCase:
    """Arguments of a decode and what float64 makes of them."""

    query: npt.NDArray[np.float16]  # [B, H, 576]
    rows: npt.NDArray[np.uint8]  # [S, 352]
    indices: npt.NDArray[np.int32]  # [B, K]
    lengths: npt.NDArray[np.int32]  # [B]
    scale: float
    out: npt.NDArray[np.float64]
    lse: npt.NDArray[np.float64]


def decode_case(seed: int, *, batch: int, heads: int, slots: int, top_k: int) -> DecodeCase:
    """Random lengths, duplicates, invalid indices of both kinds; row 0 is poisoned with NaN and
    never selected, and an index past a token's length points at it."""
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((batch, heads, 576)).astype(np.float16)
    latent = rng.standard_normal((slots, 512)).astype(np.float32)
    latent *= np.exp2(rng.integers(-4, 3, (slots, 1))).astype(np.float32)
    rope = (rng.standard_normal((slots, 64)) * 3).astype(np.float32)
    rope[0] = np.nan
    rows = quantize(latent, rope)
    lengths = rng.integers(0, top_k + 1, batch).astype(np.int32)
    if batch > 1:
        lengths[0], lengths[1] = top_k, 0
    indices = rng.integers(1, slots, (batch, top_k)).astype(np.int32)
    indices[rng.random((batch, top_k)) < 0.1] = -1
    indices[rng.random((batch, top_k)) < 0.05] = slots + 3
    for b, length in enumerate(lengths):
        indices[b, length:] = 0
    if batch > 2:
        indices[2, : lengths[2]] = -1  # a token all of whose indices are invalid
    scale = 576**-0.5
    out, lse = sparse_decode(query, *dequantize(rows), indices, scale=scale, lengths=lengths)
    return DecodeCase(query, rows, indices, lengths, scale, out, lse)
