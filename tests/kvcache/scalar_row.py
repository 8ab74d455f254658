"""A second implementation of the row, in plain Python on exact rationals, one number at a time.

It shares nothing with the package but the text of the format, and it made the golden file.
Only `reciprocal * x`, amax / 6 and the sums of squares round, each to float32 as the format
says.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from fractions import Fraction

E2M1 = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]
E4M3 = [
    Fraction(code & 7, 512)
    if code < 8
    else Fraction(8 + (code & 7), 8) * Fraction(2) ** (code // 8 - 7)
    for code in range(127)
]


def float32(value: float) -> float:
    """The nearest float32; doubles of products and quotients of float32 round innocuously."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def nearest_even(table: list[Fraction], size: Fraction) -> int:
    """The code of the entry nearest to `size`: the even of two equally near, the last if beyond."""
    above = bisect_left(table, size)
    if above == len(table):
        return above - 1
    if above == 0:
        return 0
    below = above - 1
    to_below, to_above = size - table[below], table[above] - size
    if to_below == to_above:
        return below if below % 2 == 0 else above
    return below if to_below < to_above else above


def signed_code(table: list[Fraction], value: float, sign_bit: int) -> int:
    negative = struct.pack(">f", value)[0] & 0x80 != 0
    return nearest_even(table, abs(Fraction(value))) | (sign_bit if negative else 0)


def tree_sum(values: list[float]) -> float:
    while len(values) > 1:
        values = [float32(values[i] + values[i + 1]) for i in range(0, len(values), 2)]
    return values[0]


def codes_under(block: list[float], scale: int) -> list[int]:
    reciprocal = float32(1.0 / float(E4M3[scale]))
    return [signed_code(E2M1, float32(x * reciprocal), 8) for x in block]


def loss(block: list[float], scale: int) -> float:
    squares = []
    for x, code in zip(block, codes_under(block, scale), strict=True):
        decoded = float(E2M1[code & 7] * E4M3[scale]) * (-1 if code & 8 else 1)
        error = float32(x - decoded)
        squares.append(float32(error * error))
    return tree_sum(squares)


def scale_of(block: list[float], writer: str) -> int:
    amax = max(abs(x) for x in block)
    wanted = max(float32(amax / 6.0), 2.0**-9)
    nearest = nearest_even(E4M3, Fraction(wanted))
    up = nearest + 1 if E4M3[nearest] < Fraction(wanted) and nearest < 126 else nearest
    if writer == "round_up":
        return up
    four = nearest_even(E4M3, Fraction(max(float32(amax / 4.0), 2.0**-9)))
    best = up
    for candidate in (nearest, four):
        if loss(block, candidate) < loss(block, best):
            best = candidate
    return best


def scalar_row(latent: list[float], rope: list[float], writer: str) -> bytes:
    """The 352 bytes of one token; all numbers finite float32."""
    row = bytearray(352)
    for block in range(32):
        values = latent[16 * block : 16 * block + 16]
        scale = scale_of(values, writer)
        row[320 + 8 * (block & 3) + (block >> 2)] = scale
        for i, code in enumerate(codes_under(values, scale)):
            dim = 16 * block + i
            row[dim // 2] |= code << (4 if dim % 2 else 0)
    for dim, value in enumerate(rope):
        row[256 + dim] = signed_code(E4M3, value, 0x80)
    return bytes(row)
