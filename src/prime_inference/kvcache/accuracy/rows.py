"""SQNR and attention-output error of each arm on synthetic latents.

The latents are shaped as published statistics of MLA checkpoints are: a maximum between 0.02
and 5.2 depending on the layer, channels of unequal size with a few outliers, and tails either
Gaussian or Student's t with 4 degrees of freedom.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from prime_inference.kvcache.accuracy.arms import ARMS, bf16
from prime_inference.kvcache.attention import relative_l2, sparse_decode
from prime_inference.kvcache.minifloat import Floats
from prime_inference.kvcache.row import LATENT_DIMS, ROPE_DIMS

MAGNITUDES: Final = (0.02, 0.1, 0.5, 1.0, 5.2)  # max |latent| of a layer; the ends are published
Tail = Literal["gauss", "t4"]
TAILS: Final[tuple[Tail, ...]] = ("gauss", "t4")
TOKENS: Final = 2048  # index_topk: what one decode step attends to
HEADS: Final = 16
# Score deviation in nats: softmax over 2048 rows then puts about a third of its weight on ten
# rows, so that single rows matter, as in retrieval heads.
SHARPNESS: Final = 3.0


@dataclass(frozen=True, slots=True)
class RowQuality:
    """One arm on one layer's latents. `sqnr_db` is of the latent; `output_error` is the
    relative L2 error of the attention output against float64 over the unquantized values."""

    tail: Tail
    max_abs: float
    arm: str
    bytes_per_token: int
    sqnr_db: float
    output_error: float

    def as_json(self) -> dict[str, object]:
        """For a JSON document, which has no infinity."""
        return asdict(self) | {"sqnr_db": self.sqnr_db if isfinite(self.sqnr_db) else None}


def synthetic_latents(
    rng: np.random.Generator, tokens: int, max_abs: float, tail: Tail
) -> tuple[Floats, Floats]:
    """`latent` [T, 512] with maximum `max_abs`, and `rope` [T, 64] of unit size, in bf16."""
    channel = channel_sizes(rng)
    if tail == "gauss":
        values = rng.standard_normal((tokens, LATENT_DIMS))
    else:
        values = rng.standard_t(4, (tokens, LATENT_DIMS))
    latent = values * channel
    latent *= max_abs / np.abs(latent).max()
    rope = rng.standard_normal((tokens, ROPE_DIMS))
    return bf16(latent.astype(np.float32)), bf16(rope.astype(np.float32))


def channel_sizes(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """How large each of the 512 channels of a layer's latent is: unequal, with 8 outliers."""
    sizes = np.exp(0.5 * rng.standard_normal(LATENT_DIMS))
    sizes[rng.choice(LATENT_DIMS, 8, replace=False)] *= 6
    return sizes


def sqnr_db(exact: Floats, kept: Floats) -> float:
    """10 log10 of signal power over error power; infinite without an error."""
    wide = exact.astype(np.float64)
    error = float(np.sum((wide - kept) ** 2))
    return 10 * float(np.log10(np.sum(wide**2) / error)) if error else float("inf")


def evaluate_rows(seed: int = 0, tokens: int = TOKENS) -> list[RowQuality]:
    """Every arm at every magnitude and tail, from the same seed."""
    results = []
    for tail in TAILS:
        for max_abs in MAGNITUDES:
            rng = np.random.default_rng(seed)
            latent, rope = synthetic_latents(rng, tokens, max_abs, tail)
            results += _evaluate_layer(rng, latent, rope, tail, max_abs)
    return results


def _evaluate_layer(
    rng: np.random.Generator, latent: Floats, rope: Floats, tail: Tail, max_abs: float
) -> list[RowQuality]:
    query = rng.standard_normal((1, HEADS, LATENT_DIMS + ROPE_DIMS))
    key = np.concatenate([latent, rope], axis=1).astype(np.float64)
    query[..., :LATENT_DIMS] /= np.std(query[0] @ key.T - query[0, :, LATENT_DIMS:] @ rope.T)
    query[..., LATENT_DIMS:] /= np.std(query[0, :, LATENT_DIMS:] @ rope.T)
    scale = SHARPNESS / float(np.std(query[0] @ key.T))
    every = np.arange(len(latent))[None, :]
    exact, _ = sparse_decode(query, latent, rope, every, scale=scale)
    results = []
    for arm in ARMS:
        kept, kept_rope = arm.keep(latent, rope)
        out, _ = sparse_decode(query, kept, kept_rope, every, scale=scale)
        results.append(
            RowQuality(
                tail,
                max_abs,
                arm.name,
                arm.bytes_per_token,
                sqnr_db(latent, kept),
                relative_l2(out, exact),
            )
        )
    return results
