"""Build, check and time the sparse decode kernels on a Hopper GPU; prints one short table.

    PYTHONPATH=src python benchmarks/gpu/kv_decode.py [--out results.json]

For batches of 1, 8, 32 and 128 query tokens, 64 heads, top-k 2048: the one-launch cluster
kernel over NVFP4 rows, the same kernel over FP8 and BF16 rows, its two-launch version, and the
Triton kernel. Each is checked against float64 first (relative L2 under 2e-3, into memory that
held NaN, twice with the same bits) and timed as the median of CUDA-graph replays; a replay reads
every row of the cache once, many times the L2, so no row is in it when its turn comes.

Every kernel runs in a process of its own with a time limit, so that one that hangs, crashes or
is wrong costs only the lines of the table that it had not measured; all together end within
`BUDGET_SECONDS`. The exit status is 1 where a kernel failed. Without a Hopper GPU every time is
"not measured". Needs a CUDA build of torch, Triton, and nvcc on the PATH or from
`nvidia-cuda-nvcc`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
BLOCKS = 32_768  # 2,097,152 rows: 738 MB of NVFP4, many times the L2 of 50 MB
CHUNK = 1 << 18  # rows that are quantized at a time
DEVICE = "cuda"
# Tokens and heads of the checks: clusters of 8, 8, 4 (two head tiles), 4 and 1. The kernels
# over FP8 and BF16 rows exist to be compared with at 64 heads, and are checked there.
CHECKED = ((1, 16), (8, 64), (16, 128), (33, 64), (70, 64))
BOUND = 2e-3
LSE_BOUND = 1e-2  # nats; a score is a sum of FP16 products, 1e-3 off at most
# Floats: more than the largest output, and the small ones, which torch's allocator keeps apart.
POISON = (1 << 28, *[1 << 17] * 64)
REPLAYS = 50  # of some milliseconds each
# Roofline of an H200: 4.3 TB/s is what its 4.8 TB/s of HBM3e sustain; 989 dense FP16 TFLOP/s.
BYTES_PER_SECOND = 4.3e12
FLOPS_PER_SECOND = 989e12
NOT_MEASURED = "not measured"
REPORTED = "timing "  # begins the lines of a child that hold a timing as JSON
BUDGET_SECONDS = 450.0  # a little under 8 minutes, for everything
BUILD_SECONDS = 180.0  # a minute on one free core
VARIANT_SECONDS = 120.0  # start of torch, cache, checks and timing take some 30 s; a hang shows
KILL_SECONDS = 5.0  # a driver that hangs may hold a killed process longer; it is left to it
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
Run = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


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
        query: Tensor, cache: Tensor, indices: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        splits = cluster_size(len(query), query.shape[1])
        return triton_decode(query, cache, indices, scale=scale, lengths=lengths, splits=splits)

    def cuda(
        query: Tensor, cache: Tensor, indices: Tensor, lengths: Tensor
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
    generator = torch.Generator(DEVICE).manual_seed(0)
    shape = (BLOCKS * BLOCK_TOKENS, 576)
    values = torch.randn(*shape, device=DEVICE, generator=generator).bfloat16()
    parts = [make_rows(row_format, part) for part in values.split(CHUNK)]
    rows, keys = (torch.cat(part) for part in zip(*parts, strict=True))
    return rows.view(BLOCKS, BLOCK_TOKENS, -1), keys


def make_rows(row_format: RowFormat, values: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of `values` [T, 576] in bfloat16, and the float32 keys that they stand for."""
    from prime_inference.kvcache.nvfp4_torch import dequantize, quantize

    if row_format is RowFormat.BF16:
        return values.view(torch.uint8), values.float()
    if row_format is RowFormat.NVFP4:
        rows = quantize(values[:, :512], values[:, 512:])
        return rows, torch.cat(dequantize(rows), dim=1)
    groups = values[:, :512].float().view(-1, 4, 128)
    scale = groups.abs().amax(dim=2, keepdim=True) / 448
    codes = (groups / scale).to(torch.float8_e4m3fn)
    parts = (codes.view(-1, 512), scale.view(-1, 4), values[:, 512:].contiguous())
    latent = (codes.float() * scale).view(-1, 512)
    rows = torch.cat([part.view(torch.uint8) for part in parts], dim=1)
    return rows, torch.cat([latent, values[:, 512:].float()], dim=1)


