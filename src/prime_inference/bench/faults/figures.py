"""python -m prime_inference.bench.faults.figures: the figures of docs/reliability.md.

What failover adds for a datacenter that refuses, swallows or stalls; how soon every replica
reacts to a failing one; how often leases ask Redis; what Redis costs in throughput.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from prime_inference.bench.faults.replica import Clocks, Replica
from prime_inference.bench.faults.stage import EXPECTED, Setting, Stage, staged
from prime_inference.bench.faults.throughput import throughput
from prime_inference.bench.faults.traffic import traffic
from prime_inference.bench.interruption import terminated_as_interrupted

CLOCK_S = 1.0  # of the first token and between tokens: what failover adds beyond it is measured
FAILURES_TO_OPEN = 5  # of a breaker, in a row
HEDGE_SAMPLES = 110  # first tokens, so that a p99 is known
RIGHT_BETWEEN = 3  # answers between two faults: no breaker opens, and the primary stays preferred
LATENCY = Setting(links=True, clocks=Clocks(connect=CLOCK_S, first_token=CLOCK_S, idle=CLOCK_S))
LOOK_S = 0.001  # how often replicas are asked whether they have reacted
WARM_S = 12.0  # a lease time and a bit: blocks have grown to what the traffic needs
IDLE_WARM_S = 30.0  # leases have gone to rest
IDLE_S = 120.0  # two of the slowest asks
LEASES, BREAKERS = ":{blocks}:", ":breakers"  # in the names of keys


async def failover_latency(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds that a whole streamed answer takes longer than one of the other deployment.

    Few requests are made, so that no hedge cuts the clocks short; `hedged` is a black hole
    after enough of them.
    """
    found = {}
    for name in ("refused", "black hole", "stalled", "cut", "hedged"):
        async with staged(folder / name, LATENCY) as stage:
            for _ in range(HEDGE_SAMPLES if name == "hedged" else 0):
                await stage.ask(max_tokens=1)
            seconds = [await _with_fault(stage, name) for _ in range(rounds)]
            base = await _of_the_fallback(stage, rounds)
        added = sorted(each - base for each in seconds)
        found[name] = {"median_ms": statistics.median(added), "worst_ms": added[-1]}
    return found


async def _with_fault(stage: Stage, name: str) -> float:
    link = stage.primary.link
    assert link is not None
    for _ in range(RIGHT_BETWEEN):
        await stage.ask(max_tokens=1)
    stage.forget()
    if name == "refused":
        await link.refuse()
    elif name in ("black hole", "hedged"):
        link.black_hole()
    else:
        stage.primary.engine.behave("stall-after-20" if name == "stalled" else "cut-after-20")
    taken = await _whole(stage)
    assert stage.fallback.attempts, "the primary was not at fault"
    if name in ("stalled", "cut"):
        assert stage.primary.attempts, "the fault was not met"
    await link.heal()
    stage.primary.engine.behave("")
    return taken


async def _of_the_fallback(stage: Stage, rounds: int) -> float:
    """What an answer takes there, once the breaker of the primary is open."""
    link = stage.primary.link
    assert link is not None
    await link.refuse()
    for _ in range(2 * FAILURES_TO_OPEN):
        await stage.ask(max_tokens=1)
    return statistics.median([await _whole(stage) for _ in range(rounds)])


async def _whole(stage: Stage) -> float:
    answer = await stage.ask()
    assert answer.outcome(EXPECTED) == "complete", answer.error
    return answer.seconds * 1000


async def reaction(folder: Path, rounds: int, gateways: int) -> dict[str, float]:
    """Milliseconds from the arrival of the last request that failed to the last replica.

    Replicas are processes with one Redis; each is asked for its state without a pause.
    """
    seen = []
    for number in range(rounds):
        setting = Setting(gateways=gateways, store=True, pace=0.0, answer_tokens=2)
        async with staged(folder / str(number), setting) as stage:
            await asyncio.sleep(0.2 + number * 0.037)  # anywhere between two polls
            stage.primary.engine.behave("status-500")
            looks = [
                asyncio.create_task(_until_open(gateway, stage.primary.name))
                for gateway in stage.gateways
            ]
            for _ in range(FAILURES_TO_OPEN):
                await stage.ask(max_tokens=1)
            opened = max(await asyncio.gather(*looks))
            began = max(one.received_at for one in stage.primary.seen if one.received_at < opened)
            seen.append((opened - began) * 1000)
    return {"median_ms": statistics.median(seen), "worst_ms": max(seen), "rounds": rounds}


