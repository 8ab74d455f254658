"""The shape of a model, read from the `config.json` that comes with its weights.

Two families are known: latent attention (MLA: DeepSeek V3, GLM 5), with or without a sparse
indexer (DSA), and grouped-query attention (Llama, Qwen). Feed-forward layers are dense or
mixtures of experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from prime_inference.fleet.errors import SpecMalformed


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of latent attention (MLA), in dimensions."""

    rank: int  # kv_lora_rank: the latent that is cached
    rope: int  # the rotary key cached beside it
    query_rank: int
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
    shared_experts: int = 0
    expert_width: int = 0
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

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    intermediate_size: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    num_nextn_predict_layers: int = 0
    n_routed_experts: int | None = None
    num_experts: int | None = None
    num_experts_per_tok: int = 0
    n_shared_experts: int | None = None
    moe_intermediate_size: int = 0
    first_k_dense_replace: int = 0
    kv_lora_rank: int | None = None
    q_lora_rank: int | None = None
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    index_n_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    index_topk_freq: int = 1
    index_skip_topk_offset: int = 0
    indexer_types: list[str] | None = None


def read_architecture(path: Path, name: str) -> Architecture:
    """The model of a `config.json`. Raises SpecMalformed."""
    try:
        return parse_architecture(path.read_bytes(), name)
    except OSError as error:
        raise SpecMalformed(f"{path} cannot be read: {error.strerror}.") from error
    except msgspec.DecodeError as error:
        raise SpecMalformed(f"{path} is no model's config.json: {error}.") from error


def parse_architecture(data: bytes, name: str) -> Architecture:
    """Raises msgspec.DecodeError."""
    config = msgspec.json.decode(data, type=_Config)
    experts = config.n_routed_experts or config.num_experts or 0
    latent = _latent(config)
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
        dense_layers=config.first_k_dense_replace if experts else config.num_hidden_layers,
        dense_width=config.intermediate_size,
        experts=experts,
        experts_per_token=config.num_experts_per_tok if experts else 0,
        shared_experts=config.n_shared_experts or 0,
        expert_width=config.moe_intermediate_size,
        context_tokens=config.max_position_embeddings,
        latent=latent,
        indexer=_indexer(config),
    )


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
