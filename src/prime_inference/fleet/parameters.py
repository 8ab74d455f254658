"""How many parameters a model has, by what they are for: what is sharded differs."""

from __future__ import annotations

from dataclasses import dataclass

from prime_inference.fleet.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of weights. `routed` are the experts of which each token uses a few."""

    attention: int
    dense: int  # dense feed-forward layers, shared experts, routers, draft projections
    routed: int
    embeddings: int

    @property
    def total(self) -> int:
        return self.attention + self.dense + self.routed + self.embeddings

    @property
    def unrouted(self) -> int:
        """What every token passes through."""
        return self.total - self.routed


def count(model: Architecture, *, draft: bool = True) -> Parameters:
    """Count weights, with those of draft layers or without. Norms and biases are left out."""
    layers = model.cached_layers if draft else model.layers
    drafts = layers - model.layers
    expert = 3 * model.hidden * model.expert_width
    expert_layers = model.expert_layers + (drafts if model.experts else 0)
    dense_layers = model.dense_layers + (0 if model.experts else drafts)
    dense = dense_layers * 3 * model.hidden * model.dense_width
    dense += expert_layers * model.hidden * (3 * model.shared_width + model.experts)
    dense += drafts * 2 * model.hidden**2  # joins the token's embedding to the last state
    return Parameters(
        attention=layers * _attention(model) + _indexers(model, draft=draft),
        dense=dense,
        routed=expert_layers * model.experts * expert,
        embeddings=model.vocabulary * model.hidden * (1 if model.tied_embeddings else 2),
    )


def active(model: Architecture) -> int:
    """Weights that one token is multiplied with: all but the experts it does not use."""
    counted = count(model, draft=False)
    embedding = model.vocabulary * model.hidden  # a look-up, not a product
    if not model.experts:
        return counted.total - (0 if model.tied_embeddings else embedding)
    used = counted.routed * model.experts_per_token // model.experts
    return counted.unrouted + used - (0 if model.tied_embeddings else embedding)


def _attention(model: Architecture) -> int:
    if model.latent is None:
        keys = model.kv_heads * (model.key_dim + model.value_dim)
        outer = model.heads * (model.key_dim + model.value_dim)
        return model.hidden * (keys + outer)
    latent, heads = model.latent, model.heads
    down_to = latent.query_rank or model.hidden
    query = model.hidden * latent.query_rank + down_to * heads * model.key_dim
    down = model.hidden * (latent.rank + latent.rope)
    up = latent.rank * heads * (latent.nope + model.value_dim)
    return query + down + up + heads * model.value_dim * model.hidden


def _indexers(model: Architecture, *, draft: bool) -> int:
    if model.indexer is None or model.latent is None:
        return 0
    layers = model.indexer.layers - (0 if draft else model.draft_layers)
    queries = model.latent.query_rank * model.indexer.heads * model.indexer.head_dim
    keys = model.hidden * model.indexer.head_dim
    return layers * (queries + keys + model.hidden * model.indexer.heads)