async def _until_open(gateway: Replica, deployment: str) -> float:
    """When the breaker was first seen not closed."""
    async with _kept(gateway) as ask, asyncio.timeout(10):
        while True:
            view = await ask("/fleet")
            states = {one["id"]: one["breaker"] for one in view["deployments"]}
            if states[deployment] != "closed":
                return time.time()
            await asyncio.sleep(LOOK_S)


@contextlib.asynccontextmanager
async def _kept(gateway: Replica) -> AsyncIterator[Any]:
    """A kept connection to a control listener: a client of the usual kind takes longer."""
    host, port = gateway.control_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def ask(path: str) -> Any:
        lines = (
            f"GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {gateway.key}\r\n\r\n"
        )
        writer.write(lines.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        return json.loads(await reader.readexactly(length))

    try:
        yield ask
    finally:
        writer.close()


async def lease_calls(
    folder: Path, cases: Sequence[tuple[float, int]], seconds: float, gateways: int
) -> list[dict[str, float]]:
    """Redis commands for leases and for breakers per 1,000 requests, as Redis saw them.

    A case is requests a second over all gateways, and a number of deployments.
    """
    rows = []
    for rate, deployments in cases:
        setting = _quiet(gateways, deployments)
        async with staged(folder / f"{rate:g}-{deployments}", setting) as stage:
            assert stage.store is not None
            async with traffic(stage.gateways, rate) as flow:
                await asyncio.sleep(WARM_S)
                before = len(flow.answers)
                lines = await stage.store.monitor(seconds)
                served = len(flow.answers) - before
            rows.append(
                {
                    "requests_per_second": rate,
                    "deployments": deployments,
                    "requests": served,
                    "lease_commands_per_1000": 1000 * _count(lines, LEASES) / served,
                    "breaker_commands_per_1000": 1000 * _count(lines, BREAKERS) / served,
                }
            )
    return rows


async def idle_calls(folder: Path, seconds: float, gateways: int) -> dict[str, float]:
    """Redis commands a minute and gateway without any request."""
    async with staged(folder, _quiet(gateways, 2)) as stage:
        assert stage.store is not None
        await asyncio.sleep(IDLE_WARM_S)
        lines = await stage.store.monitor(seconds)
    minutes = gateways * seconds / 60
    return {
        "lease_commands": _count(lines, LEASES) / minutes,
        "breaker_commands": _count(lines, BREAKERS) / minutes,
        "all_commands": (len(lines) - 1) / minutes,  # MONITOR's own answer is a line
    }


def _quiet(gateways: int, deployments: int) -> Setting:
    names = ("primary", "fallback", *(f"more-{number}" for number in range(deployments - 2)))
    return Setting(
        deployments=names, gateways=gateways, store=True, slots=256, first_token=0.0,
        answer_tokens=20, warm_up=False,
    )  # fmt: skip


def _count(lines: Sequence[str], word: str) -> int:
    return sum(word in line for line in lines)


def main(
    rounds: Annotated[int, typer.Option(help="Repetitions of each.", min=1)] = 10,
    seconds: Annotated[float, typer.Option(help="Of each rate of requests.", min=1)] = 40.0,
    out: Annotated[Path | None, typer.Option(help="Folder for fault-figures.json.")] = None,
) -> None:
    """Measure and print; nothing else should run on the machine."""
    figures: dict[str, object] = {}
    with terminated_as_interrupted(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures["failover"] = asyncio.run(failover_latency(folder / "failover", rounds))
        _say("failover", figures)
        figures["reaction"] = asyncio.run(reaction(folder / "reaction", rounds, 3))
        _say("reaction", figures)
        cases = [(rate, deployments) for deployments in (2, 8) for rate in (20, 60, 200)]
        figures["leases"] = asyncio.run(lease_calls(folder / "leases", cases, seconds, 3))
        _say("leases", figures)
        figures["idle"] = asyncio.run(idle_calls(folder / "idle", IDLE_S, 3))
        _say("idle", figures)
        figures["throughput"] = throughput(folder, max(1, rounds // 2))
        _say("throughput", figures)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(figures))
        (out / "fault-figures.json").write_bytes(data + b"\n")


def _say(name: str, figures: dict[str, object]) -> None:
    print(name, json.dumps(figures[name], indent=1, default=str), flush=True)


if __name__ == "__main__":
    typer.run(main)
