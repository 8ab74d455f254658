"""Sparse MLA decode in float64 with numpy: what every kernel is measured against.

For query token b and head h, over the selected rows i (absorbed form: the latent is both
key and value):

    score = scale * (q_latent . latent_i + q_rope . rope_i)
    out   = sum_i softmax(score)_i latent_i         lse = ln sum_i exp(score_i)

An index outside of the cache stands for no row. A duplicate counts twice. Where no row is
selected, out is 0 and lse is +inf, as in FlashMLA. A NaN in a selected row or in the query
makes out and lse NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prime_inference.kvcache.errors import ShapeMismatch
from prime_inference.kvcache.row import LATENT_DIMS, ROPE_DIMS

Float64 = npt.NDArray[np.float64]

QUERY_DIMS = LATENT_DIMS + ROPE_DIMS


def sparse_decode(
    query: npt.NDArray[np.floating],
    latent: npt.NDArray[np.floating],
    rope: npt.NDArray[np.floating],
    indices: npt.NDArray[np.integer],
    *,
    scale: float,
    lengths: npt.NDArray[np.integer] | None = None,
) -> tuple[Float64, Float64]:
    """`out` [B, H, 512] and `lse` [B, H] of `query` [B, H, 576] over `indices` [B, K].

    `latent` [S, 512] and `rope` [S, 64] hold a row per slot. `lengths` [B], where given, says
    how many of a token's indices count, held to 0..K; later ones are not looked at.
    """
    if query.ndim != 3 or query.shape[2] != QUERY_DIMS:
        raise ShapeMismatch("query", f"[B, H, {QUERY_DIMS}]", query.shape)
    if indices.ndim != 2 or len(indices) != len(query):
        raise ShapeMismatch("indices", f"[{len(query)}, K]", indices.shape)
    if lengths is not None and lengths.shape != (len(query),):
        raise ShapeMismatch("lengths", f"[{len(query)}]", lengths.shape)
    key = np.concatenate([latent, rope], axis=1).astype(np.float64)
    out = np.zeros((*query.shape[:2], LATENT_DIMS))
    lse = np.full(query.shape[:2], np.inf)
    for b, chosen in enumerate(indices):
        if lengths is not None:
            chosen = chosen[: max(0, int(lengths[b]))]
        rows = key[chosen[(chosen >= 0) & (chosen < len(key))]]
        if len(rows):
            out[b], lse[b] = _attend(query[b].astype(np.float64), rows, scale)
    return out, lse


def relative_l2(actual: npt.NDArray[np.floating], expected: npt.NDArray[np.floating]) -> float:
    """||actual - expected|| / ||expected||, and 0 where both are zero."""
    error = float(np.linalg.norm(actual.astype(np.float64) - expected))
    return error / float(np.linalg.norm(expected)) if error else 0.0


def _attend(query: Float64, rows: Float64, scale: float) -> tuple[Float64, Float64]:
    scores = scale * (query @ rows.T)
    largest = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True)
    return (weights / total) @ rows[:, :LATENT_DIMS], (np.log(total) + largest)[:, 0]
