"""What the guard costs a request: CPU nanoseconds per call, best of several rounds.

python benchmarks/guard_cost.py
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from random import Random

from prime_inference.adapters.memory.coordination import MemoryStore
from prime_inference.domain.models import Deployment
from prime_inference.reliability.commands import LeaseBlocks, ReadBreakers
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.outcome import Outcome
from prime_inference.reliability.settings import Settings
from prime_inference.reliability.slots import Slot
from prime_inference.routing.affinity import SessionRing, session_key

ROUNDS = 15
CALLS = 10_000


def _guard(deployments: int) -> Guard:
    """A guard whose leases cover every slot for the time of the benchmark."""
    guard = Guard("replica", Settings(), time.monotonic, Random(0))
    store = MemoryStore()
    fleet = [
        Deployment(
            id=f"dc{number}/m",
            model="m",
            datacenter=f"dc{number}",
            base_url="http://127.0.0.1:1/v1",
            engine="openai",
            slots=256,
            upstream_model="m",
        )
        for number in range(deployments)
    ]
    guard.configure(fleet)
    _settle(guard, store)
    return guard


def _settle(guard: Guard, store: MemoryStore) -> None:
    now = time.monotonic()
    for command in guard.due():
        if isinstance(command, LeaseBlocks):
            guard.accept(
                command, [store.pool(ask.pool, now).lease(ask, now) for ask in command.asks]
            )
        elif isinstance(command, ReadBreakers):
            guard.accept(command, store.breakers.read(command.known_version, now))


def _report(name: str, body: Callable[[], object]) -> None:
    best = float("inf")
    for _ in range(ROUNDS):
        gc.collect()
        began = time.process_time_ns()
        for _ in range(CALLS):
            body()
        best = min(best, (time.process_time_ns() - began) / CALLS)
    print(f"{name:58} {best:8.0f} ns")


def _request(guard: Guard) -> None:
    guard.began("m")
    slot = guard.admit(guard.candidates("m")[0])
    assert isinstance(slot, Slot)
    slot.first_token()
    slot.record(Outcome.ANSWERED)
    slot.release()


def _admission(guard: Guard) -> None:
    slot = guard.admit("dc0/m")
    assert isinstance(slot, Slot)
    slot.release()


def main() -> None:
    for deployments in (1, 2, 4, 8):
        guard = _guard(deployments)
        plural = "s" if deployments > 1 else ""
        _report(f"candidates, {deployments} deployment{plural}", partial(guard.candidates, "m"))
        _report(f"a whole request, {deployments} deployment{plural}", partial(_request, guard))
    guard = _guard(4)
    _report("admit and release", lambda: _admission(guard))
    _report("hedge_after", lambda: guard.hedge_after("dc0/m"))
    key = session_key("team", "session")
    ring = SessionRing({f"dc{number}/m": 256 for number in range(4)})
    offered = guard.candidates("m")
    _report("session_key", lambda: session_key("team", "session"))
    _report("affinity, 4 deployments", lambda: ring.first(key, offered))


if __name__ == "__main__":
    main()