def make_queries(tokens: int, seed: int, heads: int = HEADS) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(tokens, heads, 576, device=DEVICE, generator=generator).bfloat16()


def make_steps(batch: int) -> list[tuple[Tensor, Tensor]]:
    """Queries and selected slots of as many decode steps as select every slot once."""
    generator = torch.Generator(DEVICE).manual_seed(2)
    slots = BLOCKS * BLOCK_TOKENS
    shuffled = torch.randperm(slots, device=DEVICE, generator=generator).int()
    indices = shuffled.view(-1, TOP_K)
    queries = make_queries(len(indices), 3)
    return list(zip(queries.split(batch), indices.split(batch), strict=True))


def compact(indices: Tensor) -> tuple[Tensor, Tensor]:
    """The slots that `indices` [B, K] name, each once, and the same indices into those; a
    negative one stays -1. The reference then needs a few rows and not the whole cache."""
    named, at = torch.unique(indices.clamp(min=0), return_inverse=True)
    return named.long(), torch.where(indices < 0, -1, at)


def check(run: Run, cache: Tensor, keys: Tensor, batch: int, heads: int) -> float:
    """Relative L2 error against float64; of some tokens a part of the indices counts, or none,
    some indices are invalid, some duplicate. Infinite where the log-sum-exp is wrong or a second
    run gives other bits."""
    query = make_queries(batch, 1, heads)
    generator = torch.Generator(DEVICE).manual_seed(1)
    slots = BLOCKS * BLOCK_TOKENS
    indices = torch.randint(slots, (batch, TOP_K), device=DEVICE, generator=generator).int()
    indices[:, ::17] = -1
    indices[:, 5:9] = indices[:, 1:2]
    lengths = torch.full((batch,), TOP_K, dtype=torch.int32, device=DEVICE)
    lengths[1::3], lengths[2::5] = TOP_K // 3, 0
    # What the allocator hands out next held NaN: an output that is not written shows.
    poison = [torch.full((size,), float("nan"), device=DEVICE) for size in POISON]
    del poison
    out, lse = run(query, cache, indices, lengths)
    again, lse_again = run(query, cache, indices, lengths)
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
    same = torch.equal(out, again) and torch.equal(lse, lse_again)
    near = torch.allclose(lse.double().cpu(), torch.from_numpy(want_lse), rtol=0, atol=LSE_BOUND)
    return relative_l2(out.double().cpu().numpy(), want) if same and near else float("inf")


def time_us(run: Run, cache: Tensor, batch: int) -> float:
    """Median microseconds of one launch."""
    steps = make_steps(batch)
    lengths = torch.full((batch,), TOP_K, dtype=torch.int32, device=DEVICE)
    run(steps[0][0], cache, steps[0][1], lengths)  # compile outside of the graph
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for query, indices in steps:
            run(query, cache, indices, lengths)
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) * 1e3 / len(steps))
    return sorted(times)[REPLAYS // 2]


def measure_one(name: str, library: Path) -> Iterator[Timing]:
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
            raise SystemExit(f"wrong at {batch} tokens and {heads} heads: {error}")
    del keys
    for batch in BATCHES:
        yield Timing(name, batch, roofline_us(batch, row_format), time_us(run, cache, batch))


def outcome(command: Sequence[str], seconds: float) -> tuple[str, str | None]:
    """What a child printed until it ended or was killed, and why it failed, None where it did
    not. Its errors go to ours."""
    failure = None
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)
        try:
            status = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            failure = f"no end within {seconds:.0f} s"
        finally:
            if child.poll() is None:  # with its own children, as nvcc's
                os.killpg(child.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=KILL_SECONDS)
        output.seek(0)
        errors.seek(0)
        said = errors.read()
        sys.stderr.write(said)
        if failure is None and status:
            last = said.strip().rpartition("\n")[2]
            failure = f"exit status {status}: {last}"
        return output.read(), failure


