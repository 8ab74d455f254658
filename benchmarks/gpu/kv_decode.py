"""Build, check and time the sparse decode kernels on a Hopper GPU; prints one short table.

    PYTHONPATH=src python benchmarks/gpu/kv_decode.py [--out results.json]

For batches of 1, 8, 32 and 128 query tokens, 64 heads, top-k 2048: the one-launch cluster
kernel over NVFP4 rows, the same kernel over FP8 and BF16 rows, its two-launch version, and the
Triton kernel. Each is checked against float64 first (relative L2 under 2e-3) and timed as the
median of CUDA-graph replays over a cache larger than the L2.

Every kernel runs in a process of its own with a time limit, so that one that hangs, crashes or
is wrong costs only its own lines of the table; all together end within `BUDGET_SECONDS`. The
exit status is 1 where a kernel failed. Without a Hopper GPU every time is "not measured".
Needs a CUDA build of torch, Triton, and nvcc on the PATH or from `nvidia-cuda-nvcc`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError:
    sys.exit("kv_decode needs torch, a CUDA build for times: make .envs/kv/ready has a CPU build.")

from prime_inference.kvcache.attention import relative_l2, sparse_decode
from prime_inference.kvcache.kernels.sm90.params import ROW_FORMAT_BYTES, RowFormat, cluster_size

BATCHES = (1, 8, 32, 128)
HEADS = 64
TOP_K = 2048
BLOCK_TOKENS = 64
BLOCKS = 8192  # 524,288 rows: 185 MB of NVFP4, several times the L2 of 50 MB
# Tokens and heads of the checks: clusters of 8, 8, 4 (two head tiles), 4 and 1. The kernels
# over FP8 and BF16 rows exist to be compared with at 64 heads, and are checked there.
CHECKED = ((1, 16), (8, 64), (16, 128), (33, 64), (70, 64))
BOUND = 2e-3
REPLAYS = 200
LAUNCHES = 10  # in one graph, each with indices of its own
# Roofline of an H200: 4.3 TB/s is what its 4.8 TB/s of HBM3e sustain; 989 dense FP16 TFLOP/s.
BYTES_PER_SECOND = 4.3e12
FLOPS_PER_SECOND = 989e12
NOT_MEASURED = "not measured"
BUDGET_SECONDS = 450.0  # a little under 8 minutes, for everything
VARIANT_SECONDS = 120.0  # start of torch, cache, checks and timing take some 30 s; a hang shows
# Goals of the one-launch kernel over NVFP4 rows.
GOAL_RATIO_AT_128 = 2.0
GOAL_US_AT_8 = 12.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one variant at one batch; None where nothing was measured."""

    variant: str
    batch: int
    roofline_us: float
    measured_us: float | None


VARIANTS = {
    "nvfp4 cluster": RowFormat.NVFP4,
    "nvfp4 two launches": RowFormat.NVFP4,
    "fp8 cluster": RowFormat.FP8,
    "bf16 cluster": RowFormat.BF16,
    "nvfp4 triton": RowFormat.NVFP4,
}
# (query, cache, indices, lengths) -> out, log-sum-exp
Run = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def roofline_us(batch: int, row_format: RowFormat) -> float:
    """The larger of moving the rows and multiplying them, in microseconds."""
    moved = batch * TOP_K * ROW_FORMAT_BYTES[row_format]
    flops = batch * HEADS * TOP_K * (576 + 512) * 2
    return max(moved / BYTES_PER_SECOND, flops / FLOPS_PER_SECOND) * 1e6


