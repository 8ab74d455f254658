"""Where blocks of a KV cache lie in memory, and the descriptors that move them.

A cache has five axes: L layers, B blocks, H heads (1 for MLA), N tokens of a block, C bytes of
a token's row. A layout is their order from the outermost to the innermost, named as vLLM
names it (vllm/v1/kv_cache_layout.py): LBHNC keeps a region for each layer, BLHNC keeps all
layers of a block together. C is always innermost: a row is contiguous.

A transfer copies blocks between two caches of the same shape. Its descriptors are the maximal
runs of bytes that are contiguous on both sides in the order of the source; their number is
what an RDMA or IPC transport pays for (docs/kv-nvfp4.md, "Layout and transfer").
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from prime_inference.kvcache.errors import LayoutMismatch


class Layout(StrEnum):
    """An order of the axes, outermost first."""

    LBHNC = "LBHNC"
    LBNHC = "LBNHC"
    LHBNC = "LHBNC"
    BLHNC = "BLHNC"
    BLNHC = "BLNHC"
    BHLNC = "BHLNC"

    @property
    def block_outermost(self) -> bool:
        """Whether one block of all layers is one contiguous piece."""
        return self.value.startswith("B")


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Extents of the five axes; `row_bytes` is C."""

    layers: int
    blocks: int
    block_tokens: int
    row_bytes: int
    heads: int = 1  # MLA keeps one latent for all heads

    def __post_init__(self) -> None:
        for name in ("layers", "blocks", "block_tokens", "row_bytes", "heads"):
            if getattr(self, name) < 1:
                raise LayoutMismatch(f"{name} must be at least 1, not {getattr(self, name)}")

    def extent(self, axis: str) -> int:
        """Length of the axis L, B, H, N or C."""
        return {
            "L": self.layers,
            "B": self.blocks,
            "H": self.heads,
            "N": self.block_tokens,
            "C": self.row_bytes,
        }[axis]

    @property
    def nbytes(self) -> int:
        return self.layers * self.blocks * self.heads * self.block_tokens * self.row_bytes


class Copy(NamedTuple):
    """One descriptor: `nbytes` from `source` to `target`, offsets in bytes."""

    source: int
    target: int
    nbytes: int


def strides(layout: Layout, shape: CacheShape) -> dict[str, int]:
    """Bytes between neighbours along each axis."""
    step, result = 1, {}
    for axis in reversed(layout.value):
        result[axis] = step
        step *= shape.extent(axis)
    return result


def copies(
    shape: CacheShape,
    source: Layout,
    target: Layout,
    blocks: Sequence[tuple[int, int]],
    *,
    target_blocks: int | None = None,
) -> list[Copy]:
    """The descriptors that move `blocks`, pairs of (source block, target block).

    `target_blocks` is the number of blocks of the target cache where it differs.
    """
    target_shape = CacheShape(
        shape.layers,
        shape.blocks if target_blocks is None else target_blocks,
        shape.block_tokens,
        shape.row_bytes,
        shape.heads,
    )
    for mine, theirs in blocks:
        if not (0 <= mine < shape.blocks and 0 <= theirs < target_shape.blocks):
            raise LayoutMismatch(f"block pair {mine}, {theirs} lies outside of a cache")
    return list(merged(_row_copies(shape, target_shape, source, target, blocks)))


def merged(pieces: Iterable[Copy]) -> Iterator[Copy]:
    """`pieces` in order, each joined to the one before where both sides continue."""
    last: Copy | None = None
    for piece in pieces:
        if last and piece[:2] == (last.source + last.nbytes, last.target + last.nbytes):
            last = Copy(last.source, last.target, last.nbytes + piece.nbytes)
            continue
        if last:
            yield last
        last = piece
    if last:
        yield last


def _row_copies(
    shape: CacheShape,
    target_shape: CacheShape,
    source: Layout,
    target: Layout,
    blocks: Sequence[tuple[int, int]],
) -> Iterator[Copy]:
    """Contiguous pieces in the order of the source: the axes inside both are one piece."""
    inner = _shared_inner_axes(source, target)
    outer = source.value[: 5 - len(inner)]
    nbytes = 1
    for axis in inner:
        nbytes *= shape.extent(axis)
    here, there = strides(source, shape), strides(target, target_shape)
    pairs = list(blocks)
    for index in itertools.product(
        *(range(len(pairs) if axis == "B" else shape.extent(axis)) for axis in outer)
    ):
        mine = theirs = 0
        for axis, i in zip(outer, index, strict=True):
            mine += here[axis] * (pairs[i][0] if axis == "B" else i)
            theirs += there[axis] * (pairs[i][1] if axis == "B" else i)
        yield Copy(mine, theirs, nbytes)


def _shared_inner_axes(source: Layout, target: Layout) -> str:
    """The innermost axes, B excluded, that both layouts nest alike."""
    shared = ""
    for mine, theirs in zip(reversed(source.value), reversed(target.value), strict=True):
        if mine != theirs or mine == "B":
            break
        shared = mine + shared
    return shared


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """A block-major block of regions with unequal pages: NVFP4 rows and index keys together.

    `pages` are the bytes of each region's page; `alignment` pads the whole, in bytes.
    """

    pages: tuple[int, ...]
    alignment: int = 1

    @property
    def nbytes(self) -> int:
        """The stride between blocks."""
        return -(-sum(self.pages) // self.alignment) * self.alignment

    def page_offset(self, region: int) -> int:
        """Offset of a region's page inside the block."""
        return sum(self.pages[:region])


INDEX_KEY_BYTES: Final = 132  # 128 e4m3 and one float32 scale, DeepSeek V3.2's indexer


def region_major_copies(
    pages: Sequence[int], block_count: int, blocks: Sequence[tuple[int, int]]
) -> list[Copy]:
    """Descriptors where each region (layer) is an array of `block_count` pages of its own."""
    pieces: list[Copy] = []
    base = 0
    for page in pages:
        pieces += [Copy(base + a * page, base + b * page, page) for a, b in blocks]
        base += page * block_count
    return list(merged(pieces))


def packed_copies(block: PackedBlock, blocks: Sequence[tuple[int, int]]) -> list[Copy]:
    """Descriptors where a block's pages lie together."""
    size = block.nbytes
    return list(merged(Copy(a * size, b * size, size) for a, b in blocks))


def transfer_seconds(
    descriptors: int, nbytes: int, *, post_seconds: float, bytes_per_second: float
) -> float:
    """A transport that posts one descriptor after another and then moves the bytes."""
    return descriptors * post_seconds + nbytes / bytes_per_second