def timings_in(output: str) -> list[Timing]:
    """The whole lines that a child's `report` printed, among whatever else it printed."""
    lines = [line for line in output.split("\n")[:-1] if line.startswith(REPORTED)]
    return [Timing(**json.loads(line.removeprefix(REPORTED))) for line in lines]


def measure() -> tuple[list[Timing], dict[str, str]]:
    """Build once, then every variant in a child; the second part says which failed, and how."""
    end = time.monotonic() + BUDGET_SECONDS
    timings: list[Timing] = []
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "decode.so"
        build = [sys.executable, "-m", "prime_inference.kvcache.kernels.sm90.build", str(library)]
        _, failed = outcome(build, BUILD_SECONDS)
        if failed:
            failures["build"] = failed
        for name in VARIANTS:
            command = [sys.executable, __file__, "--variant", name, "--library", str(library)]
            seconds = min(VARIANT_SECONDS, end - time.monotonic())
            output, failure = "", None
            if "build" in failures and not name.endswith("triton"):
                failure = "the library was not built"
            elif seconds <= 0:
                failure = "no time was left"
            else:
                output, failure = outcome(command, seconds)
            found = {one.batch: one for one in timings_in(output)}
            timings += [found.get(one.batch, one) for one in unmeasured([name])]
            if failure is None and len(found) < len(BATCHES):
                failure = "ended without all of its times"
            if failure:
                failures[name] = failure
    return timings, failures


def unmeasured(names: Sequence[str] = tuple(VARIANTS)) -> list[Timing]:
    """The same table without a GPU."""
    return [
        Timing(name, batch, roofline_us(batch, VARIANTS[name]), None)
        for name in names
        for batch in BATCHES
    ]


def goals(timings: Sequence[Timing], failures: Mapping[str, str]) -> list[str]:
    """One line for each goal: met, missed, or not measured and why. `failures`: by variant;
    under "" what concerns all of them."""
    at = {(one.variant, one.batch): one.measured_us for one in timings}
    one_launch, two_launches = "nvfp4 cluster", "nvfp4 two launches"
    ratio = roofline_us(128, RowFormat.NVFP4) * GOAL_RATIO_AT_128
    wanted: list[tuple[str, int, float | None]] = [
        ("at most 2 x the roofline at batch 128", 128, ratio),
        ("at most 12 us at batch 8", 8, GOAL_US_AT_8),
        ("one launch beats two at batch 1", 1, at[two_launches, 1]),
        ("one launch beats two at batch 8", 8, at[two_launches, 8]),
    ]
    lines = []
    for text, batch, bound in wanted:
        took = at[one_launch, batch]
        if took is None or bound is None:
            lacking = one_launch if took is None else two_launches
            why = failures.get("") or f"{lacking}: {failures.get(lacking, 'no time')}"
            lines.append(f"{text}: {NOT_MEASURED} ({why})")
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


def why_not_here() -> str | None:
    """What keeps this machine from measuring."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    except RuntimeError as error:  # a device that another process has for itself, or that is ill
        return f"CUDA fails: {error}"
    return None if capability[0] == 9 else f"torch sees {name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)  # in a child
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        for one in measure_one(arguments.variant, arguments.library):
            print(REPORTED + json.dumps(asdict(one)), flush=True)
        return
    why = why_not_here()
    timings, failures = (unmeasured(), {"": why}) if why else measure()
    if why:
        print(f"Nothing was measured: this needs a Hopper GPU, and {why}.\n")
    print(table(timings))
    print("\n" + "\n".join(goals(timings, failures)))
    if not why:
        for name, failure in failures.items():
            print(f"{name} failed: {failure}")
    if arguments.out:
        report = {
            "gpu": None if why else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "timings": [asdict(one) for one in timings],
            "goals": goals(timings, failures),
            "failures": failures,
        }
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if failures and not why else 0)


if __name__ == "__main__":
    main()