def kernel(name: str, library_path: Path) -> Run:
    """What launches a variant, from the freshly built library."""
    from prime_inference.kvcache.kernels.sm90 import decode
    from prime_inference.kvcache.kernels.triton_decode import sparse_decode as triton_decode

    scale = 576**-0.5

    def triton(
        query: Tensor, cache: Tensor, indices: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        splits = cluster_size(len(query), query.shape[1])
        return triton_decode(query, cache, indices, scale=scale, lengths=lengths, splits=splits)

    def cuda(
        query: Tensor, cache: Tensor, indices: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return decode.sparse_decode(
            library, query, cache, indices, scale=scale, lengths=lengths,
            row_format=VARIANTS[name], two_launches=name.endswith("two launches"),
        )  # fmt: skip

    if name.endswith("triton"):
        return triton
    library = decode.load_library(library_path)
    return cuda


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


def make_step(batch: int, seed: int, heads: int = HEADS) -> tuple[Tensor, Tensor]:
    """Queries and selected slots of one decode step."""
    generator = torch.Generator("cuda").manual_seed(seed)
    query = torch.randn(batch, heads, 576, device="cuda", generator=generator).bfloat16()
    slots = BLOCKS * BLOCK_TOKENS
    indices = torch.randint(slots, (batch, TOP_K), device="cuda", generator=generator)
    return query, indices.int()


def compact(indices: Tensor) -> tuple[Tensor, Tensor]:
    """The slots that `indices` [B, K] name, each once, and the same indices into those; a
    negative one stays -1. The reference then needs a few rows and not the whole cache."""
    named, at = torch.unique(indices.clamp(min=0), return_inverse=True)
    return named.long(), torch.where(indices < 0, -1, at)


def check(run: Run, cache: Tensor, keys: Tensor, batch: int, heads: int) -> float:
    """Relative L2 error against float64; of some tokens a part of the indices counts, or none,
    some indices are invalid, some duplicate."""
    query, indices = make_step(batch, 1, heads)
    indices[:, ::17] = -1
    indices[:, 5:9] = indices[:, 1:2]
    lengths = torch.full((batch,), TOP_K, dtype=torch.int32, device="cuda")
    lengths[1::3], lengths[2::5] = TOP_K // 3, 0
    out, lse = run(query, cache, indices, lengths)
    named, at = compact(indices)
    rows = keys[named].double().cpu().numpy()
    want, want_lse = sparse_decode(
        query.double().cpu().numpy(),
        rows[:, :512],
        rows[:, 512:],
        at.cpu().numpy(),
        scale=576**-0.5,
        lengths=lengths.cpu().numpy(),
    )
    if not bool((torch.isinf(lse).cpu().numpy() == (want_lse == float("inf"))).all()):
        return float("inf")
    return relative_l2(out.double().cpu().numpy(), want)


def time_us(run: Run, cache: Tensor, batch: int) -> float:
    """Median microseconds of one launch."""
    steps = [make_step(batch, seed) for seed in range(LAUNCHES)]
    for query, indices in steps:  # compile and warm up outside of the graph
        run(query, cache, indices, None)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for query, indices in steps:
            run(query, cache, indices, None)
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) * 1e3 / LAUNCHES)
    return sorted(times)[REPLAYS // 2]


def measure_one(name: str, library: Path) -> list[Timing]:
    """Check and time one variant in this process. Raises SystemExit where it is wrong."""
    row_format = VARIANTS[name]
    run = kernel(name, library)
    cache, keys = make_cache(row_format)
    cases = CHECKED if row_format is RowFormat.NVFP4 else [c for c in CHECKED if c[1] == HEADS]
    for batch, heads in cases:
        error = check(run, cache, keys, batch, heads)
        # A bfloat16 output alone rounds by up to 2**-9 of each element.
        sys.stderr.write(f"{name}: {batch} tokens, {heads} heads: relative L2 {error:.2e}\n")
        if not error < BOUND:
            raise SystemExit(f"{name} is wrong at {batch} tokens and {heads} heads: {error}")
    del keys
    return [
        Timing(name, batch, roofline_us(batch, row_format), time_us(run, cache, batch))
        for batch in BATCHES
    ]


def output_of(command: Sequence[str], seconds: float) -> str:
    """What a child prints; its errors go to ours. Raises SystemExit where it fails or takes
    longer, after which it is killed."""
    try:
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"no end within {seconds:.0f} s") from None
    if child.returncode:
        raise SystemExit(f"exit status {child.returncode}")
    return child.stdout


def measure() -> tuple[list[Timing], dict[str, str]]:
    """Build once, then every variant in a child; the second part says which failed, and how."""
    end = time.monotonic() + BUDGET_SECONDS
    timings: list[Timing] = []
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "decode.so"
        build = [sys.executable, "-m", "prime_inference.kvcache.kernels.sm90.build", str(library)]
        try:
            output_of(build, VARIANT_SECONDS)
        except SystemExit as failure:
            failures["build"] = str(failure)
        for name in VARIANTS:
            command = [sys.executable, __file__, "--variant", name, "--library", str(library)]
            try:
                seconds = min(VARIANT_SECONDS, end - time.monotonic())
                if seconds <= 0:
                    raise SystemExit("no time was left")
                found = json.loads(output_of(command, seconds))
                timings += [Timing(**one) for one in found]
            except SystemExit as failure:
                failures[name] = str(failure)
                timings += unmeasured([name])
    return timings, failures


def unmeasured(names: Sequence[str] = tuple(VARIANTS)) -> list[Timing]:
    """The same table without a GPU."""
    return [
        Timing(name, batch, roofline_us(batch, VARIANTS[name]), None)
        for name in names
        for batch in BATCHES
    ]


def goals(timings: Sequence[Timing]) -> list[str]:
    """One line for each goal: met, missed or not measured."""
    at = {(one.variant, one.batch): one.measured_us for one in timings}
    ratio = roofline_us(128, RowFormat.NVFP4) * GOAL_RATIO_AT_128
    wanted: list[tuple[str, float | None, float | None]] = [
        ("at most 2 x the roofline at batch 128", at["nvfp4 cluster", 128], ratio),
        ("at most 12 us at batch 8", at["nvfp4 cluster", 8], GOAL_US_AT_8),
        *(
            (
                f"one launch beats two at batch {batch}",
                at["nvfp4 cluster", batch],
                at["nvfp4 two launches", batch],
            )
            for batch in (1, 8)
        ),
    ]
    lines = []
    for text, took, bound in wanted:
        if took is None or bound is None:
            lines.append(f"{text}: {NOT_MEASURED}")
        else:
            verdict = "met" if took <= bound else "missed"
            lines.append(f"{text}: {verdict} ({took:.1f} us against {bound:.1f})")
    return lines


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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)  # in a child
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        found = measure_one(arguments.variant, arguments.library)
        print(json.dumps([asdict(one) for one in found]))
        return
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    timings, failures = measure() if hopper else (unmeasured(), {})
    if not hopper:
        seen = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
        print(f"Nothing was measured: this needs a Hopper GPU, and torch sees {seen}.\n")
    print(table(timings))
    print("\n" + "\n".join(goals(timings)))
    for name, failure in failures.items():
        print(f"{name} failed: {failure}")
    if arguments.out:
        report = {
            "gpu": torch.cuda.get_device_name() if hopper else None,
            "torch": torch.__version__,
            "timings": [asdict(one) for one in timings],
            "goals": goals(timings),
            "failures": failures,
        }
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
