"""Call the CUDA kernel with torch tensors on a Hopper GPU."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from prime_inference.kvcache.errors import (
    DtypeMismatch,
    KvCacheError,
    LayoutMismatch,
    ShapeMismatch,
)
from prime_inference.kvcache.kernels.sm90.params import (
    HOPPER_SMS,
    MAX_CLUSTER,
    ROW_FORMAT_BYTES,
    DecodeParams,
    RowFormat,
    cluster_size,
)
from prime_inference.kvcache.row import LATENT_DIMS, ROPE_DIMS

MAX_TOKENS = 65_535  # the grid's z extent


class KernelFailed(KvCacheError):
    """The launch was refused; the message is CUDA's."""


@cache
def load_library(path: Path) -> ctypes.CDLL:
    """The library that build.py compiled."""
    library = ctypes.CDLL(str(path))
    library.prime_error_text.restype = ctypes.c_char_p
    library.prime_sparse_decode.argtypes = (
        ctypes.POINTER(DecodeParams),
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_void_p,
    )
    return library


def sparse_decode(
    library: ctypes.CDLL,
    query: Tensor,
    cache_rows: Tensor,
    indices: Tensor,
    *,
    scale: float,
    lengths: Tensor | None = None,
    row_format: RowFormat = RowFormat.NVFP4,
    parts: int | None = None,
    two_launches: bool = False,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`out` [B, H, 512] in the query's dtype bf16 (f32 for f16) and `lse` f32 [B, H].

    `query` [B, H, 576] f16 or bf16; `cache_rows` uint8 [blocks, block tokens, row bytes];
    `indices` int32 [B, K]. `parts`: the cluster size, by default `cluster_size`.
    """
    check_arguments(query, cache_rows, indices, lengths, row_format)
    batch, heads, _ = query.shape
    if parts is None:
        parts = min(cluster_size(batch, heads, sms=HOPPER_SMS), MAX_CLUSTER)
    if out is None:
        dtype = torch.bfloat16 if query.dtype == torch.bfloat16 else torch.float32
        out = query.new_empty((batch, heads, LATENT_DIMS), dtype=dtype)
    lse = query.new_empty((batch, heads), dtype=torch.float32)
    partial = stats = None
    if two_launches:
        partial = query.new_empty((batch, parts, heads, LATENT_DIMS), dtype=torch.float32)
        stats = query.new_empty((batch, parts, heads, 2), dtype=torch.float32)
    params = DecodeParams(
        query=query.data_ptr(),
        cache=cache_rows.data_ptr(),
        indices=indices.data_ptr(),
        lengths=None if lengths is None else lengths.data_ptr(),
        out=out.data_ptr(),
        lse=lse.data_ptr(),
        parts=None if partial is None else partial.data_ptr(),
        part_stats=None if stats is None else stats.data_ptr(),
        index_stride=indices.stride(0),
        block_stride=cache_rows.stride(0),
        row_stride=cache_rows.stride(1),
        scale_log2=scale / math.log(2),
        heads=heads,
        top_k=indices.shape[1],
        slots=cache_rows.shape[0] * cache_rows.shape[1],
        block_tokens=cache_rows.shape[1],
        query_bf16=query.dtype == torch.bfloat16,
        out_bf16=out.dtype == torch.bfloat16,
    )
    if batch:
        stream = torch.cuda.current_stream(query.device).cuda_stream
        code = library.prime_sparse_decode(
            ctypes.byref(params), batch, parts, int(row_format), stream
        )
        if code:
            raise KernelFailed(library.prime_error_text(code).decode())
    return out, lse


def check_arguments(
    query: Tensor,
    cache_rows: Tensor,
    indices: Tensor,
    lengths: Tensor | None,
    row_format: RowFormat,
) -> None:
    """Raise for what the kernel would read wrongly: it has no way to object itself."""
    if query.ndim != 3 or query.shape[2] != LATENT_DIMS + ROPE_DIMS or not query.is_contiguous():
        raise ShapeMismatch("query", "[B, H, 576], contiguous", tuple(query.shape))
    if len(query) > MAX_TOKENS:
        raise ShapeMismatch("query", f"[at most {MAX_TOKENS}, H, 576]", tuple(query.shape))
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise DtypeMismatch("query", "float16 or bfloat16", query.dtype)
    row_bytes = ROW_FORMAT_BYTES[row_format]
    if cache_rows.ndim != 3 or cache_rows.shape[2] != row_bytes:
        raise ShapeMismatch("cache", f"[blocks, tokens, {row_bytes}]", tuple(cache_rows.shape))
    if cache_rows.dtype != torch.uint8:
        raise DtypeMismatch("cache", "uint8", cache_rows.dtype)
    steps = (cache_rows.data_ptr(), cache_rows.stride(0), cache_rows.stride(1))
    if cache_rows.stride(2) != 1 or any(step % 16 for step in steps):
        raise LayoutMismatch("rows must be contiguous and 16-byte aligned, as must their strides")
    if indices.ndim != 2 or len(indices) != len(query) or indices.stride(1) != 1:
        raise ShapeMismatch("indices", f"[{len(query)}, K]", tuple(indices.shape))
    if indices.dtype != torch.int32:
        raise DtypeMismatch("indices", "int32", indices.dtype)
    if lengths is not None and (lengths.shape != (len(query),) or lengths.dtype != torch.int32):
        raise ShapeMismatch("lengths", f"int32 [{len(query)}]", tuple(lengths.shape))
