"""How fast a replica can be at best: a roofline with one efficiency, no simulation.

Good enough to see that a topology cannot meet a target; not good enough to promise that it
does. Measured engines reach a share of it that differs by kernel and batch.
"""

from __future__ import annotations

import math

from prime_inference.fleet.architecture import Architecture
from prime_inference.fleet.formats import (
    WEIGHT_BITS,
    KvFormat,
    WeightFormat,
    index_bytes,
    row_bytes,
)
from prime_inference.fleet.hardware import Gpu
from prime_inference.fleet.parallelism import Parallelism, weight_bytes
from prime_inference.fleet.parameters import active

EFFICIENCY = 0.4
"""Of dense peak in prefill. FlashMLA's sparse kernel reaches 0.41 of an H800's peak, its dense
one 0.65; communication and quantization come on top. An assumption."""

BANDWIDTH_EFFICIENCY = 0.8  # of the data sheet, in reading weights and cache; an assumption


def flops_per_token(model: Architecture, context: int) -> float:
    """Of one prompt token behind `context` others: weights, index scores, attention."""
    flops = 2.0 * active(model)
    seen = context
    if model.indexer is not None:
        indexer = model.indexer
        flops += 2.0 * indexer.layers * indexer.heads * indexer.head_dim * context
        seen = min(context, indexer.top_k)
    if model.latent is not None:
        width = 2 * model.latent.rank + model.latent.rope  # scores over 576, values over 512
    else:
        width = model.key_dim + model.value_dim
    return flops + 2.0 * model.layers * model.heads * seen * width


def step_seconds(
    model: Architecture,
    gpu: Gpu,
    parallel: Parallelism,
    routed: WeightFormat,
    tokens: int,
    context: int,
) -> float:
    """One prefill step of `tokens` (of each GPU under DEP)."""
    # activations are quantized like the experts, where most of the products are
    peak = gpu.flops(WEIGHT_BITS[routed]) * EFFICIENCY
    return tokens * flops_per_token(model, context) / (peak * parallel.tensor)


def first_token_seconds(step: float, turn_tokens: int, tokens_per_step: int) -> float:
    """Of a turn that meets no queue: half a step until the running one ends, then its own."""
    return step / 2 + math.ceil(turn_tokens / tokens_per_step) * step


def decode_seconds(
    model: Architecture,
    gpu: Gpu,
    parallel: Parallelism,
    *,
    routed: WeightFormat,
    other: WeightFormat,
    kv: KvFormat,
    sequences: int,
    context: int,
) -> float:
    """One decode step at `sequences` (of each GPU under DEP): weights and cache read once.

    With dozens of sequences nearly every expert is hit, so all weights are counted.
    """
    rows = context if model.indexer is None else min(context, model.indexer.top_k)
    cached = rows * model.layers * row_bytes(model, kv) + context * index_bytes(model)
    if model.latent is None:
        cached //= min(parallel.tensor, model.kv_heads)
    weights = weight_bytes(model, parallel, routed=routed, other=other)
    return (weights + sequences * cached) / (gpu.memory_bandwidth * BANDWIDTH_EFFICIENCY)
