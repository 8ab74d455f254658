"""The shape of a model, read from the `config.json` that comes with its weights.

Known are the architectures of `FAMILIES`, and no others: a config says with different fields in
each what is counted here. Attention is latent (MLA), with or without a sparse indexer (DSA), or
of grouped queries; feed-forward layers are dense or mixtures of experts. A sliding window is
counted as whole attention: its cache is smaller than what is derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from prime_inference.domain.suggestions import did_you_mean
from prime_inference.fleet.errors import SpecMalformed
from prime_inference.kvcache.layout import INDEX_KEY_BYTES

Family = Literal["dense", "local experts", "sparse steps", "routed experts", "latent"]

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "LlamaForCausalLM": "dense",
        "MistralForCausalLM": "dense",
        "Qwen2ForCausalLM": "dense",
        "Qwen3ForCausalLM": "dense",
        "MixtralForCausalLM": "local experts",
        "GptOssForCausalLM": "local experts",
        "Qwen2MoeForCausalLM": "sparse steps",
        "Qwen3MoeForCausalLM": "sparse steps",
        "Glm4MoeForCausalLM": "routed experts",
        "DeepseekV2ForCausalLM": "latent",
        "DeepseekV3ForCausalLM": "latent",
        "DeepseekV32ForCausalLM": "latent",
        "GlmMoeDsaForCausalLM": "latent",
    }
)
"""By the first of a config's `architectures`: which of its fields say what is an expert. local
experts: `num_local_experts` as wide as `intermediate_size`, in every layer. sparse steps:
`num_experts`, with dense layers between, and one shared expert of its own width. routed experts:
`n_routed_experts` after the first dense layers, and shared ones as wide; latent: likewise, with
latent attention."""

Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Layers = Annotated[int, Meta(ge=1, le=10_000)]
Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of latent attention (MLA), in dimensions."""

    rank: int  # kv_lora_rank: the latent that is cached
    rope: int  # the rotary key cached beside it
    query_rank: int  # 0: queries are not projected down
    nope: int  # the part of a head's key without rotation


@dataclass(frozen=True, slots=True)
class Indexer:
    """DSA's selector: which earlier tokens a layer attends to."""

    heads: int
    head_dim: int
    top_k: int
    layers: int  # that have index keys of their own; the others reuse a selection


