"""Build, check and time the sparse decode kernels on a Hopper GPU; prints one short table.

    python benchmarks/gpu/kv_decode.py [--out results.json]

For batches of 1, 8, 32 and 128 query tokens, 64 heads, top-k 2048: the one-launch cluster
kernel over NVFP4 rows, the same kernel over FP8 and BF16 rows, its two-launch version, and the
Triton kernel. Each is checked against float64 first (relative L2 under 2e-3 at batch 8) and
timed as the median of CUDA-graph replays over a cache larger than the L2. Without a Hopper GPU
every time is "not measured". Needs a CUDA build of torch, Triton and nvcc; takes a few minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from prime_inference.kvcache.attention import relative_l2, sparse_decode
from prime_inference.kvcache.kernels.sm90.params import ROW_FORMAT_BYTES, RowFormat, cluster_size

BATCHES = (1, 8, 32, 128)
HEADS = 64
TOP_K = 2048
BLOCK_TOKENS = 64
BLOCKS = 8192  # 524,288 rows: 185 MB of NVFP4, several times the L2 of 50 MB
CHECKED_BATCH = 8
BOUND = 2e-3
REPLAYS = 200
LAUNCHES = 10  # in one graph, each with indices of its own
# Roofline of an H200: 4.3 TB/s is what its 4.8 TB/s of HBM3e sustain; 989 dense FP16 TFLOP/s.
BYTES_PER_SECOND = 4.3e12
FLOPS_PER_SECOND = 989e12
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one variant at one batch; None where nothing was measured."""

    variant: str
    batch: int
    roofline_us: float
    measured_us: float | None


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel over one row format; `run(query, cache, indices)` launches it."""

    name: str
    row_format: RowFormat
    run: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def roofline_us(batch: int, row_format: RowFormat) -> float:
    """The larger of moving the rows and multiplying them, in microseconds."""
    moved = batch * TOP_K * ROW_FORMAT_BYTES[row_format]
    flops = batch * HEADS * TOP_K * (576 + 512) * 2
    return max(moved / BYTES_PER_SECOND, flops / FLOPS_PER_SECOND) * 1e6


def variants(library_path: Path) -> list[Variant]:
    """Every kernel, from the freshly built library."""
    from prime_inference.kvcache.kernels.sm90 import decode
    from prime_inference.kvcache.kernels.triton_decode import sparse_decode as triton_decode

    library = decode.load_library(library_path)
    scale = 576**-0.5

    def cuda(row_format: RowFormat, two: bool = False) -> Variant:
        def run(query: Tensor, cache: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
            return decode.sparse_decode(
                library, query, cache, indices,
                scale=scale, row_format=row_format, two_launches=two,
            )  # fmt: skip

        name = f"{row_format.name.lower()} {'two launches' if two else 'cluster'}"
        return Variant(name, row_format, run)

    def run_triton(query: Tensor, cache: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        splits = cluster_size(len(query), HEADS)
        return triton_decode(query, cache, indices, scale=scale, splits=splits)

    return [
        cuda(RowFormat.NVFP4),
        cuda(RowFormat.NVFP4, two=True),
        cuda(RowFormat.FP8),
        cuda(RowFormat.BF16),
        Variant("nvfp4 triton", RowFormat.NVFP4, run_triton),
    ]


def make_cache(row_format: RowFormat) -> tuple[Tensor, Tensor]:
    """A cache on the GPU and the float32 keys [slots, 576] that it stands for."""
    from prime_inference.kvcache.nvfp4_torch import dequantize, quantize

    slots = BLOCKS * BLOCK_TOKENS
    generator = torch.Generator("cuda").manual_seed(0)
    values = torch.randn(slots, 576, device="cuda", generator=generator).bfloat16()
    if row_format is RowFormat.BF16:
        rows, keys = values.view(torch.uint8), values.float()
    elif row_format is RowFormat.FP8:
        groups = values[:, :512].float().view(slots, 4, 128)
        scale = groups.abs().amax(dim=2, keepdim=True) / 448
        codes = (groups / scale).to(torch.float8_e4m3fn)
        parts = (codes.view(slots, 512), scale.view(slots, 4), values[:, 512:].contiguous())
        rows = torch.cat([part.view(torch.uint8) for part in parts], dim=1)
        latent = (codes.float() * scale).view(slots, 512)
        keys = torch.cat([latent, values[:, 512:].float()], dim=1)
    else:
        rows = quantize(values[:, :512], values[:, 512:])
        keys = torch.cat(dequantize(rows), dim=1)
    return rows.view(BLOCKS, BLOCK_TOKENS, -1).contiguous(), keys


def make_step(batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Queries and selected slots of one decode step."""
    generator = torch.Generator("cuda").manual_seed(seed)
    query = torch.randn(batch, HEADS, 576, device="cuda", generator=generator).bfloat16()
    slots = BLOCKS * BLOCK_TOKENS
    indices = torch.randint(slots, (batch, TOP_K), device="cuda", generator=generator)
    return query, indices.int()


