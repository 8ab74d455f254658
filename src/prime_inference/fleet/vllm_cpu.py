"""What vLLM's CPU build is told besides: everything in which it differs from a GPU's.

Here it is for trying the whole path without a GPU: real engine, real transfers, small models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from prime_inference.fleet.architecture import Architecture
from prime_inference.fleet.hardware import Gpu
from prime_inference.fleet.spec import KvSpec
from prime_inference.kvcache.layout import Layout


def reasons_against(kv: KvSpec, model: Architecture) -> Iterator[str]:
    """What vLLM 0.31's CPU build cannot do."""
    if kv.layout is not Layout.LBHNC:
        yield f"kv.layout {kv.layout.value}: vLLM's kernels on CPUs know LBHNC only"
    if model.indexer is not None:
        yield f"{model.name} has sparse attention, for which vLLM has no kernels on CPUs"
    if kv.host_tier is not None:
        yield "kv.host_tier: vLLM's connector to Mooncake waits for CUDA's events"


def memory_arguments(gpu: Gpu, fraction: float) -> list[str]:
    """How much a worker may take, on any hardware.

    On CPUs vLLM takes its fraction of the whole machine, however many workers share it. So the
    cache is told in bytes there: the fraction of what `hardware` counts for one worker.
    """
    if gpu.capability:
        return ["--gpu-memory-utilization", str(fraction)]
    return ["--kv-cache-memory-bytes", str(int(gpu.memory_bytes * fraction))]


def engine_arguments(gpu: Gpu) -> list[str]:
    """Of the CPU build alone.

    Compiling takes minutes and a C++ compiler: too much for a small model. In float32, to which
    vLLM would prefer bf16, answers can be compared: they do not depend on how a prompt was cut
    into steps. A plan counts bf16 all the same.
    """
    return [] if gpu.capability else ["--enforce-eager", "--dtype", "float32"]


LOCAL_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        # workers of one machine share its cores, and vLLM would bind each to the same ones
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        # the engine core does the work itself: a process for it, which vLLM would start to bind
        # its threads, costs 8 s of CPU at the start and 500 MB
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        # KV moves over loopback: UCX would look for the fastest card and announce its address
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": "lo",
    }
)
"""Of workers that are child processes of one machine."""
