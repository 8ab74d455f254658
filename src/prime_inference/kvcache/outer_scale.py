"""One power of two per layer that brings latents into the range where a row is accurate.

A row has no outer scale: a block's e4m3 scale is accurate (to 1 part in 16) only from 2**-6
up, that is for amax of about 0.1 to 2688. Latents of published checkpoints reach 0.02 to 5.2
depending on the layer. So the scale goes into the weights on both sides of the cache:

    stored latent = RMSNorm(x) * (kv_a_layernorm.weight * 2**k)
    keys, values  = (kv_b_proj.weight * 2**-k) @ stored latent

Both products are exact in bfloat16, so every score and every output of the folded model
equals the unfolded model's bit for bit as long as nothing is quantized in between; the rope
key, the queries and the indexer (which has a key of its own) never see the latent. The
absorbed form, which multiplies the query by W_UK and the attended latent by W_UV, takes both
from kv_b_proj and is folded with it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from lzma import LZMAError
from pathlib import Path
from typing import Final, Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from prime_inference.kvcache.errors import (
    CalibrationMalformed,
    DtypeMismatch,
    ScaleInexact,
    ShapeMismatch,
)
from prime_inference.kvcache.row import LATENT_DIMS, MAX_CODE, MAX_SCALE

LARGEST_LATENT: Final = MAX_CODE * MAX_SCALE  # 2688: beyond it a row saturates
# Room that is kept above the largest latent seen, since calibration sees a sample only; with
# 8 the largest block scale lies in (28, 56], and blocks down to 1/1800 of it stay normal.
CALIBRATION_MARGIN: Final = 8.0

# What numpy and zipfile raise for a file that is cut, damaged, encrypted or packed otherwise.
UNREADABLE: Final = (
    ValueError,
    TypeError,
    EOFError,
    RuntimeError,
    BadZipFile,
    zlib.error,
    LZMAError,
)

FoldDtype = Literal["BF16", "F16", "F32"]


def exponent_for(largest: float, *, margin: float = 1.0) -> int:
    """The largest k for which `largest` * margin * 2**k does not saturate a row.

    Raises ValueError where `largest` is not a positive finite number or margin is below 1.
    """
    if not (math.isfinite(largest) and largest > 0):
        raise ValueError(f"the largest latent must be positive and finite, not {largest}")
    if not margin >= 1:
        raise ValueError(f"margin must be at least 1, not {margin}")
    return math.floor(math.log2(LARGEST_LATENT / (largest * margin)))


def norm_bound(weight: npt.NDArray[np.float32]) -> float:
    """No latent of RMSNorm with this weight [512] is larger: sqrt(512) * max |weight|.

    RMSNorm makes the mean square 1, so a single element reaches sqrt(512) at most. No
    calibration is needed for this bound, and no text can break it.
    """
    if weight.shape != (LATENT_DIMS,):
        raise ShapeMismatch("kv_a_layernorm.weight", f"[{LATENT_DIMS}]", weight.shape)
    return float(np.max(np.abs(weight))) * math.sqrt(LATENT_DIMS)


def exponent_from_norm(weight: npt.NDArray[np.float32]) -> int:
    """k of a layer from its norm's weight alone; saturation is impossible."""
    return exponent_for(norm_bound(weight))


def exponent_from_latents(
    latents: npt.NDArray[np.floating], *, margin: float = CALIBRATION_MARGIN
) -> int:
    """k of a layer from latents [T, 512] that a calibration run recorded."""
    if latents.ndim != 2 or latents.shape[1] != LATENT_DIMS or not len(latents):
        raise ShapeMismatch("latents", f"[T >= 1, {LATENT_DIMS}]", latents.shape)
    if not np.issubdtype(latents.dtype, np.floating):
        raise DtypeMismatch("latents", "floating point", latents.dtype)
    return exponent_for(float(np.max(np.abs(latents))), margin=margin)


def read_calibration(path: Path) -> dict[str, int]:
    """k of every layer in an .npz of latents [T, 512] by layer prefix.

    Raises `CalibrationMalformed`, which names the layer, and OSError.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise CalibrationMalformed(f"{path} is not a file")
    try:
        with path.open("rb") as file:
            held = np.load(file, allow_pickle=False)
            if not isinstance(held, np.lib.npyio.NpzFile):
                raise CalibrationMalformed(f"{path} is one array, not an .npz of one a layer")
            return {layer: _calibrated(path, layer, held) for layer in held.files}
    except UNREADABLE as error:
        if isinstance(error, CalibrationMalformed):
            raise
        raise CalibrationMalformed(f"{path} is not an .npz of latents: {error}") from error


def _calibrated(path: Path, layer: str, held: Mapping[str, npt.NDArray[np.floating]]) -> int:
    try:
        latents = held[layer]
        if not isinstance(latents, np.ndarray):  # a member of the archive that is no array
            raise CalibrationMalformed(f"{path}: {layer} is no array")
        return exponent_from_latents(latents)
    except CalibrationMalformed:
        raise
    except (ValueError, TypeError, MemoryError) as error:  # or larger than the memory
        raise CalibrationMalformed(f"{path}: {layer}: {error}") from error


def decode_weight(raw: bytes | memoryview, dtype: FoldDtype) -> npt.NDArray[np.float32]:
    """Little-endian bytes of a safetensors tensor as float32, exactly."""
    if dtype == "BF16":
        bits = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
        return bits.view(np.float32)
    if dtype == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float32)
    if dtype == "F32":
        return np.frombuffer(raw, "<f4").astype(np.float32)
    raise DtypeMismatch("weight", "BF16, F16 or F32", dtype)


def scale_weight(
    raw: bytes | memoryview, dtype: FoldDtype, exponent: int, *, name: str = "weight"
) -> bytes:
    """The bytes of a tensor times 2**exponent. Raises `ScaleInexact` if one element rounds."""
    before = decode_weight(raw, dtype)
    with np.errstate(over="ignore", under="ignore"):  # found by the comparison below
        after = np.ldexp(before, exponent)
        encoded = _encode(after, dtype)
        back = np.ldexp(decode_weight(encoded, dtype), -exponent)
    wrong = int(np.count_nonzero((back != before) & ~np.isnan(before)))
    if wrong:
        raise ScaleInexact(name, exponent, wrong)
    return encoded


def _encode(values: npt.NDArray[np.float32], dtype: FoldDtype) -> bytes:
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype("<f2" if dtype == "F16" else "<f4").tobytes()
