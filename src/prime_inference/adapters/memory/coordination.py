"""Coordination in memory: one process, or the store of a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from prime_inference.adapters.memory.block_leases import BlockPool
from prime_inference.adapters.memory.breaker_table import BreakerTable
from prime_inference.adapters.memory.request_leases import RequestScope
from prime_inference.ports.clock import Clock
from prime_inference.ports.coordination import (
    BlockAsk,
    BlockGrant,
    BreakerReading,
    BreakerRecord,
    ProbeAsk,
    ProbeGrant,
    ProbeResult,
    Push,
    RequestAsk,
    RequestGrant,
    Trip,
)

Listener = Callable[[Push], None]

SCOPES_BETWEEN_SWEEPS = 1024  # scopes created before those without a lease are dropped


class MemoryStore:
    """What the replicas agree on, without any I/O: each method takes the store's time."""

    def __init__(self, learning_s: float = 0.0) -> None:
        self.listeners: list[Listener] = []
        self._learning_s = learning_s
        self._pools: dict[str, BlockPool] = {}
        self._scopes: dict[str, RequestScope] = {}
        self._sweep_at = SCOPES_BETWEEN_SWEEPS
        self.breakers = BreakerTable(self._publish)

    def pool(self, name: str, now: float) -> BlockPool:
        """The pool of that name."""
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = BlockPool(now, self._learning_s)
        return pool

    def scope(self, name: str, now: float) -> RequestScope:
        """The request leases of that scope."""
        scope = self._scopes.get(name)
        if scope is None:
            if len(self._scopes) >= self._sweep_at:
                self._scopes = {k: s for k, s in self._scopes.items() if not s.empty(now)}
                self._sweep_at = len(self._scopes) + SCOPES_BETWEEN_SWEEPS
            scope = self._scopes[name] = RequestScope(now)
        return scope

    def _publish(self, push: Push) -> None:
        for listener in self.listeners:
            listener(push)


class MemoryCoordination:
    """Implements `ports.coordination.Coordination`. Never unavailable.

    A store that dies with its only replica has nothing to learn: `learning_s` is 0 by default.
    """

    def __init__(self, clock: Clock, learning_s: float = 0.0) -> None:
        self._clock = clock
        self._store = MemoryStore(learning_s)

    async def lease_blocks(self, asks: Sequence[BlockAsk]) -> Sequence[BlockGrant]:
        now = self._clock()
        return [self._store.pool(ask.pool, now).lease(ask, now) for ask in asks]

    async def return_blocks(self, holder: str, pools: Sequence[str], sequence: int) -> None:
        for pool in pools:
            self._store.pool(pool, self._clock()).give_back(holder, sequence)

    async def trip(self, trip: Trip) -> BreakerRecord:
        return self._store.breakers.trip(trip, self._clock())

    async def probe(self, ask: ProbeAsk) -> ProbeGrant:
        return self._store.breakers.probe(ask, self._clock())

    async def conclude(self, result: ProbeResult) -> BreakerRecord:
        return self._store.breakers.conclude(result, self._clock())

    async def breakers(self, known_version: int) -> BreakerReading:
        return self._store.breakers.read(known_version, self._clock())

    async def watch(self, listener: Listener) -> None:
        self._store.listeners.append(listener)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._store.listeners.remove(listener)

    async def acquire(self, ask: RequestAsk) -> RequestGrant:
        now = self._clock()
        return self._store.scope(ask.scope, now).acquire(ask, now)

    async def renew(self, ask: RequestAsk) -> bool:
        now = self._clock()
        return self._store.scope(ask.scope, now).renew(ask, now)

    async def release(self, ask: RequestAsk) -> bool:
        now = self._clock()
        return self._store.scope(ask.scope, now).release(ask, now)

    async def close(self) -> None:
        """Nothing to close."""
