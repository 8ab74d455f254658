"""`make bench-dynamo`: the agent benchmark on real Dynamo processes, case by case.

For each case and rate of cold arrivals a datacenter is started (Dynamo's frontend and router, four
mocker workers, our gateway in front), the same sessions are replayed, and it is ended. Prompts are
real and tokenised by Dynamo with SmolLM2's tokenizer; the engines' time is SIMULATED.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.dynamo_agents.cases import CASES, SPEEDUP, Case
from benchmarks.dynamo_agents.report import Measured, keep, write_report
from prime_inference.bench.agents.generate import LogNormal, generate
from prime_inference.bench.agents.plan import Options, Point
from prime_inference.bench.agents.point import PointRun
from prime_inference.bench.agents.records import Record
from prime_inference.bench.agents.run import Run, Target, sweep
from prime_inference.bench.agents.scale import Scale, scaled
from prime_inference.domain.caches import CacheReport
from prime_inference.engines.dynamo.tokenizer import write_model_folder
from prime_inference.engines.local.weights import SMOLLM2_135M, fetch
from prime_inference.fleet.fleet import read_fleet
from prime_inference.fleet.launcher.control import Command, ask
from prime_inference.fleet.launcher.run import (
    bring_down,
    detach,
    dynamo_python,
    fleet_folder,
    until_ready,
)
from prime_inference.fleet.launcher.state import StateFolder

MODEL = "mock/tiny"
CONTEXT_TOKENS = 8192  # the mocker's spec
READY_SECONDS = 120.0
SESSIONS = 60  # trees of the workload; a point plays some twenty of them
WORKLOAD_SEED = 11
SCALE = Scale(
    input=1 / 32,  # 142,000 tokens become 4,400: what frontends on two cores can tokenise
    output=1 / 32,  # 444 become 14
    time=0.1,  # of a tool's seconds, so that half a minute has enough turns
    max_context=7_500,
    idle=20.0,
)
COLD_INPUT = LogNormal(4_400, 0.3, 2_000, 7_500)  # the sessions' median, and none beyond the limit
COLD_OUTPUT = LogNormal(14, 0.5, 4, 60)
LAG_BOUND = 0.05  # seconds: a tenth of what a cold prompt waits; the machine has other work
SIMULATED = (
    f"the engines: Dynamo 1.6.1's mocker, its default timing stretched {1 / SPEEDUP:g} times",
)
NOTES = (
    "real: Dynamo's frontend, router, discovery, events, request plane; our launcher, gateway",
)


class Quiet:
    """Tells how far a run is, on one line a point."""

    def __init__(self, name: str) -> None:
        self._name = name

    def point(self, point: Point, number: int, of: int | None) -> None:
        print(f"{self._name}: {number + 1} of {of}, seed {point.seed} ...", flush=True)

    def record(self, record: Record, in_flight: int) -> None:
        """Records are in the results."""

    def done(self, run: PointRun) -> None:
        """The summary has it."""


@contextlib.asynccontextmanager
async def datacenter(case: Case, tokenizer: Path) -> AsyncIterator[tuple[StateFolder, Any]]:
    """The case's processes behind a gateway; its folder, and how the gateway is reached."""
    with tempfile.TemporaryDirectory(prefix="bench-dynamo-") as state:
        file = Path(state) / "fleet.toml"
        file.write_text(case.fleet(tokenizer))
        folder = fleet_folder(Path(state), read_fleet(file))
        child = detach(file, folder, python=dynamo_python(os.environ, Path.cwd()))
        try:
            status = await until_ready(folder, READY_SECONDS)
            yield folder, status["gateway"]
        finally:
            with contextlib.suppress(Exception):
                await bring_down(folder)
            child.wait(60)


async def measure(case: Case, arguments: argparse.Namespace, cold: float, out: Path) -> None:
    """One case at one rate of cold arrivals, over all seeds."""
    options = Options(
        seconds=arguments.seconds,
        warmup_requests=1,
        idle_cap=SCALE.idle or 0.0,
        grace=20.0,
        timeout=120.0,
        cold_input=COLD_INPUT,
        cold_output=COLD_OUTPUT,
        lag_bound=LAG_BOUND,
        scale=SCALE,
        ignore_eos=False,  # the gateway does not take it; the mocker writes all it is asked for
    )
    workload = scaled(generate(SESSIONS, WORKLOAD_SEED), SCALE)
    points = sweep([arguments.sessions], [cold], arguments.seeds)
    async with datacenter(case, arguments.tokenizer) as (folder, gateway):
        target = Target(
            base_url=gateway["base_url"],
            model=MODEL,
            headers=f"authorization: Bearer {gateway['api_key']}\r\n".encode(),
            simulated=SIMULATED,
            notes=(*NOTES, f"case {case.name}: {case}"),
        )
        async with Run(target, workload, options, out, Quiet(f"{case.name}, cold {cold:g}")) as run:
            await run.measure(points)
        status = await ask(folder, Command("caches"))
        (caches,) = [one["caches"] for one in status["deployments"]]
    report = msgspec.convert(caches, CacheReport, strict=False)
    keep(out, Measured(case, cold, report.hit_rate))


async def run(arguments: argparse.Namespace) -> None:
    for case in CASES:
        if arguments.only and case.name not in arguments.only:
            continue
        for cold in arguments.cold:
            out = arguments.out / f"{case.name}-cold-{cold:g}"
            out.mkdir(parents=True, exist_ok=True)
            await measure(case, arguments, cold, out)
    write_report(arguments.out)


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.dynamo_agents", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".state/bench-dynamo"))
    parser.add_argument("--seconds", type=float, default=30.0, help="of a point")
    parser.add_argument(
        "--seeds", type=lambda text: [int(n) for n in numbers(text)], default=[1, 2, 3]
    )
    parser.add_argument("--sessions", type=int, default=16, help="lanes at a time")
    parser.add_argument("--cold", type=numbers, default=[0.0, 1.5], help="cold arrivals a second")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        help="names of cases; others keep what they have",
    )
    arguments = parser.parse_args(argv)
    cache = Path(os.environ.get("PRIME_CACHE_DIR") or Path.home() / ".cache" / "prime-inference")
    weights = fetch(SMOLLM2_135M, cache, lambda done, total: None)  # its tokenizer is inside
    arguments.tokenizer = write_model_folder(weights, cache / "mocker", CONTEXT_TOKENS)
    asyncio.run(run(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
