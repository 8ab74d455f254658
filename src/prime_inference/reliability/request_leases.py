"""Leases for single requests, where a limit must hold across all replicas.

For a team's concurrency and reserved pools; each costs one call to the store before the
request, unlike block leases. A request that outlives its lease (a frozen process) has lost its
place: the lease is never revived, and `lost` says so when the request is settled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from prime_inference.ports.coordination import (
    Coordination,
    CoordinationUnavailable,
    Limit,
    RequestAsk,
)

TTL_S = 30.0  # answers last up to an hour: leases are renewed, and 30 s is what a crash may cost
RENEWALS_PER_TTL = 3  # two may be lost


@dataclass(frozen=True, slots=True)
class LimitReached:
    """`limit` had no place left. `retry_after_s` is when the first of its leases would end."""

    limit: str
    retry_after_s: float


@dataclass(slots=True, eq=False)
class RequestLease:
    """A place under each limit of an ask. Give it back with `RequestLeases.release`."""

    ask: RequestAsk
    shared: bool  # known to the store; otherwise taken from this replica's part of the limit
    lost: bool = False  # it ended while the request ran: others may have had its place


@dataclass(slots=True)
class _Held:
    leases: set[RequestLease] = field(default_factory=set)
    places: Counter[tuple[str, str]] = field(default_factory=Counter)  # (scope, limit) -> requests


class RequestLeases:
    """The request leases of one replica. `run` renews them.

    While the store is away each replica goes by its part of a limit, most / replicas, instead
    of the whole: N replicas must not turn a limit into N limits.
    """

    def __init__(
        self, coordination: Coordination, replicas: Callable[[], int], ttl_s: float = TTL_S
    ) -> None:
        self._coordination = coordination
        self._replicas = replicas
        self._ttl_s = ttl_s
        self._held = _Held()
        self._releasing: set[asyncio.Task[bool]] = set()

    async def acquire(
        self, scope: str, limits: tuple[Limit, ...], member: str
    ) -> RequestLease | LimitReached:
        """A place under each of the limits, or the one that has none left."""
        ask = RequestAsk(scope, limits, member, self._ttl_s)
        try:
            grant = await self._coordination.acquire(ask)
        except CoordinationUnavailable:
            return self._acquire_alone(ask)
        except asyncio.CancelledError:
            self._start_release(ask)  # the store may have granted it
            raise
        if not grant.granted:
            return LimitReached(grant.limit or "", grant.retry_after_s)
        return self._keep(RequestLease(ask, shared=True))

    async def release(self, lease: RequestLease) -> bool:
        """Give the places back; False if the lease had been lost.

        Goes on in the background if the caller is cancelled.
        """
        if lease not in self._held.leases:
            return not lease.lost
        self._held.leases.discard(lease)
        self._held.places.subtract(_places(lease.ask))
        self._held.places += Counter()  # drop zeros
        if not lease.shared:
            return not lease.lost
        return await asyncio.shield(self._start_release(lease.ask)) and not lease.lost

    async def run(self) -> None:
        """Renew all leases until cancelled."""
        while True:
            await asyncio.sleep(self._ttl_s / RENEWALS_PER_TTL)
            for lease in list(self._held.leases):
                try:
                    await self._renew(lease)
                except CoordinationUnavailable:
                    break  # the others would fare no better; there is a next round

    async def _renew(self, lease: RequestLease) -> None:
        if lease.lost:
            return
        if lease.shared:
            lease.lost = not await self._coordination.renew(lease.ask)
        else:
            grant = await self._coordination.acquire(lease.ask)
            lease.shared = grant.granted
        if lease.shared and lease not in self._held.leases:  # released meanwhile
            self._start_release(lease.ask)

    def _acquire_alone(self, ask: RequestAsk) -> RequestLease | LimitReached:
        replicas = max(1, self._replicas())
        for limit in ask.limits:
            part = max(1, limit.most // replicas) if limit.most else 0
            if self._held.places[ask.scope, limit.name] >= part:
                return LimitReached(limit.name, self._ttl_s / RENEWALS_PER_TTL)
        return self._keep(RequestLease(ask, shared=False))

    def _keep(self, lease: RequestLease) -> RequestLease:
        self._held.leases.add(lease)
        self._held.places.update(_places(lease.ask))
        return lease

    def _start_release(self, ask: RequestAsk) -> asyncio.Task[bool]:
        task = asyncio.get_running_loop().create_task(self._release(ask))
        self._releasing.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._releasing.discard)
        return task

    async def _release(self, ask: RequestAsk) -> bool:
        try:
            return await self._coordination.release(ask)
        except CoordinationUnavailable:
            return True  # it ends by itself


def _places(ask: RequestAsk) -> list[tuple[str, str]]:
    return [(ask.scope, limit.name) for limit in ask.limits]
