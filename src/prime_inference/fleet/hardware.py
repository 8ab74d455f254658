"""What GPUs can hold, read and compute.

Memory is what `nvidia-smi` reports, in MiB; bandwidth and dense compute are the vendor's
data sheets (H100, H200, HGX B200, GB200 NVL72). `cpu` stands for a machine without a GPU:
the mocker, the local engine, vLLM's CPU build.

Labels are those of NVIDIA's GPU feature discovery, the driver's name with dashes for spaces, for
the boards that the figures are of: SXM modules and GB200's. Other boards (H100 PCIe, H100 NVL,
H200 NVL) have other memory or links; shared GPUs and slices of one have suffixes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a kind, and how many of it share a node and an NVLink domain."""

    name: str
    capability: int  # CUDA compute capability, 90 for sm_90; 0 without CUDA
    memory_bytes: int
    memory_bandwidth: float  # bytes a second
    bf16_flops: float  # dense, a second
    per_node: int
    nvlink_domain: int
    node_memory_bytes: int  # host DRAM of a node, the usual fitting
    products: tuple[str, ...] = ()  # node label nvidia.com/gpu.product, whole; none: not known

    def flops(self, bits: int) -> float:
        """Dense multiply-adds times two a second, at operands of 16, 8 or 4 bits."""
        if bits <= 4 and self.capability >= 100:
            return self.bf16_flops * 4
        if bits <= 8 and self.capability >= 89:
            return self.bf16_flops * 2
        return self.bf16_flops


GPUS: Final[Mapping[str, Gpu]] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            Gpu("h100", 90, 81_559 * MIB, 3.35e12, 989e12, 8, 8, 2048 * GIB,
                ("NVIDIA-H100-80GB-HBM3",)),
            Gpu("h200", 90, 143_771 * MIB, 4.8e12, 989e12, 8, 8, 2048 * GIB, ("NVIDIA-H200",)),
            Gpu("b200", 100, 183_359 * MIB, 8.0e12, 2250e12, 8, 8, 2048 * GIB, ("NVIDIA-B200",)),
            # two Grace CPUs of 480 GB LPDDR5X stand beside the four GPUs of a tray
            Gpu("gb200", 100, 189_471 * MIB, 8.0e12, 2500e12, 4, 72, 894 * GIB, ("NVIDIA-GB200",)),
            Gpu("cpu", 0, 4 * GIB, 2e10, 1e11, 8, 8, 16 * GIB),
        )
    }
)  # fmt: skip
