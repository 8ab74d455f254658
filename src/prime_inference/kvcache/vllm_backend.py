"""The backend that vllm_plugin.py registers; importing it needs vLLM 0.33.0.

A subclass of FLASHMLA_SPARSE, under the same name, since vLLM decides by that name how a
cache dtype is spelled and laid out. For `nvfp4_ds_mla` on SM90 it writes rows with our writer
and attends with our kernels, for prefill tokens as well; any other dtype and any other GPU
goes to the class it extends.
"""

from __future__ import annotations

from typing import Any, Final

from prime_inference.kvcache.vllm_plugin import check_vllm, installed_vllm

check_vllm(installed_vllm())  # before any import of vLLM, which would fail in words of its own

# ruff: noqa: E402
import torch
from torch import Tensor
from vllm.platforms import current_platform
from vllm.v1.attention.backends.mla.flashmla_sparse import (
    FlashMLASparseBackend,
    FlashMLASparseImpl,
    FlashMLASparseMetadataBuilder,
)

from prime_inference.kvcache.errors import KvCacheError
from prime_inference.kvcache.kernels.triton_rows import write_rows
from prime_inference.kvcache.serving import attend, global_slots

ROW_DTYPE: Final = "nvfp4_ds_mla"
ROW_HEAD_SIZE: Final = 576


class ParallelismUnsupported(KvCacheError):
    """A way to split the cache that the NVFP4 path does not handle."""


def ours(kv_cache_dtype: str | None) -> bool:
    """Whether this dtype on this GPU is served here rather than by vLLM."""
    return kv_cache_dtype == ROW_DTYPE and current_platform.is_device_capability_family(90)


class Nvfp4HopperBuilder(FlashMLASparseMetadataBuilder):
    """Builds no FlashMLA schedule where FlashMLA does not run."""

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if ours(vllm_config.cache_config.cache_dtype):
            self.use_fp8_kv_cache = False


class Nvfp4HopperImpl(FlashMLASparseImpl):
    """Writes and reads 352-byte rows on SM90."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not ours(self.kv_cache_dtype):
            return
        if getattr(self, "dcp_world_size", 1) > 1:
            raise ParallelismUnsupported(
                f"{ROW_DTYPE} on Hopper does not support decode context parallelism"
            )
        # Those paths gather the cache with a kernel that traps off SM100.
        self.supports_dense_mha_prefill = False
        self.masked_mha_available = False

    def do_kv_cache_update(
        self,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str,
        k_scale: Tensor,
        skip_scale: bool = False,
    ) -> None:
        if not ours(kv_cache_dtype):
            super().do_kv_cache_update(
                kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale, skip_scale
            )
        elif kv_cache.numel():
            slots = slot_mapping.flatten()
            tokens = len(slots)  # the inputs may be padded beyond it
            rope = k_pe.squeeze(1)[:tokens]
            cache = kv_cache.view(torch.uint8)
            write_rows(kv_c_normed[:tokens], rope, cache, slots, writer="four_over_six")

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[Tensor, Tensor | None]:
        if not ours(self.kv_cache_dtype):
            result: tuple[Tensor, Tensor | None] = super().forward_mqa(
                q, kv_c_and_k_pe_cache, attn_metadata, layer
            )
            return result
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        tokens = len(query)
        slots = global_slots(
            self.topk_indices_buffer[:tokens],
            attn_metadata.req_id_per_token[:tokens],
            attn_metadata.block_table,
            attn_metadata.block_size,
        )
        out, lse = attend(query, kv_c_and_k_pe_cache.view(torch.uint8), slots, self.softmax_scale)
        return out, lse if self.need_to_return_lse_for_decode else None


class Nvfp4HopperBackend(FlashMLASparseBackend):
    """FLASHMLA_SPARSE with NVFP4 rows on Hopper."""

    @staticmethod
    def get_builder_cls() -> type[FlashMLASparseMetadataBuilder]:
        return Nvfp4HopperBuilder

    @staticmethod
    def get_impl_cls() -> type[FlashMLASparseImpl]:
        return Nvfp4HopperImpl

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: Any, kv_cache_dtype: Any, *rest: Any, **named: Any
    ) -> str | None:
        """None, or why the combination is not served."""
        if ours(kv_cache_dtype):
            if head_size != ROW_HEAD_SIZE:
                return f"{ROW_DTYPE} rows have head size {ROW_HEAD_SIZE}, not {head_size}"
            return None
        reason: str | None = super().supports_combination(
            head_size, dtype, kv_cache_dtype, *rest, **named
        )
        return reason
