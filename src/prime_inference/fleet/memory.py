"""How much cache fits beside a model's weights."""

from __future__ import annotations

from dataclasses import dataclass

from prime_inference.fleet.architecture import Architecture
from prime_inference.fleet.formats import KvFormat, WeightFormat
from prime_inference.fleet.hardware import Gpu
from prime_inference.fleet.parallelism import Parallelism, gpu_kv_bytes, weight_bytes

CONTEXT_BYTES = 2 << 30
"""CUDA context, NCCL's buffers and CUDA graphs: 1.5 to 3 GiB in vLLM's start-up logs."""

ACTIVATION_WIDTHS = 24
"""Bytes of activations for a token and hidden dimension: the residual, what a layer and a
dispatch of experts to others hold at a time, in bf16. An assumption; vLLM measures it at start."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """One GPU, in bytes."""

    total: int
    unused: int  # left alone: 1 - memory_fraction
    weights: int
    activations: int
    cache: int  # what is left; negative where the weights do not fit
    kv_bytes_per_token: int

    @property
    def cached_tokens(self) -> int:
        return max(0, self.cache) // self.kv_bytes_per_token


def gpu_memory(
    model: Architecture,
    gpu: Gpu,
    parallel: Parallelism,
    *,
    routed: WeightFormat,
    other: WeightFormat,
    kv: KvFormat,
    memory_fraction: float,
    tokens_per_step: int,
) -> GpuMemory:
    """What one GPU of a replica holds. `tokens_per_step` is the prefill budget of a step."""
    usable = int(gpu.memory_bytes * memory_fraction)
    weights = weight_bytes(model, parallel, routed=routed, other=other)
    fixed = CONTEXT_BYTES if gpu.capability else 0
    activations = fixed + tokens_per_step * model.hidden * ACTIVATION_WIDTHS
    return GpuMemory(
        total=gpu.memory_bytes,
        unused=gpu.memory_bytes - usable,
        weights=weights,
        activations=activations,
        cache=usable - weights - activations,
        kv_bytes_per_token=gpu_kv_bytes(model, parallel, kv),
    )


def replica_tokens(memory: GpuMemory, parallel: Parallelism) -> int:
    """Different tokens that one replica's GPUs keep between them."""
    return memory.cached_tokens * parallel.data
