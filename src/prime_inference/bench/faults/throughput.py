"""Throughput of one gateway with Redis and without, turn by turn on the same machine."""

from __future__ import annotations

import asyncio
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec

from prime_inference.bench.faults.store import Store
from prime_inference.bench.gateway import nginx
from prime_inference.bench.gateway.load import Target, run_load
from prime_inference.bench.gateway.machine import choose_cores
from prime_inference.bench.gateway.process import Child, free_port
from prime_inference.bench.gateway.upstream import (
    MODEL,
    WHOLE_BODY,
    Upstream,
    start_fixed,
    start_mock,
)

CONNECTIONS = 64
SECONDS = 4.0
WARM_SECONDS = 2.0


def throughput(folder: Path, rounds: int) -> dict[str, object]:
    """Requests a second, the median of `rounds`, and the ratio. Raises StartFailed, LoadFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    cores = choose_cores()
    body = folder / "body.json"
    body.write_bytes(msgspec.json.encode(WHOLE_BODY))
    with ExitStack() as stack:
        upstream = start_mock(folder / "mock", cores.load, pace_ms=0)
        stack.callback(upstream.child.stop)
        if nginx.missing() is None:
            upstream = start_fixed(folder / "nginx", cores.load, upstream)
            stack.callback(upstream.child.stop)
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        store = Store(folder / "redis")
        loop.run_until_complete(store.start())
        stack.callback(lambda: loop.run_until_complete(store.kill()))
        targets = {}
        for name, options in {"off": [], "on": ["--redis", store.url]}.items():
            child, target = _gateway(folder / name, upstream, cores.subject, options)
            stack.callback(child.stop)
            targets[name] = child, target
            child.pause()
        rates: dict[str, list[float]] = {"off": [], "on": []}
        for _ in range(rounds):
            for name, (child, target) in targets.items():
                child.resume()
                for seconds in (WARM_SECONDS, SECONDS):
                    load = run_load(
                        target, body, connections=CONNECTIONS, seconds=seconds, core=cores.load
                    )
                child.pause()
                assert not load.errors, f"{load.errors} requests failed"
                rates[name].append(load.per_second)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "per_second_off": medians["off"],
        "per_second_on": medians["on"],
        "ratio": medians["on"] / medians["off"],
        "rounds": rates,
    }


def _gateway(
    folder: Path, upstream: Upstream, core: int, options: list[str]
) -> tuple[Child, Target]:
    folder.mkdir(parents=True)
    command: list[str | Path] = [
        sys.executable, "-m", "prime_inference.cli", "inference", "gateway",
        "--upstream", upstream.base_url, "--model-id", MODEL, "--port", str(free_port()),
        "--control-port", str(free_port()), "--state-dir", folder / "state",
        "--output", "json", *options,
    ]  # fmt: skip
    child = Child(command, core=core, log=folder / "gateway.log")
    child.wait_until(lambda: "\n" in child.output)
    announced = msgspec.json.decode(child.output.splitlines()[0])
    return child, Target(f"{announced['base_url']}/chat/completions", announced["api_key"])
