"""Classes of characters as engines can take them byte by byte."""

from __future__ import annotations

import math
import re
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from prime_inference.toolcalls.grammar import any_but, character_class

ESCAPED = re.compile(r"\\U([0-9a-f]{8})|\\u([0-9a-f]{4})|\\(.)|(.)", re.S)
SHORT = {"n": "\n", "r": "\r", "t": "\t"}
codes = st.integers(0x20, 0xD7FF) | st.integers(0xE000, 0x10FFFF)


def pieces(text: str) -> list[tuple[int, int]]:
    """The ranges of a class, as an engine reads them."""
    read = [
        (int(m[1] or m[2], 16) if m[1] or m[2] else ord(SHORT.get(m[3], m[3] or m[4])), m[0] == "-")
        for m in ESCAPED.finditer(text[1:-1])
    ]
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(read):
        low, through = read[at][0], at + 2 < len(read) and read[at + 1][1]
        found.append((low, read[at + 2][0] if through else low))
        at += 3 if through else 1
    return found


def is_product(low: int, high: int) -> bool:
    """Whether the bytes of a range are any of the first, then any of the second, and so on."""
    first, last = chr(low).encode(), chr(high).encode()
    widths = [b - a + 1 for a, b in zip(first, last, strict=True)]
    return min(widths) > 0 and math.prod(widths) == high - low + 1


@given(codes, codes)
def test_a_range_is_cut_into_independent_bytes_and_nothing_is_lost(one: int, other: int):
    low, high = sorted((one, other))
    assume(high < 0xD800 or low > 0xDFFF)
    found = pieces(character_class([(low, high)]))
    assert (found[0][0], found[-1][1]) == (low, high)
    assert all(before[1] + 1 == after[0] for before, after in pairwise(found))
    assert all(is_product(*piece) for piece in found)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), st.booleans())
def test_all_characters_but_some_are_all_that_are_left(chars: str, control: bool):
    found = pieces(any_but(chars, control=control))
    left_out = {*map(ord, chars), *([] if control else range(0x20))}
    assert sum(high - low + 1 for low, high in found) == 0x110000 - 0x800 - len(left_out)
    assert not any(low <= code <= high for low, high in found for code in left_out)
    assert all(is_product(*piece) for piece in found)
