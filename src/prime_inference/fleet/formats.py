"""Number formats of weights and of cached rows, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from prime_inference.fleet.architecture import Architecture
from prime_inference.kvcache.layout import INDEX_KEY_BYTES

WeightFormat = Literal["bf16", "fp8", "nvfp4"]
KvFormat = Literal["bf16", "fp8", "fp8_ds_mla", "nvfp4"]

WEIGHT_BYTES: Final[Mapping[WeightFormat, float]] = MappingProxyType(
    {
        "bf16": 2.0,
        "fp8": 1.0 + 4 / 128**2,  # a float32 scale for a block of 128 x 128
        "nvfp4": 0.5 + 1 / 16,  # an e4m3 scale for a block of 16
    }
)
WEIGHT_BITS: Final[Mapping[WeightFormat, int]] = MappingProxyType(
    {"bf16": 16, "fp8": 8, "nvfp4": 4}
)


def latent_row_bytes(rank: int, rope: int, kv: KvFormat) -> int:
    """One token of one layer in latent attention.

    bf16: both parts as they are. fp8: one byte each, no scale. fp8_ds_mla, vLLM's row: the
    latent in fp8 with a float32 scale for 128, the rotary key in bf16. nvfp4: two latent
    codes in a byte, an e4m3 scale for 16, the rotary key in e4m3 (docs/kv-nvfp4.md).
    """
    match kv:
        case "bf16":
            return 2 * (rank + rope)
        case "fp8":
            return rank + rope
        case "fp8_ds_mla":
            return rank + 4 * (rank // 128) + 2 * rope
        case "nvfp4":
            return rank // 2 + rope + rank // 16


def row_bytes(model: Architecture, kv: KvFormat) -> int:
    """One token of one layer, all heads: the C (times H) of a layout."""
    if model.latent:
        return latent_row_bytes(model.latent.rank, model.latent.rope, kv)
    each = {"bf16": 16, "fp8": 8, "fp8_ds_mla": 8, "nvfp4": 4.5}[kv]  # bits
    return int(model.kv_heads * (model.key_dim + model.value_dim) * each) // 8


def index_bytes(model: Architecture) -> int:
    """Index keys of one token in all layers that keep them."""
    if model.indexer is None:
        return 0
    assert model.indexer.head_dim + 4 == INDEX_KEY_BYTES, "e4m3 and one float32 scale"
    return model.indexer.layers * INDEX_KEY_BYTES


def kv_bytes_per_token(model: Architecture, kv: KvFormat) -> int:
    """Everything that is cached for one token, in all layers, unsharded."""
    return model.cached_layers * row_bytes(model, kv) + index_bytes(model)
