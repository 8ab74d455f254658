"""What it takes to move a context's KV from a prefill to a decode worker, by layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from prime_inference.fleet.architecture import Architecture
from prime_inference.fleet.formats import row_bytes
from prime_inference.fleet.spec import Spec
from prime_inference.kvcache.layout import (
    INDEX_KEY_BYTES,
    CacheShape,
    Copy,
    Layout,
    PackedBlock,
    copies,
    packed_copies,
    region_major_copies,
    transfer_seconds,
)

POST_SECONDS: Final[Mapping[str, float]] = MappingProxyType(
    {"nvlink (cuda_ipc)": 4.067e-6, "infiniband (rc_x)": 0.204e-6}
)
"""Posting one descriptor, as measured on GB200 in vLLM issue 55434."""

LINK_BYTES_PER_SECOND: Final[Mapping[str, float]] = MappingProxyType(
    {"nvlink (cuda_ipc)": 900e9, "infiniband (rc_x)": 50e9}
)
"""NVLink 5 in one direction, and one 400 Gb/s port: data sheets, not measurements."""

SAMPLE_BLOCKS = 8  # descriptors of scattered blocks are counted on so many and scaled up


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """One context over one link. Blocks are taken to be scattered, the worst case."""

    layout: str
    descriptors: int
    descriptor_bytes: int  # the mean
    nbytes: int
    seconds: dict[str, float]  # by link: posting, then the bytes


def transfers(spec: Spec, model: Architecture) -> Iterator[TransferPlan]:
    """The SLO's context in every layout."""
    tokens = spec.slo.history_tokens + spec.slo.turn_tokens
    blocks = math.ceil(tokens / spec.kv.block_tokens)
    for layout in Layout:
        sample = _scattered(spec, model, layout)
        descriptors = len(sample) * blocks // SAMPLE_BLOCKS
        nbytes = sum(piece.nbytes for piece in sample) * blocks // SAMPLE_BLOCKS
        yield TransferPlan(
            layout.value,
            descriptors,
            nbytes // descriptors,
            nbytes,
            {
                link: transfer_seconds(
                    descriptors,
                    nbytes,
                    post_seconds=post,
                    bytes_per_second=LINK_BYTES_PER_SECOND[link],
                )
                for link, post in POST_SECONDS.items()
            },
        )


def _scattered(spec: Spec, model: Architecture, layout: Layout) -> list[Copy]:
    """Descriptors of `SAMPLE_BLOCKS` blocks, no two of them neighbours on both sides."""
    count = 2 * SAMPLE_BLOCKS
    pairs = [(2 * i, count - 1 - 2 * i) for i in range(SAMPLE_BLOCKS)]
    size = spec.kv.block_tokens
    row = row_bytes(model, spec.kv.format)
    if model.latent is None:
        heads = model.kv_heads
        shape = CacheShape(model.cached_layers, count, size, row // heads, heads)
        return copies(shape, layout, layout, pairs)
    pages = [size * row] * model.cached_layers
    pages += [size * INDEX_KEY_BYTES] * (model.indexer.layers if model.indexer else 0)
    if layout.block_outermost:
        return packed_copies(PackedBlock(tuple(pages)), pairs)
    return region_major_copies(pages, count, pairs)
