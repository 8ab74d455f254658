from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.kvcache.errors import LayoutMismatch
from prime_inference.kvcache.layout import (
    INDEX_KEY_BYTES,
    CacheShape,
    Layout,
    PackedBlock,
    copies,
    packed_copies,
    region_major_copies,
    strides,
)
from prime_inference.kvcache.row import ROW_BYTES

shapes = st.builds(
    CacheShape,
    layers=st.integers(1, 4),
    blocks=st.integers(1, 5),
    block_tokens=st.integers(1, 3),
    row_bytes=st.integers(1, 5),
    heads=st.integers(1, 3),
)
layouts = st.sampled_from(Layout)


def row_offset(
    layout: Layout, shape: CacheShape, *, layer: int, block: int, head: int, token: int
) -> int:
    step = strides(layout, shape)
    at = {"L": layer, "B": block, "H": head, "N": token}
    return sum(step[axis] * index for axis, index in at.items())


@given(shapes, layouts)
def test_the_rows_of_a_layout_tile_its_bytes(shape: CacheShape, layout: Layout) -> None:
    seen = [
        row_offset(layout, shape, layer=la, block=b, head=h, token=n)
        for la, b, h, n in itertools.product(
            range(shape.layers), range(shape.blocks), range(shape.heads), range(shape.block_tokens)
        )
    ]
    assert sorted(seen) == list(range(0, shape.nbytes, shape.row_bytes))


@given(shapes, layouts)
def test_strides_are_those_of_an_array_with_the_axes_in_that_order(
    shape: CacheShape, layout: Layout
) -> None:
    array = np.empty([shape.extent(axis) for axis in layout.value], np.uint8)
    assert strides(layout, shape) == dict(zip(layout.value, array.strides, strict=True))


@settings(max_examples=200)
@given(shapes, layouts, layouts, st.integers(0, 3), st.data())
def test_copies_move_every_byte_of_the_blocks_and_no_other(
    shape: CacheShape, source: Layout, target: Layout, spare: int, data: st.DataObject
) -> None:
    target_blocks = shape.blocks + spare
    count = data.draw(st.integers(0, shape.blocks))
    mine = data.draw(st.permutations(range(shape.blocks)))[:count]
    theirs = data.draw(st.permutations(range(target_blocks)))[:count]
    pairs = list(zip(mine, theirs, strict=True))
    rng = np.random.default_rng(0)
    here = rng.integers(0, 255, [shape.extent(a) for a in source.value]).astype(np.uint8)
    there = np.full(
        [target_blocks if a == "B" else shape.extent(a) for a in target.value], 255, np.uint8
    )
    flat_here, flat_there = here.reshape(-1), there.reshape(-1)
    moved = copies(shape, source, target, pairs, target_blocks=target_blocks)
    for copy in moved:
        flat_there[copy.target : copy.target + copy.nbytes] = flat_here[
            copy.source : copy.source + copy.nbytes
        ]
    want = np.full((target_blocks, shape.layers, shape.heads, shape.block_tokens), 255)
    want = np.repeat(want[..., None], shape.row_bytes, axis=-1)
    canonical = here.transpose([source.value.index(a) for a in "BLHNC"])
    for a, b in pairs:
        want[b] = canonical[a]
    np.testing.assert_array_equal(there.transpose([target.value.index(a) for a in "BLHNC"]), want)
    ends = [(c.source + c.nbytes, c.target + c.nbytes) for c in moved]
    starts = [(c.source, c.target) for c in moved]
    assert not any(e == s for e, s in zip(ends, starts[1:], strict=False))  # maximal


def test_block_major_needs_one_descriptor_for_a_run_of_blocks_and_layer_major_one_per_layer() -> (
    None
):
    shape = CacheShape(layers=79, blocks=100, block_tokens=64, row_bytes=ROW_BYTES)
    run = [(block, block + 10) for block in range(20, 40)]
    assert len(copies(shape, Layout.BLHNC, Layout.BLHNC, run)) == 1
    assert len(copies(shape, Layout.LBHNC, Layout.LBHNC, run)) == 79
    scattered = [(2 * i, 3 * i) for i in range(20)]
    assert len(copies(shape, Layout.BLHNC, Layout.BLHNC, scattered)) == 20
    assert len(copies(shape, Layout.LBHNC, Layout.LBHNC, scattered)) == 79 * 20


def test_block_outermost_is_said_of_the_block_major_layouts() -> None:
    assert {one.value for one in Layout if one.block_outermost} == {"BLHNC", "BLNHC", "BHLNC"}


def test_a_packed_block_of_glm_5_2_stays_a_multiple_of_the_row() -> None:
    pages = (64 * ROW_BYTES,) * 79 + (64 * INDEX_KEY_BYTES,) * 22
    packed = PackedBlock(pages)
    assert packed.nbytes == 1_965_568
    assert packed.nbytes % ROW_BYTES == 0  # a row-pitched TMA gather can address every row
    assert packed.nbytes % 512 == 0
    assert packed.page_offset(79) == 79 * 22_528
    assert PackedBlock(pages[:-1]).nbytes % 512 == 256
    assert PackedBlock(pages[:-1], alignment=512).nbytes % 512 == 0


def test_packing_divides_the_descriptors_by_the_number_of_regions() -> None:
    pages = (64 * ROW_BYTES,) * 79 + (64 * INDEX_KEY_BYTES,) * 22
    scattered = [(2 * i, 5 * i) for i in range(50)]
    fragmented = region_major_copies(pages, 1000, scattered)
    whole = packed_copies(PackedBlock(pages), scattered)
    assert (len(fragmented), len(whole)) == (101 * 50, 50)
    assert sum(c.nbytes for c in fragmented) == sum(c.nbytes for c in whole)


@pytest.mark.parametrize("pair", [(-1, 0), (0, 3), (3, 0)])
def test_blocks_outside_of_the_caches_are_refused(pair: tuple[int, int]) -> None:
    shape = CacheShape(layers=1, blocks=3, block_tokens=1, row_bytes=1)
    with pytest.raises(LayoutMismatch):
        copies(shape, Layout.LBHNC, Layout.LBHNC, [pair])


def test_an_empty_axis_is_refused() -> None:
    with pytest.raises(LayoutMismatch, match="layers"):
        CacheShape(layers=0, blocks=3, block_tokens=1, row_bytes=1)
