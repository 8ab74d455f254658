"""The argument block of sparse_decode.cuh for ctypes, and how many blocks share a token."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Final

HOPPER_SMS: Final = 132  # H100 SXM, H200
MAX_CLUSTER: Final = 8  # the largest cluster every sm_90 GPU grants (CUDA programming guide)


class RowFormat(IntEnum):
    """Formats the kernel is built for: NVFP4, and two others to measure it against."""

    NVFP4 = 0
    FP8 = 1  # vLLM's fp8_ds_mla, 656 bytes
    BF16 = 2  # 1152 bytes


ROW_FORMAT_BYTES: Final = {RowFormat.NVFP4: 352, RowFormat.FP8: 656, RowFormat.BF16: 1152}


class DecodeParams(ctypes.Structure):
    """`prime::DecodeParams`, field for field."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("parts", ctypes.c_void_p),
        ("part_stats", ctypes.c_void_p),
        ("index_stride", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("scale_log2", ctypes.c_float),
        ("heads", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("slots", ctypes.c_int32),
        ("block_tokens", ctypes.c_int32),
        ("query_bf16", ctypes.c_int32),
        ("out_bf16", ctypes.c_int32),
    )


def cluster_size(tokens: int, heads: int, *, sms: int = HOPPER_SMS) -> int:
    """Thread blocks that share a query token and head tile: as many as keep every SM busy once.

    8 up to 16 tokens, 6 at 22, 4 at 33, 3 at 44, then 2 and 1; half of it where 128 heads make
    two head tiles.
    """
    head_tiles = 1 if heads <= 16 else -(-heads // 64)
    return max(1, min(MAX_CLUSTER, sms // (tokens * head_tiles)))