def check(variant: Variant, cache: Tensor, keys: Tensor) -> float:
    """Relative L2 error against float64; some indices invalid, some duplicate."""
    query, indices = make_step(CHECKED_BATCH, 1)
    indices[:, ::17] = -1
    indices[:, 5:9] = indices[:, :1]
    out, _ = variant.run(query, cache, indices)
    chosen = keys.double().cpu().numpy()
    want, _ = sparse_decode(
        query.double().cpu().numpy(),
        chosen[:, :512],
        chosen[:, 512:],
        indices.cpu().numpy(),
        scale=576**-0.5,
    )
    return relative_l2(out.double().cpu().numpy(), want)


def time_us(variant: Variant, cache: Tensor, batch: int) -> float:
    """Median microseconds of one launch."""
    steps = [make_step(batch, seed) for seed in range(LAUNCHES)]
    for query, indices in steps:  # compile and warm up outside of the graph
        variant.run(query, cache, indices)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for query, indices in steps:
            variant.run(query, cache, indices)
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) * 1e3 / LAUNCHES)
    return sorted(times)[REPLAYS // 2]


def measure() -> list[Timing]:
    """Build, check and time on the GPU of this machine."""
    from prime_inference.kvcache.kernels.sm90.build import compile_library

    timings = []
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "decode.so"
        compile_library(library)
        for variant in variants(library):
            cache, keys = make_cache(variant.row_format)
            error = check(variant, cache, keys)
            # A bfloat16 output alone rounds by up to 2**-9 of each element.
            sys.stderr.write(f"{variant.name}: relative L2 {error:.2e}\n")
            if not error < BOUND:
                raise SystemExit(f"{variant.name} is wrong: {error}")
            del keys
            for batch in BATCHES:
                took = time_us(variant, cache, batch)
                timings.append(
                    Timing(variant.name, batch, roofline_us(batch, variant.row_format), took)
                )
    return timings


def unmeasured() -> list[Timing]:
    """The same table without a GPU."""
    names = [
        ("nvfp4 cluster", RowFormat.NVFP4),
        ("nvfp4 two launches", RowFormat.NVFP4),
        ("fp8 cluster", RowFormat.FP8),
        ("bf16 cluster", RowFormat.BF16),
        ("nvfp4 triton", RowFormat.NVFP4),
    ]
    return [
        Timing(name, batch, roofline_us(batch, row_format), None)
        for name, row_format in names
        for batch in BATCHES
    ]


def table(timings: list[Timing]) -> str:
    """Markdown."""
    lines = [
        "| kernel | batch | roofline us | measured us | x roofline |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in timings:
        took, ratio = NOT_MEASURED, NOT_MEASURED
        if one.measured_us is not None:
            took, ratio = f"{one.measured_us:.1f}", f"{one.measured_us / one.roofline_us:.1f}"
        lines.append(f"| {one.variant} | {one.batch} | {one.roofline_us:.2f} | {took} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the timings as JSON")
    arguments = parser.parse_args()
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    timings = measure() if hopper else unmeasured()
    print(table(timings))
    if arguments.out:
        arguments.out.write_text(json.dumps([asdict(one) for one in timings], indent=1) + "\n")


if __name__ == "__main__":
    main()
