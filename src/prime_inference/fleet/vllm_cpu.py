"""What vLLM's CPU build is told besides: everything in which it differs from a GPU's.

Here it is for trying the whole path without a GPU: real engine, real transfers, small models.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from prime_inference.fleet.hardware import Gpu


def memory_arguments(gpu: Gpu, fraction: float) -> list[str]:
    """How much a worker may take, on any hardware.

    On CPUs vLLM takes its fraction of the whole machine, however many workers share it. So the
    cache is told in bytes there: the fraction of what `hardware` counts for one worker.
    """
    if gpu.capability:
        return ["--gpu-memory-utilization", str(fraction)]
    return ["--kv-cache-memory-bytes", str(int(gpu.memory_bytes * fraction))]


def engine_arguments(gpu: Gpu) -> list[str]:
    """Of the CPU build: compiling takes minutes and a C++ compiler, which a small model is not worth.

    float32, since answers can then be compared: they do not depend on how a prompt was cut into
    steps. vLLM would cut a model of float32 down to bf16. A plan counts bf16 all the same.
    """
    return [] if gpu.capability else ["--enforce-eager", "--dtype", "float32"]


LOCAL_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        # workers of one machine share its cores, and vLLM would bind each to the same ones
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        # KV moves over loopback: UCX would look for the fastest card and announce its address
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": "lo",
    }
)
"""Of workers that are child processes of one machine."""