@dataclass(frozen=True, slots=True)
class Architecture:
    """Extents of a model. `draft_layers` predict further tokens (MTP) and have a cache too."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    vocabulary: int
    dense_layers: int
    dense_width: int
    context_tokens: int
    draft_layers: int = 0
    tied_embeddings: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_width: int = 0  # of what every token passes through beside its experts
    latent: Latent | None = None
    indexer: Indexer | None = None

    @property
    def cached_layers(self) -> int:
        """Layers that keep keys and values, those of the draft included."""
        return self.layers + self.draft_layers

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers


class _Config(msgspec.Struct):
    """The fields that are read; `config.json` has many more, which say nothing here."""

    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    vocab_size: Size
    intermediate_size: Size
    max_position_embeddings: Size
    architectures: list[str] = []
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    tie_word_embeddings: bool = False
    num_nextn_predict_layers: Number = 0
    num_local_experts: Number = 0
    num_experts: Number = 0
    n_routed_experts: Number | None = None
    num_experts_per_tok: Number | None = None
    n_shared_experts: Number | None = None
    moe_intermediate_size: Number = 0
    shared_expert_intermediate_size: Number = 0
    first_k_dense_replace: Number = 0
    moe_layer_freq: Number = 1
    decoder_sparse_step: Size = 1
    mlp_only_layers: list[int] = []
    kv_lora_rank: Size | None = None
    q_lora_rank: Number | None = None
    qk_rope_head_dim: Number = 0
    qk_nope_head_dim: Number = 0
    v_head_dim: Number = 0
    index_n_heads: Number = 0
    index_head_dim: Number = 0
    index_topk: Number = 0
    index_topk_freq: Size = 1
    index_skip_topk_offset: Number = 0
    indexer_types: list[str] | None = None


@dataclass(frozen=True, slots=True)
class _FeedForward:
    """What stands behind attention, over all layers."""

    dense_layers: int
    experts: int = 0
    each_token: int = 0
    width: int = 0
    shared_width: int = 0


def read_architecture(path: Path, name: str) -> Architecture:
    """The model of a `config.json`. Raises SpecMalformed."""
    try:
        return parse_architecture(path.read_bytes(), name)
    except OSError as error:
        raise SpecMalformed(f"{path} cannot be read: {error.strerror}.") from error


def parse_architecture(data: bytes, name: str) -> Architecture:
    """Raises SpecMalformed, also for an architecture that is not known."""
    try:
        config = msgspec.json.decode(data, type=_Config)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecMalformed(f"{name} is no model's config.json: {error}.") from error
    family = _family(config, name)
    latent = _latent(config)
    _require_whole(config, family, name)
    feed_forward = _feed_forward(config, family)
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    return Architecture(
        name=name,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        draft_layers=config.num_nextn_predict_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        # `head_dim` of GLM's checkpoints means something else where there is a latent
        key_dim=latent.nope + latent.rope if latent else head_dim,
        value_dim=config.v_head_dim if latent else head_dim,
        vocabulary=config.vocab_size,
        tied_embeddings=config.tie_word_embeddings,
        dense_layers=feed_forward.dense_layers,
        dense_width=config.intermediate_size,
        experts=feed_forward.experts,
        experts_per_token=feed_forward.each_token,
        expert_width=feed_forward.width,
        shared_width=feed_forward.shared_width,
        context_tokens=config.max_position_embeddings,
        latent=latent,
        indexer=_indexer(config),
    )


def _family(config: _Config, name: str) -> Family:
    given = config.architectures[0] if config.architectures else ""
    family = FAMILIES.get(given)
    if family is None:
        known = sorted(FAMILIES)
        raise SpecMalformed(
            f"{name}: nothing is known of the architecture {given[:80]!r}: what would be derived"
            f" would be wrong. Known are {', '.join(known)}.{did_you_mean(given, known)}"
        )
    return family


def _require_whole(config: _Config, family: Family, name: str) -> None:
    """Raises SpecMalformed where fields contradict the family, or each other."""
    experts = config.num_local_experts + config.num_experts + (config.n_routed_experts or 0)
    kv_heads = config.num_key_value_heads or config.num_attention_heads
    latent = [config.qk_rope_head_dim, config.qk_nope_head_dim, config.v_head_dim]
    used = config.num_experts_per_tok or 0
    wrong = {
        "it has experts, which are not counted": family == "dense" and experts,
        "it has no experts": family in ("local experts", "sparse steps") and not experts,
        "num_experts_per_tok is not within 1 and its experts": experts and not 1 <= used <= experts,
        "its experts have no width": family not in ("dense", "local experts")
        and experts
        and not config.moe_intermediate_size,
        "more layers are dense than there are": config.first_k_dense_replace
        > config.num_hidden_layers,
        "moe_layer_freq is not 1": config.moe_layer_freq != 1,
        "KV heads do not divide the heads": config.num_attention_heads % kv_heads,
        "heads have no dimension": config.hidden_size < config.num_attention_heads,
        "its attention is latent, or is not": (family == "latent") != bool(config.kv_lora_rank),
        "latent attention lacks dimensions": family == "latent" and not all(latent),
        f"index keys are not {INDEX_KEY_BYTES - 4} wide": config.index_topk
        and config.index_head_dim + 4 != INDEX_KEY_BYTES,
        "an indexer is of latent attention": config.index_topk and family != "latent",
    }
    reasons = [reason for reason, holds in wrong.items() if holds]
    if reasons:
        raise SpecMalformed(f"{name}: {'; '.join(reasons)}.")


def _feed_forward(config: _Config, family: Family) -> _FeedForward:
    layers, used = config.num_hidden_layers, config.num_experts_per_tok or 0
    width = config.moe_intermediate_size
    if family == "local experts":
        return _FeedForward(0, config.num_local_experts, used, config.intermediate_size)
    if family == "sparse steps":
        sparse = sum(
            layer not in config.mlp_only_layers and (layer + 1) % config.decoder_sparse_step == 0
            for layer in range(layers)
        )
        shared = config.shared_expert_intermediate_size
        return _FeedForward(layers - sparse, config.num_experts, used, width, shared)
    if experts := config.n_routed_experts:
        shared = (config.n_shared_experts or 0) * width
        return _FeedForward(config.first_k_dense_replace, experts, used, width, shared)
    return _FeedForward(layers)


def _latent(config: _Config) -> Latent | None:
    if config.kv_lora_rank is None:
        return None
    return Latent(
        rank=config.kv_lora_rank,
        rope=config.qk_rope_head_dim,
        query_rank=config.q_lora_rank or 0,
        nope=config.qk_nope_head_dim,
    )


def _indexer(config: _Config) -> Indexer | None:
    if not config.index_topk:
        return None
    return Indexer(
        heads=config.index_n_heads,
        head_dim=config.index_head_dim,
        top_k=config.index_topk,
        layers=_index_layers(config) + config.num_nextn_predict_layers,
    )


def _index_layers(config: _Config) -> int:
    """Layers with an indexer of their own: as listed, else the first ones and then every n-th."""
    if config.indexer_types is not None:
        return config.indexer_types.count("full")
    first, every = config.index_skip_topk_offset, config.index_topk_freq
    return sum(
        layer < first or (layer - first + 1) % every == 0
        for layer in range(config.num_hidden_layers)
    )
