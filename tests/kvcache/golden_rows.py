"""The golden file: rows of numbers that a recipe makes anywhere, bit for bit.

The recipe: a 64-bit linear congruential generator (Knuth's MMIX constants, state 7 at the
start) yields s; each latent or rope element is the bfloat16 with sign bit s>>63, exponent
field 127 + k - ((s>>40) & 7) and mantissa (s>>50) & 127, where k is the token's entry in
EXPONENTS. Each token takes 512 latent elements, then 64 rope elements. The rows come from
scalar_row.py. `python -m tests.kvcache.golden_rows` writes the file anew.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.kvcache.scalar_row import scalar_row

GOLDEN = Path(__file__).parent / "golden" / "rows.json"
# Latents in published checkpoints reach 0.02 to 5.2; 2**12 overflows the largest scale and
# 2**-12 underflows the smallest.
EXPONENTS = (-12, -6, -3, 0, 2, 12)


def golden_elements() -> list[tuple[list[float], list[float]]]:
    """(latent, rope) of each token of the recipe."""
    numbers = _bfloat16s()
    return [
        ([next(numbers)(k) for _ in range(512)], [next(numbers)(k) for _ in range(64)])
        for k in EXPONENTS
    ]


class _Number:
    def __init__(self, state: int) -> None:
        self.state = state

    def __call__(self, exponent: int) -> float:
        s = self.state
        field = 127 + exponent - (s >> 40 & 7)
        bits = (s >> 63) << 31 | field << 23 | (s >> 50 & 127) << 16
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _bfloat16s() -> Iterator[_Number]:
    state = 7
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield _Number(state)


def main() -> None:
    rows = {
        writer: [scalar_row(latent, rope, writer).hex() for latent, rope in golden_elements()]
        for writer in ("round_up", "four_over_six")
    }
    recipe = (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    GOLDEN.write_text(
        json.dumps({"recipe": recipe, "exponents": EXPONENTS, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
