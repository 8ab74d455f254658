"""Compile every Triton kernel ahead of time, for a GPU that need not be there.

Run as `python -m prime_inference.kvcache.kernels.triton_targets [capability]`: prints a JSON
object {kernel: {"shared_bytes", "cubin_bytes"}}. The interpreter must be off, which is decided
when the kernels are imported; so tests run this in a process of its own.
"""

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from prime_inference.kvcache.kernels import triton_decode, triton_rows

WARP = 32
INTS = ("block_stride", "row_stride", "latent_stride", "rope_stride", "index_stride")


def _sources() -> dict[str, tuple[ASTSource, dict[str, object]]]:
    strides = dict.fromkeys(INTS, "i64")
    rows = {"latent": "*bf16", "rope": "*bf16", "cache": "*u8", "slots": "*i64"}
    rows |= {"block_tokens": "i32", "cache_slots": "i32"} | strides
    part = {"query": "*bf16", "cache": "*u8", "indices": "*i32", "lengths": "*i32"}
    part |= {"parts": "*fp32", "largest": "*fp32", "totals": "*fp32", "scale_log2": "fp32"}
    part |= {"heads": "i32", "top_k": "i32", "slots": "i32", "block_tokens": "i32"} | strides
    tiles: dict[str, object] = {"head_tile": triton_decode.HEADS, "row_tile": triton_decode.TILE}
    combine = {"parts": "*fp32", "largest": "*fp32", "totals": "*fp32", "out": "*fp32"}
    combine |= {"lse": "*fp32", "heads": "i32", "splits": "i32"}
    exact: dict[str, object] = {"num_warps": 1, "enable_fp_fusion": False}
    return {
        "write_rows.round_up": (
            _source(triton_rows._write_rows, rows, {"four_over_six": False}),
            exact,
        ),
        "write_rows.four_over_six": (
            _source(triton_rows._write_rows, rows, {"four_over_six": True}),
            exact,
        ),
        "gather_rows": (
            _source(triton_rows._gather_rows, rows | {"out": "*bf16"}, {}),
            {"num_warps": 1, "enable_fp_fusion": True},
        ),
        "decode_part": (
            _source(triton_decode._decode_part, part, tiles),
            {"num_warps": 8, "enable_fp_fusion": True},
        ),
        "combine_parts": (
            _source(triton_decode._combine_parts, combine, {}),
            {"num_warps": 4, "enable_fp_fusion": True},
        ),
    }


def _source(kernel: Any, types: dict[str, str], constants: dict[str, object]) -> ASTSource:
    signature = {
        name: "constexpr" if name in constants else types[name] for name in kernel.arg_names
    }
    return ASTSource(kernel, signature, constexprs=constants)


def main(capability: int = 90) -> None:
    target = GPUTarget("cuda", capability, WARP)
    report = {}
    for name, (source, options) in _sources().items():
        compiled = triton.compile(source, target=target, options=options)
        report[name] = {
            "shared_bytes": compiled.metadata.shared,
            "cubin_bytes": len(compiled.asm["cubin"]),
        }
    json.dump(report, sys.stdout, indent=1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
