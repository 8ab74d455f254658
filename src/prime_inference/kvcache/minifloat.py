"""The two small number formats of a row, encoded and decoded with numpy.

e2m1: sign, 2 exponent bits, 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6. No NaN, no infinity.
e4m3: sign, 4 exponent bits, 3 mantissa bits ("fn": no infinity, 0x7F and 0xFF are NaN).

Both encoders round to nearest, ties to the even code, and saturate: the rules of PTX's
`cvt.rn.satfinite`. NaN becomes +6 (code 7) in e2m1 and 0x7F in e4m3.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

E2M1_VALUES: Final[tuple[float, ...]] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3_NAN: Final = 0x7F
E4M3_LARGEST: Final = 0x7E  # 448


def e4m3_value(code: int) -> float:
    """The value of one e4m3 byte (NaN for 0x7F and 0xFF)."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if code & 0x7F == E4M3_NAN:
        return float("nan")
    if exponent == 0:
        return sign * float(mantissa) * 2.0**-9
    return sign * (1.0 + float(mantissa) / 8.0) * 2.0 ** (exponent - 7)


def e2m1_table() -> Floats:
    """All 16 values by code, -0.0 at code 8."""
    magnitudes = np.array(E2M1_VALUES, np.float32)
    return np.concatenate([magnitudes, -magnitudes])


def e4m3_table() -> Floats:
    """All 256 values by code."""
    return np.array([e4m3_value(code) for code in range(256)], np.float32)


def encode_e2m1(values: Floats) -> Bytes:
    """Codes 0..15 of float32 `values`; the sign of zero is kept."""
    size = np.abs(values)
    # Each line is a midpoint between neighbours; `>=` where the upper neighbour is even.
    code = (size > 0.25).astype(np.uint8)
    code += size >= 0.75
    code += size > 1.25
    code += size >= 1.75
    code += size > 2.5
    code += size >= 3.5
    code += size > 5.0
    negative = np.signbit(values)
    code |= negative.astype(np.uint8) << 3
    code[np.isnan(values)] = 7
    return code


def encode_e4m3(values: Floats) -> Bytes:
    """Bytes of float32 `values`; the sign of zero is kept."""
    magnitudes = e4m3_table()[:E4M3_NAN]
    midpoints = (magnitudes[:-1] + magnitudes[1:]) / np.float32(2)  # exact: 5 significant bits
    size = np.abs(values)
    code = np.searchsorted(midpoints, size, side="left").astype(np.uint8)
    tie = size == np.append(midpoints, np.float32(np.nan))[np.minimum(code, E4M3_LARGEST)]
    code += (tie & (code % 2 == 1)).astype(np.uint8)
    code = np.minimum(code, E4M3_LARGEST).astype(np.uint8)
    code |= np.signbit(values).astype(np.uint8) << 7
    code[np.isnan(values)] = E4M3_NAN
    return code
