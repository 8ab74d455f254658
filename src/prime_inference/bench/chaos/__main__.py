"""python -m prime_inference.bench.chaos: see `make chaos`."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import tempfile
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
import typer

from prime_inference.bench.chaos.plan import Plan
from prime_inference.bench.chaos.run import DATACENTERS, GATEWAYS, SLOTS, Count, World, count
from prime_inference.bench.interruption import terminated_as_interrupted


def main(
    seconds: Annotated[float, typer.Option(help="How long things break.", min=1)] = 120.0,
    seed: Annotated[int | None, typer.Option(help="Of the faults; default: any.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for chaos.json.")] = None,
) -> None:
    """Break things under load; exits 1 if a client noticed what it should not."""
    chosen = secrets.randbelow(1_000_000) if seed is None else seed
    print(f"seed {chosen}: make chaos SECONDS={seconds:g} SEED={chosen}", flush=True)
    with terminated_as_interrupted():
        found = asyncio.run(_run(chosen, seconds))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.encode(dataclasses.asdict(found))
        (out / "chaos.json").write_bytes(msgspec.json.format(data) + b"\n")
    _say(found)
    if found.bad:
        raise typer.Exit(1)


async def _run(seed: int, seconds: float) -> Count:
    random = Random(seed)
    plan = Plan(seconds, GATEWAYS, DATACENTERS, Random(random.random()))
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), random)
        try:
            await world.start()
            faults = await world.run(plan, lambda line: print(line, flush=True))
            return count(world, seed, seconds, faults)
        finally:
            await world.stop()


def _say(found: Count) -> None:
    print(
        f"{found.faults} faults in {found.seconds:g} s. {found.requests} requests:"
        f" {found.complete} complete, {found.lost} lost with a gateway that was killed,"
        f" {found.burst_refused} refused in bursts, {len(found.bad)} bad;"
        f" {found.refusals} typed refusals, {found.connections_refused} refused connections,"
        f" slowest answer {found.slowest:.1f} s."
    )
    most = ", ".join(f"{name} {most}" for name, most in found.most.items())
    print(f"Most in flight, of {SLOTS} slots each: {most}.")
    for line in found.bad[:40]:
        print(f"  BAD {line}")


if __name__ == "__main__":
    typer.run(main)
